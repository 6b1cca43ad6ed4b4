// SPDX-License-Identifier: Apache-2.0
// What serial stages cost together: each pool the most that any stage needs of it, beside it what
// lies outside, known or not, and what a change holds twice. Told, compared with what was seen.
// Not the sizes of a geometry: those are budget.hpp's plan().
// Read next: stage_layout.hpp.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/requirement.hpp"
#include "kvspan/core/memory/stage_layout.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvspan {

// Bytes that no pool has: weights, a runtime's own, a saved copy.
struct OutsideBytes {
  std::string name;
  MemoryKind kind = MemoryKind::device;
  std::optional<std::uint64_t> bytes;  // nothing: not known
  // Named: these are bytes of an earlier one in the list, of the same kind, known and large enough;
  // they are not counted again.
  std::string part_of = {};
};

// A stage and what lies outside while it runs.
struct StageCost {
  std::uint64_t stage = 0;
  std::vector<OutsideBytes> outside = {};
};

// A change holds both stages' outside bytes that differ, and these.
struct ChangeCost {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::vector<OutsideBytes> outside = {};
};

struct PoolCost {
  MemoryPool pool;                   // capacity_bytes: what the stage needs, at its minimum
  std::uint64_t base_alignment = 1;  // of the parent's first byte, at least
  std::uint64_t payload_bytes = 0;   // without padding
  std::uint64_t padding_bytes = 0;
};

// What one parent must be, to hold every row.
struct ParentNeed {
  MemoryPool pool;                   // as lay_out() and an arena take it
  std::uint64_t base_alignment = 1;  // of its first byte, at least
};

struct CostRow {
  std::string name;  // "stage 3", "change 1 to 3"
  std::vector<PoolCost> pools;
  std::array<std::uint64_t, kMemoryKindCount> outside_bytes{};  // [kind] known ones
  std::uint32_t unknown = 0;                                    // how many are not
};

struct StageBudget {
  std::vector<CostRow> rows;
  std::vector<ParentNeed> parents;  // the least that does for all rows, a pool

  // Of a kind: the parents, held all along, and the most known outside bytes of any row. Past 64
  // bits: UINT64_MAX.
  [[nodiscard]] std::uint64_t peak_bytes(MemoryKind kind) const;

  // Whether something of a row is not known, so that peaks are lower bounds.
  [[nodiscard]] bool has_unknown() const;

  // A line a row and part, for people and for comparing runs.
  [[nodiscard]] std::string text() const;
};

// `pools` say domain, kind and alignment; their capacity is what comes out. Minima count, since
// what is elastic can be had with less. Errc::invalid_argument: a stage of the plan that is not
// listed, or twice, or none of the plan; an outside name twice or empty, or part of what it cannot
// be. lay_out()'s for a stage; too_large past 64 bits.
[[nodiscard]] Result<StageBudget> budget_stages(const StagePlan& plan,
                                                std::span<const MemoryPool> pools,
                                                std::span<const StageCost> stages,
                                                std::span<const ChangeCost> changes = {});

// What was seen of a kind against the budget's peak.
struct Residual {
  MemoryKind kind = MemoryKind::device;
  std::uint64_t planned_bytes = 0;
  std::uint64_t observed_bytes = 0;
  std::uint64_t unclassified_bytes = 0;  // seen beyond the plan: somebody else's, or forgotten
  std::uint64_t unused_bytes = 0;        // planned and not seen
};

[[nodiscard]] Residual reconcile(const StageBudget& budget,
                                 MemoryKind kind,
                                 std::uint64_t observed_bytes);

}  // namespace kvspan
