// SPDX-License-Identifier: Apache-2.0
// A link as an operator asks for it (README.md): what a copy on an upload or download queue takes
// at least, by the steady clock. Each direction is a line that its queues share and that does one
// copy after another. Pure; the device's mutex guards a line that queues use. Who waits:
// worker.cpp.
#pragma once

#include "kvspan/device.h"

#include <chrono>
#include <cstdint>

namespace kvspan::cpu {

using Clock = std::chrono::steady_clock;

// None of both: copies are as fast as the processor makes them.
struct LinkModel {
  uint64_t bytes_s = 0;  // of each direction; 0 = bytes take no time
  uint64_t copy_ns = 0;  // of a submit, before its first byte

  [[nodiscard]] bool is_there() const { return bytes_s != 0 || copy_ns != 0; }

  // Of one submit, at most 73 years. No bytes take no time.
  [[nodiscard]] Clock::duration time_of(uint64_t bytes) const;
};

// One direction.
class LinkLine {
 public:
  // When a copy ends that is ready since `ready`: it begins then or where the copies before it end.
  Clock::time_point take(Clock::time_point ready, Clock::duration lasts) {
    free_ = (ready > free_ ? ready : free_) + lasts;
    return free_;
  }

  // A copy that was to end at `end` ended now: what comes next need not wait for its rest, unless
  // it has its place already.
  void give_back(Clock::time_point end, Clock::time_point now) {
    free_ = free_ == end && now < end ? now : free_;
  }

 private:
  Clock::time_point free_{};
};

// The lines of a device.
class LinkLines {
 public:
  // nullptr where copies on a queue of that role do not cross the link.
  [[nodiscard]] LinkLine* of(uint32_t role) {
    return role == KVSPAN_ROLE_UPLOAD ? &up_ : role == KVSPAN_ROLE_DOWNLOAD ? &down_ : nullptr;
  }

 private:
  LinkLine up_;
  LinkLine down_;
};

}  // namespace kvspan::cpu
