// SPDX-License-Identifier: Apache-2.0
// Stages are laid out in pools without an end, so that what each needs comes out; the most counts.
#include "kvspan/core/memory/stage_budget.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/requirement/form.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace kvspan {
namespace {

constexpr std::uint64_t kNoEnd = UINT64_MAX;

Error past_counting(const std::string& thing) {
  return stage_error(Errc::too_large, thing, "needs more bytes than 64 bits can count");
}

// Adds known bytes; counts the others; refuses what makes no sense.
Result<void> add_outside(CostRow& row, std::span<const OutsideBytes> outside) {
  std::map<std::string, const OutsideBytes*> earlier;
  for (const OutsideBytes& each : outside) {
    const std::string thing = row.name + ", " + each.name;
    const auto wrong = [&thing](const char* why) {
      return tl::unexpected(stage_error(Errc::invalid_argument, thing, why));
    };
    if (each.name.empty() || static_cast<std::uint32_t>(each.kind) >= kMemoryKindCount) {
      return wrong("has no name or no kind; give it both");
    }
    if (!each.part_of.empty()) {
      const auto whole = earlier.find(each.part_of);
      if (whole == earlier.end() || !whole->second->part_of.empty()) {
        return wrong("is part of what is not listed before it by its own bytes");
      }
      if (whole->second->kind != each.kind) {
        return wrong("is part of another kind of memory");
      }
      if (!each.bytes || !whole->second->bytes || *each.bytes > *whole->second->bytes) {
        return wrong("is part of what is smaller, or one of them is not known");
      }
    } else if (each.bytes) {
      std::uint64_t& sum = row.outside_bytes[static_cast<std::size_t>(each.kind)];
      const auto more = checked_add(sum, *each.bytes);
      if (!more) {
        return tl::unexpected(past_counting(thing));
      }
      sum = *more;
    } else {
      ++row.unknown;
    }
    if (!earlier.emplace(each.name, &each).second) {
      return wrong("is listed twice; name each part by itself");
    }
  }
  return {};
}

Result<CostRow> row_of(const LiveStage& stage,
                       std::span<const MemoryPool> pools,
                       std::span<const OutsideBytes> outside) {
  CostRow row;
  row.name = "stage " + std::to_string(stage.id);
  const auto layout = lay_out(stage, pools, {}, LayoutSizes::minimum);
  if (!layout) {
    return tl::unexpected(layout.error());
  }
  for (const PoolLayout& each : layout->pools) {
    PoolCost cost{each.pool, each.base_alignment, 0, 0};
    cost.pool.capacity_bytes = each.needed_bytes;
    for (const Region& region : each.regions) {
      cost.payload_bytes += region.bytes;
    }
    cost.padding_bytes = each.needed_bytes - cost.payload_bytes;
    row.pools.push_back(cost);
  }
  if (auto added = add_outside(row, outside); !added) {
    return tl::unexpected(std::move(added).error());
  }
  return row;
}

// Both stages at once: pools share their parent, so the larger; outside the sum, each name once.
Result<CostRow> row_of(const ChangeCost& change,
                       const std::map<std::uint64_t, CostRow>& rows,
                       std::span<const StageCost> stages) {
  CostRow row;
  row.name = "change " + std::to_string(change.from) + " to " + std::to_string(change.to);
  const auto from = rows.find(change.from);
  const auto to = rows.find(change.to);
  if (from == rows.end() || to == rows.end()) {
    return tl::unexpected(
        stage_error(Errc::invalid_argument, row.name, "names a stage that is not listed"));
  }
  row.pools = to->second.pools;
  for (std::size_t pool = 0; pool < row.pools.size(); ++pool) {
    const PoolCost& other = from->second.pools[pool];
    const std::uint64_t base = std::max(row.pools[pool].base_alignment, other.base_alignment);
    if (other.pool.capacity_bytes > row.pools[pool].pool.capacity_bytes) {
      row.pools[pool] = other;
    }
    row.pools[pool].base_alignment = base;
  }
  std::vector<OutsideBytes> together;
  for (const std::uint64_t of : {change.from, change.to}) {
    const auto stage = std::find_if(
        stages.begin(), stages.end(), [of](const StageCost& each) { return each.stage == of; });
    for (const OutsideBytes& each : stage->outside) {
      const auto there = std::find_if(together.begin(), together.end(), [&](const auto& other) {
        return other.name == each.name && other.kind == each.kind;
      });
      if (there == together.end()) {
        together.push_back(each);
      } else {  // the same thing in both stages: as large as the larger
        there->bytes = there->bytes && each.bytes
                           ? std::optional(std::max(*there->bytes, *each.bytes))
                           : std::nullopt;
      }
    }
  }
  together.insert(together.end(), change.outside.begin(), change.outside.end());
  if (auto added = add_outside(row, together); !added) {
    return tl::unexpected(std::move(added).error());
  }
  return row;
}

Result<void> check_list(const StagePlan& plan, std::span<const StageCost> stages) {
  std::set<std::uint64_t> listed;
  for (const StageCost& stage : stages) {
    if (!plan.stage(stage.stage) || !listed.insert(stage.stage).second) {
      return tl::unexpected(stage_error(Errc::invalid_argument,
                                        "stage " + std::to_string(stage.stage),
                                        "is listed twice, or is none of the plan"));
    }
  }
  for (const LiveStage& stage : plan.stages()) {
    if (!listed.contains(stage.id)) {
      return tl::unexpected(stage_error(Errc::invalid_argument,
                                        "stage " + std::to_string(stage.id),
                                        "is planned, but its cost is not listed"));
    }
  }
  return {};
}

}  // namespace

Result<StageBudget> budget_stages(const StagePlan& plan,
                                  std::span<const MemoryPool> pools,
                                  std::span<const StageCost> stages,
                                  std::span<const ChangeCost> changes) {
  if (auto right = check_list(plan, stages); !right) {
    return tl::unexpected(std::move(right).error());
  }
  std::vector<MemoryPool> endless(pools.begin(), pools.end());
  for (MemoryPool& pool : endless) {
    pool.capacity_bytes = kNoEnd;
  }
  StageBudget budget;
  std::map<std::uint64_t, CostRow> by_stage;
  for (const StageCost& stage : stages) {
    auto row = row_of(plan.stage(stage.stage).value(), endless, stage.outside);
    if (!row) {
      return tl::unexpected(std::move(row).error());
    }
    by_stage.emplace(stage.stage, *row);
    budget.rows.push_back(std::move(*row));
  }
  for (const ChangeCost& change : changes) {
    auto row = row_of(change, by_stage, stages);
    if (!row) {
      return tl::unexpected(std::move(row).error());
    }
    budget.rows.push_back(std::move(*row));
  }
  for (std::size_t pool = 0; pool < endless.size(); ++pool) {
    ParentNeed parent{endless[pool], endless[pool].alignment};
    parent.pool.capacity_bytes = 0;
    for (const CostRow& row : budget.rows) {
      const PoolCost& cost = row.pools[pool];
      parent.pool.capacity_bytes = std::max(parent.pool.capacity_bytes, cost.pool.capacity_bytes);
      parent.base_alignment = std::max(parent.base_alignment, cost.base_alignment);
    }
    budget.parents.push_back(parent);
  }
  return budget;
}

std::uint64_t StageBudget::peak_bytes(MemoryKind kind) const {
  std::uint64_t peak = 0;
  for (const CostRow& row : rows) {
    peak = std::max(peak, row.outside_bytes[static_cast<std::size_t>(kind)]);
  }
  for (const ParentNeed& parent : parents) {  // held all the time, whatever a stage takes of it
    const std::uint64_t bytes = parent.pool.kind == kind ? parent.pool.capacity_bytes : 0;
    peak = checked_add(peak, bytes).value_or(UINT64_MAX);
  }
  return peak;
}

bool StageBudget::has_unknown() const {
  return std::any_of(rows.begin(), rows.end(), [](const CostRow& row) { return row.unknown != 0; });
}

std::string StageBudget::text() const {
  std::string lines;
  for (const CostRow& row : rows) {
    for (const PoolCost& cost : row.pools) {
      lines += row.name + ": " + kvspan::name(cost.pool.kind) + " of domain " +
               std::to_string(cost.pool.domain) + ", " + std::to_string(cost.payload_bytes) +
               " bytes and " + std::to_string(cost.padding_bytes) + " of padding, aligned to " +
               std::to_string(cost.base_alignment) + "\n";
    }
    for (std::uint32_t kind = 0; kind < kMemoryKindCount; ++kind) {
      if (row.outside_bytes[kind] != 0) {
        lines += row.name + ": " + kvspan::name(static_cast<MemoryKind>(kind)) + " outside, " +
                 std::to_string(row.outside_bytes[kind]) + " bytes\n";
      }
    }
    if (row.unknown != 0) {
      lines += row.name + ": " + std::to_string(row.unknown) + " of unknown size\n";
    }
  }
  for (const ParentNeed& parent : parents) {
    lines += std::string("parent: ") + kvspan::name(parent.pool.kind) + " of domain " +
             std::to_string(parent.pool.domain) + ", " +
             std::to_string(parent.pool.capacity_bytes) + " bytes aligned to " +
             std::to_string(parent.base_alignment) + "\n";
  }
  return lines;
}

Residual reconcile(const StageBudget& budget, MemoryKind kind, std::uint64_t observed_bytes) {
  const std::uint64_t planned = budget.peak_bytes(kind);
  return {kind,
          planned,
          observed_bytes,
          observed_bytes > planned ? observed_bytes - planned : 0,
          planned > observed_bytes ? planned - observed_bytes : 0};
}

}  // namespace kvspan
