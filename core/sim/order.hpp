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
    const Access* const other = conflict_in(writes_, begin, end, known);
    return other != nullptr || !writes ? other : conflict_in(reads_, begin, end, known);
  }

  // What a work touches in one piece is one access.
  void add(const Access& access) {
    std::vector<Access>& live = access.writes ? writes_ : reads_;
    if (!live.empty() && live.back().queue == access.queue && live.back().number == access.number &&
        access.begin <= live.back().end && live.back().begin <= access.end) {
      live.back().begin = std::min(live.back().begin, access.begin);
      live.back().end = std::max(live.back().end, access.end);
    } else {
      live.push_back(access);
    }
  }

  // Forgets what the host has seen the end of: everything submitted from now on comes behind it.
  void forget(const Known& host) {
    for (std::vector<Access>* const live : {&reads_, &writes_}) {
      std::erase_if(*live,
                    [&](const Access& access) { return host.covers(access.queue, access.number); });
    }
  }

 private:
  static const Access* conflict_in(const std::vector<Access>& live,
                                   std::uint64_t begin,
                                   std::uint64_t end,
                                   const Known& known) {
    for (const Access& access : live) {
      if (access.begin < end && begin < access.end && !known.covers(access.queue, access.number)) {
        return &access;
      }
    }
    return nullptr;
  }

  std::vector<Access> reads_;
  std::vector<Access> writes_;
};

}  // namespace kvspan::sim
