// SPDX-License-Identifier: Apache-2.0
// What plan()'s rooms hand each other: facts of the request, scratch of a phase, a candidate chunk.
// Private to core/memory. Read next: scratch.hpp, layouts.hpp, refusal.hpp.
#pragma once

#include "kvspan/core/history/host_chunk.hpp"
#include "kvspan/core/memory/budget.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvspan {

// Far above any machine: bytes of a whole history, of all demands, of all split states. Everything
// that the plan adds up stays below 2^64 then.
inline constexpr std::uint64_t kPlannedBytesMax = 1ULL << 60;

// Regions start at multiples of this: the largest memory alignment that a device may ask for.
inline constexpr std::uint64_t kRegionAlignment = 256;

// Facts of the request that do not change while candidates are tried. Borrows the request.
struct Basis {
  const PlanRequest& request;
  std::vector<PageLayout> pages;             // [layer]
  std::vector<std::uint32_t> visible_pages;  // [layer]
  std::vector<HostClass> host_classes;
  std::uint64_t slot_bytes = 0;
  std::uint32_t pages_a_sequence = 0;
  std::uint64_t reserved_bytes = 0;  // demands without a phase
  // Of a sequence's resident part, so that it can be cut in two where phases take turns.
  std::uint64_t cut_bytes = 0;
};

// What one phase needs at a number of rows, beside pages.
struct Scratch {
  std::uint64_t states_bytes = 0;
  std::uint64_t accumulators_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t splits_in_flight = 1;

  [[nodiscard]] std::uint64_t total_bytes() const {
    return states_bytes + accumulators_bytes + workspace_bytes;
  }
};

// A chunk width that prefill could have, and what follows from it.
struct Candidate {
  std::uint32_t prefill_rows = 0;
  Scratch prefill;
  Scratch decode;
  std::uint32_t prefill_tails = 0;
  std::uint32_t decode_tails = 0;
  std::optional<Phase> alone{};  // the only phase, where they take turns

  [[nodiscard]] std::uint32_t tail_slots() const {
    return prefill_tails > decode_tails ? prefill_tails : decode_tails;
  }

  // As if a phase were the only one.
  [[nodiscard]] Candidate only(Phase phase) const {
    return phase == Phase::prefill
               ? Candidate{prefill_rows, prefill, prefill, prefill_tails, prefill_tails, phase}
               : Candidate{prefill_rows, decode, decode, decode_tails, decode_tails, phase};
  }
};

}  // namespace kvspan
