// SPDX-License-Identifier: Apache-2.0
// Products of a recurrent state's sizes.
#include "kvspan/core/memory/recurrent_state.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <optional>
#include <string>

namespace kvspan {

Result<RecurrentBytes> recurrent_bytes(const RecurrentState& state) {
  constexpr std::uint64_t kStageSlots = 2;
  const auto all = checked_mul(state.layer_bytes, state.layers);
  const auto snapshots = all ? checked_mul(*all, state.depth) : std::nullopt;
  const auto depth = checked_mul(state.layer_bytes, state.depth);
  const auto stage = depth ? checked_mul(*depth, kStageSlots) : std::nullopt;
  if (!snapshots || !stage || !checked_add(*all, *snapshots)) {
    return tl::unexpected(error_of(
        Errc::too_large,
        "recurrent state of " + std::to_string(state.layers) + " layers of " +
            std::to_string(state.layer_bytes) + " bytes with depth " + std::to_string(state.depth) +
            " takes more bytes than 64 bits can count; use a smaller depth",
        "snapshots"));
  }
  return RecurrentBytes{*all, *snapshots, *stage};
}

}  // namespace kvspan
