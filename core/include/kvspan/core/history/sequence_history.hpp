// SPDX-License-Identifier: Apache-2.0
// The history of one sequence: how many tokens are committed, which host pages hold them, who
// touched those pages last, and how far back a failure falls. Not here: device pages (stream/).
#pragma once

#include "kvspan/core/backend/moment.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/history/host_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace kvspan {

// Pages that no row will see again retire: their blocks go back to HostPages once the rows behind
// them are complete on the host and no work names them. How far a truncation may go follows from
// what was committed, not from when a device was done.
// Invariants: blocks cover at least what a row behind committed_tokens sees of them; rows at or
// past committed_tokens are dead, whatever they hold; a commit whose host copies failed is undone
// by fall_back. Thread class: SYNC(history).
class SequenceHistory {
 public:
  SequenceHistory(const std::vector<HostClass>& classes, std::uint32_t page_tokens);

  [[nodiscard]] std::uint64_t committed_tokens() const { return committed_tokens_; }

  [[nodiscard]] std::uint32_t page_tokens() const { return page_tokens_; }

  // Takes blocks until `tokens` fit, and room for their commit, ahead of the step that writes them.
  // Errors: host_memory; what was taken stays and serves the next try, also behind an exception.
  [[nodiscard]] Result<void> reserve(HostPages& pages, std::uint64_t tokens);

  // Gives every block back; nothing pending may name them. What is reserved next are the pages that
  // a history of `tokens` tokens keeps.
  void release(HostPages& pages, std::uint64_t tokens = 0);

  // Gives pages back that no row after the last complete commit sees, oldest first, as far as work
  // on them has settled: with `reached` the last values of every lane. Returns how many pages of
  // layers that were. prove() comes first.
  std::uint64_t retire(HostPages& pages, const Moment& reached);

  // Whether the pages up to `tokens` would be at most `pages_max` [class] at a time.
  [[nodiscard]] bool fits(std::uint64_t tokens, std::span<const std::uint32_t> pages_max) const;

  // The work that keeps the next page from retiring: what a history that does not fit waits for.
  // Nothing: no work does.
  [[nodiscard]] std::optional<Moment> awaited() const;

  // The first page of a layer that was not given back.
  [[nodiscard]] std::uint64_t first_page(std::size_t layer) const {
    return kept_[class_of_[layer]].first_page;
  }

  [[nodiscard]] HostBlock block(std::size_t layer, std::uint64_t page) const {
    const Kept& kept = kept_[class_of_[layer]];
    return kept.blocks[page - kept.first_page];
  }

  [[nodiscard]] Hazard& hazard(std::size_t layer, std::uint64_t page) {
    return hazards_[layer][page - first_page(layer)];
  }

  // Makes rows visible to later steps. `published` is the moment at which all their host copies are
  // complete. Allocates nothing behind a reserve(); nothing is committed where it throws.
  void commit(std::uint64_t tokens, const Moment& published);

  // Makes `tokens` rows visible that the host wrote itself, in an empty history: they are complete
  // whatever fails, commits before the history was emptied included.
  void load(std::uint64_t tokens);

  // Notes what is complete by now: with `reached` the last values of every lane. Keeps the list of
  // doubtful commits short.
  void prove(const Moment& reached);

  // The fewest tokens, but for none, that the history may be cut to.
  [[nodiscard]] std::uint64_t truncation_limit() const;

  // Forgets tokens from the end, down to truncation_limit() or to 0. Needs no copy: dead rows are
  // overwritten by the next append. To 0: release() follows where pages have retired.
  void truncate(std::uint64_t tokens);

  // After a failure, with `reached` the last values of every lane: back to the newest commit whose
  // host copies are complete. All pending work has settled, so hazards are cleared.
  void fall_back(const Moment& reached);

  [[nodiscard]] bool has_retired() const;

 private:
  struct Commit {
    std::uint64_t tokens = 0;
    Moment published;
  };

  // The pages of a class that are held.
  struct Kept {
    std::uint64_t window_tokens = 0;
    std::uint64_t kept_tokens = 0;
    std::vector<std::uint32_t> layers;
    std::uint64_t first_page = 0;
    std::uint64_t promised_page = 0;  // first that a truncation may still need
    std::deque<HostBlock> blocks;     // [page - first_page]
  };

  [[nodiscard]] std::uint64_t retired_before(const Kept& kept) const;
  [[nodiscard]] Moment before_reuse(const Kept& kept) const;
  void promise();

  std::uint32_t page_tokens_;
  std::uint64_t committed_tokens_ = 0;
  std::uint64_t durable_tokens_ = 0;         // known complete on the host
  std::vector<Commit> unproven_;             // newer commits, oldest first
  std::vector<Kept> kept_;                   // [class]
  std::vector<std::uint32_t> class_of_;      // [layer]
  std::vector<std::deque<Hazard>> hazards_;  // [layer][page - first_page], perhaps one to come
};

}  // namespace kvspan
