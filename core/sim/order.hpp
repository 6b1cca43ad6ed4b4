// SPDX-License-Identifier: Apache-2.0
// What is ordered behind what: a count for each queue, joined along waits and along what the host
// has seen. Holds for every legal timing, not for the one that was simulated. Private to core/sim.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvspan::sim {

// Queues that can be alive at once: three of a session, three of its successor, the engine's.
inline constexpr std::size_t kQueuesMax = 8;

// For every place of a queue, how many of its works are known to be over.
struct Known {
  std::array<std::uint32_t, kQueuesMax> works{};

  void join(const Known& other) {
    for (std::size_t queue = 0; queue < kQueuesMax; ++queue) {
      works[queue] = std::max(works[queue], other.works[queue]);
    }
  }

  [[nodiscard]] bool covers(std::size_t queue, std::uint32_t number) const {
    return works[queue] >= number;
  }

  [[nodiscard]] bool covers(const Known& other) const {
    for (std::size_t queue = 0; queue < kQueuesMax; ++queue) {
      if (works[queue] < other.works[queue]) {
        return false;
      }
    }
    return true;
  }
};

// Bytes [begin, end) of a memory that work number `number` of place `queue` touches.
struct Access {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t queue = 0;
  std::uint32_t number = 0;
  bool writes = false;
};

// The accesses of one memory that somebody may still have to be ordered behind.
class Accesses {
 public:
  // The first access that conflicts with this one and is not known to be over; null: none.
  [[nodiscard]] const Access* conflict(std::uint64_t begin,
                                       std::uint64_t end,
                                       bool writes,
                                       const Known& known) const {
    for (const Access& access : live_) {
      if (access.begin < end && begin < access.end && (writes || access.writes) &&
          !known.covers(access.queue, access.number)) {
        return &access;
      }
    }
    return nullptr;
  }

  void add(const Access& access) { live_.push_back(access); }

  // Forgets what the host has seen the end of: everything submitted from now on comes behind it.
  void forget(const Known& host) {
    live_.erase(std::remove_if(
                    live_.begin(),
                    live_.end(),
                    [&](const Access& access) { return host.covers(access.queue, access.number); }),
                live_.end());
  }

 private:
  std::vector<Access> live_;
};

}  // namespace kvspan::sim
