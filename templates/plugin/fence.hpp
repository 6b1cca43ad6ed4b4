// SPDX-License-Identifier: Apache-2.0
// A timeline fence: a value that only grows, or a failure for good. The device's mutex guards all
// of it. Replace `value` by your device's timeline semaphore or event counter; failures stay here,
// few devices have them.
#pragma once

#include "kvspan/fence.h"

#include "plugin.hpp"

#include <cstdint>

namespace mine {

struct Queue;

// Why a fence failed. `text` is a literal: it outlives everything.
struct Cause {
  kvspan_result_t code = KVSPAN_OK;  // OK: it has not failed
  uint64_t submit_id = 0;            // of the submit that failed; 0: the host failed the fence
  const char* text = "";
};

struct Fence {
  Device& device;
  uint64_t value;     // reached
  uint64_t promised;  // the highest that accepted work will signal, or value
  Cause cause{};
  const Queue* signaller = nullptr;  // whose work made the promises
  uint64_t promises = 0;             // signals of pending work
  uint64_t uses = 0;                 // waits and signals of pending work
  uint64_t waiters = 0;              // threads inside wait
};

struct Point {
  Fence* fence;
  uint64_t value;

  bool reached() const { return fence->value >= value; }

  bool failed() const { return !reached() && fence->cause.code != KVSPAN_OK; }
};

inline Fence* fence_of(kvspan_fence_t* handle) {
  return reinterpret_cast<Fence*>(handle);
}

}  // namespace mine
