// SPDX-License-Identifier: Apache-2.0
// Timeline fences. All fields are guarded by the device's mutex; every change notifies
// Device::settled, which all waiting threads share: a wait may name many fences. Read next:
// fence.cpp.
#pragma once

#include "kvspan/fence.h"

#include "device.hpp"

#include <cstdint>

namespace kvspan::cuda {

// Why a fence failed, for good.
struct Cause {
  kvspan_result_t code = KVSPAN_OK;  // OK = it has not failed
  uint64_t submit_id = 0;            // the submit that failed; 0 where the host failed the fence
  const char* text = "";             // a sentence; lives as long as the plugin
  int32_t native = 0;                // CUDA's code; 0 = none
};

inline constexpr const char* kLostText = "the device was lost before this work settled";
inline constexpr const char* kCancelledText = "the cancel word was set before this work ended";
inline constexpr const char* kWaitFailedText = "a point that this work waited for failed";

struct Fence {
  Fence(Device& owner, uint64_t initial) : device(owner), value(initial), promised(initial) {}

  Device& device;
  uint64_t value;     // reached
  uint64_t promised;  // highest that an accepted submit signals, or value
  Cause cause;
  Queue* signaller = nullptr;  // of the promises
  uint64_t promise_count = 0;  // accepted signals not settled yet
  uint64_t uses = 0;           // waits and signals of pending work
  uint64_t waiters = 0;        // host threads that wait on it
  Fence* next = nullptr;       // of Device::fences
  Fence* previous = nullptr;

  [[nodiscard]] bool reached(uint64_t point) const { return value >= point; }

  [[nodiscard]] bool failed() const { return cause.code != KVSPAN_OK; }

  // Reaches a value unless the fence has failed.
  void reach(uint64_t point) {
    if (!failed() && point > value) {
      value = point;
    }
  }

  // Keeps the first cause.
  void fail(const Cause& why) {
    if (!failed()) {
      cause = why;
    }
  }
};

struct Point {
  Fence* fence;
  uint64_t value;
};

inline Fence* fence_of(kvspan_fence_t* handle) {
  return reinterpret_cast<Fence*>(handle);
}

inline kvspan_fence_t* handle_of(Fence* fence) {
  return reinterpret_cast<kvspan_fence_t*>(fence);
}

// The error of a failed fence, ASYNC; returns its code.
kvspan_result_t report_cause(const Device& device,
                             const Cause& cause,
                             kvspan_error_t* error,
                             const char* where) noexcept;

}  // namespace kvspan::cuda
