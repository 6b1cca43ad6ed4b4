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
#include <vector>

namespace kvspan {

// Invariants: blocks cover at least committed_tokens; rows at or past committed_tokens are dead,
// whatever they hold; a commit whose host copies failed is undone by fall_back. Thread class:
// SYNC(history).
class SequenceHistory {
 public:
  SequenceHistory(std::size_t layers, std::uint32_t page_tokens)
      : layers_(layers), page_tokens_(page_tokens) {}

  [[nodiscard]] std::uint64_t committed_tokens() const { return committed_tokens_; }

  [[nodiscard]] std::uint32_t page_tokens() const { return page_tokens_; }

  // Takes blocks until `tokens` fit, ahead of the step that writes them. Errors: host_memory; what
  // was taken stays and serves the next try.
  [[nodiscard]] Result<void> reserve(HostPages& pages, std::uint64_t tokens);

  // Gives every block back; nothing pending may name them.
  void release(HostPages& pages);

  [[nodiscard]] HostBlock block(std::uint64_t page) const { return blocks_[page]; }

  [[nodiscard]] Hazard& hazard(std::size_t layer, std::uint64_t page) {
    return hazards_[page * layers_ + layer];
  }

  // Makes rows visible to later steps. `published` is the moment at which all their host copies are
  // complete.
  void commit(std::uint64_t tokens, const Moment& published);

  // Makes `tokens` rows visible that the host wrote itself, in an empty history: they are complete
  // whatever fails, commits before the history was emptied included.
  void load(std::uint64_t tokens);

  // Notes what is complete by now: with `reached` the last values of every lane. Keeps the list of
  // doubtful commits short.
  void prove(const Moment& reached);

  // Forgets tokens from the end. Needs no copy: dead rows are overwritten by the next append.
  void truncate(std::uint64_t tokens);

  // After a failure, with `reached` the last values of every lane: back to the newest commit whose
  // host copies are complete. All pending work has settled, so hazards are cleared.
  void fall_back(const Moment& reached);

 private:
  struct Commit {
    std::uint64_t tokens = 0;
    Moment published;
  };

  std::size_t layers_;
  std::uint32_t page_tokens_;
  std::uint64_t committed_tokens_ = 0;
  std::uint64_t durable_tokens_ = 0;  // known complete on the host
  std::deque<Commit> unproven_;       // newer commits, oldest first
  std::vector<HostBlock> blocks_;     // [page]
  std::vector<Hazard> hazards_;       // [page, layer]
};

}  // namespace kvspan
