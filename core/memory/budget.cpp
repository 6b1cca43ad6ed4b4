// SPDX-License-Identifier: Apache-2.0
// plan(): candidate layouts from wide prefill chunks to narrow ones, the first that fits wins.
// Where the link and a row's work are known, the best of those that fit for a whole prompt.
// Rooms: budget/request (what is wrong with a request), budget/scratch (bytes of a chunk width),
// budget/layouts (regions of an arena), budget/placing (ring and residents by the policy),
// budget/chunk (the width of prefill chunks), budget/phases (components by name), budget/backend
// (what a device that can be asked takes for itself), budget/refusal.
#include "kvspan/core/memory/budget.hpp"

#include "memory/budget/backend.hpp"
#include "memory/budget/chunk.hpp"
#include "memory/budget/layouts.hpp"
#include "memory/budget/phases.hpp"
#include "memory/budget/placing.hpp"
#include "memory/budget/refusal.hpp"
#include "memory/budget/request.hpp"
#include "memory/budget/rooms.hpp"
#include "memory/budget/scratch.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace kvspan {

const char* name(Phase phase) {
  return phase == Phase::prefill ? "prefill" : "decode";
}

const char* name(PlanMode mode) {
  return mode == PlanMode::resident ? "resident" : "streaming";
}

namespace {

// Scratch (states, accumulators, workspace) and tails may take at most this part of a streaming
// arena before the chunk is narrowed: the rest holds pages, which is what the arena is for.
constexpr std::uint64_t kScratchShare = 4;

// A chunk below this many rows is only taken when nothing wider fits.
constexpr std::uint32_t kNarrowRows = 64;

// Candidates in order, the narrowest last.
class Chooser {
 public:
  Chooser(const Basis& basis, const std::vector<Candidate>& candidates)
      : basis_(basis), candidates_(candidates) {}

  // The narrowest chunk in the smaller of its two layouts.
  [[nodiscard]] Plan least() const {
    Plan resident = resident_plan(candidates_.back());
    Plan streaming = minimum_plan(candidates_.back());
    return may_be_resident() && resident.total_bytes() <= streaming.total_bytes()
               ? with_phases(std::move(resident), candidates_.back())
               : with_phases(std::move(streaming), candidates_.back());
  }

  // The arena holds least().
  [[nodiscard]] std::optional<Plan> largest() const {
    const std::uint32_t wide = std::min(kNarrowRows, candidates_.front().prefill_rows);
    if (auto found = first_resident(wide)) {
      return found;
    }
    if (auto found = best_streaming()) {
      return found;
    }
    // Only a resident layout with a narrow chunk is left: a short context in a small arena.
    return first_resident(1);
  }

 private:
  [[nodiscard]] bool may_be_resident() const {
    return basis_.request.stream.resident_pages_max >= basis_.pages_a_sequence;
  }

  [[nodiscard]] bool fits(const Candidate& rows) const {
    const std::uint64_t arena_bytes = basis_.request.arena_bytes;
    const std::uint64_t scratch_bytes =
        rows.prefill.total_bytes() + rows.prefill_tails * basis_.slot_bytes;
    const bool narrow_enough =
        scratch_bytes <= arena_bytes / kScratchShare || &rows == &candidates_.back();
    return narrow_enough && minimum_plan(rows).total_bytes() <= arena_bytes;
  }

  template <class Layout>
  [[nodiscard]] Plan laid_out(const Candidate& rows, const Layout& layout) const {
    return takes_turns()
               ? with_rooms(
                     basis_, layout(rows.only(Phase::prefill)), layout(rows.only(Phase::decode)))
               : layout(rows);
  }

  [[nodiscard]] bool takes_turns() const { return basis_.request.phases_take_turns; }

  [[nodiscard]] Plan resident_plan(const Candidate& rows) const {
    return laid_out(rows, [this](const Candidate& of) { return resident_layout(basis_, of); });
  }

  [[nodiscard]] Plan minimum_plan(const Candidate& rows) const {
    return laid_out(rows, [this](const Candidate& of) { return streaming_minimum(basis_, of); });
  }

  // The most that fits, with its prompt; nothing where that takes longer than `most_ns`.
  [[nodiscard]] std::optional<Plan> streaming_plan(const Candidate& rows, double most_ns) const {
    if (!takes_turns()) {
      Plan next = streaming_layout(basis_, rows);
      return set_prompt(basis_, pool_of(rows), most_ns, next) ? std::optional(std::move(next))
                                                              : std::nullopt;
    }
    const Candidate of = rows.only(Phase::prefill);
    Plan prefill = room_layout(of);
    if (!set_prompt(basis_, pool_of(of), most_ns, prefill)) {
      return std::nullopt;
    }
    take_prompt_placement(of, prefill);
    return with_rooms(basis_, prefill, room_layout(rows.only(Phase::decode)));
  }

  // What ring and residents have together in the arena.
  [[nodiscard]] std::uint64_t pool_of(const Candidate& rows) const {
    const Plan least = streaming_minimum(basis_, rows);
    return pool_bytes(basis_, usable_arena_bytes(basis_) - least.total_bytes(), least);
  }

  // A phase alone in the arena: it may hold everything where the other one does not.
  [[nodiscard]] Plan room_layout(const Candidate& of) const {
    Plan resident = resident_layout(basis_, of);
    return may_be_resident() && resident.total_bytes() <= basis_.request.arena_bytes
               ? resident
               : streaming_layout(basis_, of);
  }

  // Prefill's room has the placement that is the best for its prompt, where it fits to the byte.
  void take_prompt_placement(const Candidate& of, Plan& prefill) const {
    const Plan as_placed = prefill;
    PromptPlan& prompt = prefill.prompt;
    if (prompt.time.chunks != 0 && prefill.mode == PlanMode::streaming) {
      Placement wanted = prompt.placement;
      wanted.ring_slots = std::max({wanted.ring_slots, 2U, wanted.group_pages});
      set_placement(basis_, of, wanted, prefill);
      if (prefill.total_bytes() > usable_arena_bytes(basis_)) {
        prefill = as_placed;
        prompt.time = prompt.as_placed;
      }
      prompt.placement = placement_of(prefill);
      prompt.as_placed = prompt.time;
    }
  }

  // The widest chunk that fits. Where a row's work is known, the narrowest of those that are
  // predicted the fastest for a whole prompt: what covers the stream takes as long as the work
  // itself, and wider ones are not faster.
  [[nodiscard]] std::optional<Plan> best_streaming() const {
    std::optional<Plan> best;
    for (const Candidate& rows : candidates_) {
      if (!fits(rows) || (best && !knows_rows(basis_.request.stream))) {
        continue;
      }
      const double most_ns =
          best ? best->prompt.time.time_ns : std::numeric_limits<double>::infinity();
      if (auto next = streaming_plan(rows, most_ns)) {
        best = with_phases(std::move(*next), rows);
      }
    }
    return best;
  }

  // Everything resident with the widest chunk of at least `rows_min` rows that fits.
  [[nodiscard]] std::optional<Plan> first_resident(std::uint32_t rows_min) const {
    for (const Candidate& rows : candidates_) {
      if (!may_be_resident() || rows.prefill_rows < rows_min) {
        continue;
      }
      Plan resident = resident_plan(rows);
      if (resident.total_bytes() <= basis_.request.arena_bytes) {
        return with_phases(std::move(resident), rows);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Plan with_phases(Plan found, const Candidate& rows) const {
    set_phases(basis_, rows, found);
    return found;
  }

  const Basis& basis_;
  const std::vector<Candidate>& candidates_;
};

void set_host_bytes(const Basis& basis, Plan& out) {
  const PlanRequest& request = basis.request;
  out.host_classes = basis.host_classes;
  for (const HostClass& of : basis.host_classes) {
    const std::uint64_t pages = kept_pages(request.context_tokens,
                                           of.kept_tokens,
                                           std::max(out.prefill_rows, out.decode_rows),
                                           request.geometry.page_tokens);
    const std::uint64_t blocks = request.sequences * pages;
    out.host_pages.push_back(static_cast<std::uint32_t>(pages));
    out.history_bytes += blocks * of.chunk.block_bytes;
    out.pinned_bytes += chunked_bytes(of.chunk, blocks);
    out.pinned_chunk_bytes += of.chunk.chunk_bytes;
  }
}

}  // namespace

std::uint64_t gap_pages(const StreamOptions& stream, std::uint64_t page_bytes) {
  constexpr std::uint64_t kNanoseconds = 1'000'000'000;
  // A gap of a minute at 1 TB/s: more is as good as no limit, and the product stays in 64 bits.
  constexpr std::uint64_t kGapMax = 60 * kNanoseconds;
  const std::uint64_t gap_ns =
      std::min(kGapMax, stream.gap_ns) + std::min(kGapMax, stream.jitter_ns);
  const std::uint64_t kilobytes_s = std::min<std::uint64_t>(stream.link_bytes_s / 1000, 1ULL << 30);
  const std::uint64_t bytes = kilobytes_s * ((gap_ns + 999) / 1000) / 1000;
  return page_bytes == 0 ? 0 : (bytes + page_bytes - 1) / page_bytes;
}

std::uint64_t visible_pages(std::uint64_t context_tokens,
                            std::uint64_t window_tokens,
                            std::uint32_t rows,
                            std::uint32_t page_tokens) {
  const std::uint64_t all =
      context_tokens / page_tokens + (context_tokens % page_tokens != 0 ? 1 : 0);
  if (window_tokens == 0 || window_tokens >= context_tokens) {
    return all;
  }
  // n tokens touch one page and another one for every page of tokens beyond the first token.
  const std::uint64_t further_tokens = window_tokens - 1 + (rows - 1);
  return std::min(all, (further_tokens + page_tokens - 1) / page_tokens + 1);
}

std::uint64_t kept_pages(std::uint64_t context_tokens,
                         std::uint64_t kept_tokens,
                         std::uint32_t rows,
                         std::uint32_t page_tokens) {
  const std::uint64_t two_steps = std::min<std::uint64_t>(2ULL * rows, UINT32_MAX);
  return visible_pages(
      context_tokens, kept_tokens, static_cast<std::uint32_t>(two_steps), page_tokens);
}

Result<Plan> plan(const PlanRequest& request) {
  if (request.backend_bytes) {
    return plan_beside_backend(request);
  }
  auto basis = basis_of(request);
  if (!basis) {
    return tl::unexpected(std::move(basis).error());
  }
  std::vector<Candidate> candidates;
  for (const std::uint32_t rows : row_ladder(request)) {
    auto next = candidate(*basis, rows);
    if (!next) {
      return tl::unexpected(std::move(next).error());
    }
    candidates.push_back(*next);
  }
  const Chooser chooser(*basis, candidates);
  Plan least = chooser.least();
  const std::uint64_t minimum_bytes = least.total_bytes();
  if (request.arena_bytes != 0 && request.arena_bytes < minimum_bytes) {
    return tl::unexpected(arena_too_small(request, least));
  }
  Plan found = std::move(least);
  if (request.arena_bytes != 0) {
    auto largest = chooser.largest();
    found = largest ? std::move(*largest) : std::move(found);
  }
  found.minimum_arena_bytes = minimum_bytes;
  set_host_bytes(*basis, found);
  found.predicted = predicted_step(*basis, found);
  Plan prefill = entered(found, Phase::prefill);
  if (prefill.prompt.time.chunks == 0) {  // the minimum, or everything resident
    (void)set_prompt(*basis,
                     prefill.ring_slots * prefill.slot_bytes,
                     std::numeric_limits<double>::infinity(),
                     prefill);
  }
  set_chunk_reason(*basis, found.prefill_rows < candidates.front().prefill_rows, prefill);
  found.prompt = std::move(prefill.prompt);
  if (found.regions.total_bytes() > request.allocation_bytes_max) {
    return tl::unexpected(allocation_too_large(request, found));
  }
  if (found.pinned_bytes > request.pinnable_bytes) {
    return tl::unexpected(too_little_pinnable(request, found));
  }
  return found;
}

}  // namespace kvspan
