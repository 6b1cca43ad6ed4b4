// SPDX-License-Identifier: Apache-2.0
// Timeline fences. All fields are guarded by the device's mutex. Threads that wait share
// Device::settled, since a wait may name many fences; they say what they want of each, and are
// woken when a fence has come to that, not with every value. Read next: fence.cpp.
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
  Queue* signaller = nullptr;    // of the promises
  uint64_t promise_count = 0;    // accepted signals not settled yet
  uint64_t uses = 0;             // waits and signals of pending work
  uint64_t waiters = 0;          // host threads that wait on it
  uint64_t wanted = UINT64_MAX;  // the smallest value that a sleeping thread waits for
  Fence* next = nullptr;         // of Device::fences
  Fence* previous = nullptr;

  [[nodiscard]] bool reached(uint64_t point) const { return value >= point; }

  [[nodiscard]] bool failed() const { return cause.code != KVSPAN_OK; }

  // Reaches a value unless the fence has failed.
  void reach(uint64_t point) {
    if (!failed() && point > value) {
      value = point;
    }
  }

  // Said before each sleep on Device::settled for this fence.
  void want(uint64_t point) { wanted = point < wanted ? point : wanted; }

  // Whether Device::settled has to be notified after a change: those who wake say anew what they
  // want.
  [[nodiscard]] bool wakes() {
    if (wanted == UINT64_MAX || (value < wanted && !failed())) {
      return false;
    }
    wanted = UINT64_MAX;
    return true;
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
