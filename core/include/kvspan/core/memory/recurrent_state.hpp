// SPDX-License-Identifier: Apache-2.0
// Bytes of a hybrid model's recurrent state and of the snapshots that rolling it back needs. Sizes
// only: the state is the engine's. Read next: budget.hpp, whose demands carry such bytes.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>

namespace kvspan {

struct RecurrentState {
  std::uint64_t layer_bytes = 0;
  std::uint32_t layers = 0;
  std::uint32_t depth = 0;  // tokens that can be taken back; 0 keeps no snapshot
};

struct RecurrentBytes {
  std::uint64_t state_bytes = 0;     // current, all layers, on the device
  std::uint64_t snapshot_bytes = 0;  // depth of them, on the host
  std::uint64_t stage_bytes = 0;     // on the device: two layers' snapshots of all depths in flight

  // What the same costs where snapshots stay beside the state.
  [[nodiscard]] std::uint64_t unstaged_bytes() const { return state_bytes + snapshot_bytes; }
};

// Exact. Errors: too_large past 64 bits.
[[nodiscard]] Result<RecurrentBytes> recurrent_bytes(const RecurrentState& state);

}  // namespace kvspan
