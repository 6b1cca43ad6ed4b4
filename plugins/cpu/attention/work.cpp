// SPDX-License-Identifier: Apache-2.0
// How many units a submit has, how large its tiles are, and handing them to the team.
// Read first: work.hpp, units.hpp.
#include "attention/work.hpp"

#include "attention/rules.hpp"
#include "attention/tiles.hpp"
#include "attention/units.hpp"

namespace kvspan::cpu {
namespace {

struct Plan {
  uint64_t units;
  bool side_by_side;  // of run
};

Plan plan_of(const Context& context, uint32_t threads) {
  const AttentionBody& body = context.body;
  if (body.call == AttentionCall::fold || body.call == AttentionCall::finish) {
    return {total_chunks(context), false};
  }
  uint64_t units = 0;
  for (uint64_t i = 0; body.call == AttentionCall::advance && i < body.item_count; ++i) {
    units += head_tiles(context, body.entries[body.advances[i].entry]);
  }
  uint64_t split_units = 0;
  bool fits = body.parallel_splits && threads > 1;
  for (uint64_t i = 0; body.call == AttentionCall::run && i < body.entry_count; ++i) {
    const uint64_t tiles = head_tiles(context, body.entries[i]);
    const uint64_t splits = tiles == 0 ? 0 : splits_of(body.entries[i]).count;
    fits = fits && splits <= kDecodeSplits + 1;
    units += tiles;
    split_units += tiles * splits;
  }
  const bool side_by_side = fits && units < 4 * uint64_t{threads} && split_units > units;
  return {side_by_side ? split_units : units, side_by_side};
}

// The largest tile that still gives every thread a few units; small tiles dequantise more often.
uint64_t choose_tile(Context context, uint32_t threads) {
  constexpr uint64_t kTilePairsMin = 48;
  context.tile_pairs = kPairsMax;
  while (context.tile_pairs > kTilePairsMin && threads > 1 &&
         plan_of(context, threads).units < 4 * uint64_t{threads}) {
    context.tile_pairs /= 2;
  }
  return context.tile_pairs;
}

using Unit = void (*)(void* context, uint64_t index, Scratch& scratch);

Unit unit_of(AttentionCall call, const Plan& plan) {
  switch (call) {
    case AttentionCall::advance:
      return advance_unit;
    case AttentionCall::fold:
      return fold_unit;
    case AttentionCall::finish:
      return finish_unit;
    case AttentionCall::run:
      break;
  }
  return plan.side_by_side ? split_unit : run_unit;
}

}  // namespace

kvspan_result_t run_attention(const Execution& execution, const void* opaque) {
  const AttentionBody& body = *static_cast<const AttentionBody*>(opaque);
  Team& team = execution.device.team;
  Context context{body, best_kernels(), kPairsMax};
  context.tile_pairs = choose_tile(context, team.threads());
  const Plan plan = plan_of(context, team.threads());
  const auto does = [&](Unit unit, uint64_t count) {
    execution.device.counters.launches.fetch_add(count, std::memory_order_relaxed);
    return team.run({count, unit, &context, execution.cancel_word}) == JobEnd::complete;
  };
  bool complete = does(unit_of(body.call, plan), plan.units);
  if (complete && plan.side_by_side) {
    complete = does(fold_splits_unit, total_chunks(context));
  }
  return complete ? KVSPAN_OK : KVSPAN_E_CANCELLED;
}

}  // namespace kvspan::cpu
