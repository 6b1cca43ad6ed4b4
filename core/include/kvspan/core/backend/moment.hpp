// SPDX-License-Identifier: Apache-2.0
// When something is done: one timeline value for each of core's three lanes, and the hazards of a
// physical range made of two such moments. Not here: submitting (lane.hpp). Read next: lane.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvspan {

// Core's lanes. Each has one queue and one timeline fence of its own; the backend may alias their
// queues.
enum class LaneId : std::uint8_t { compute, upload, download };
inline constexpr std::size_t kLaneCount = 3;
inline constexpr std::array<LaneId, kLaneCount> kLanes = {
    LaneId::compute, LaneId::upload, LaneId::download};

// The point in time at which, for each lane, its fence has reached that value. 0 = always.
struct Moment {
  std::array<std::uint64_t, kLaneCount> values{};

  [[nodiscard]] static Moment at(LaneId lane, std::uint64_t value) {
    Moment moment;
    moment.values[static_cast<std::size_t>(lane)] = value;
    return moment;
  }

  [[nodiscard]] std::uint64_t of(LaneId lane) const {
    return values[static_cast<std::size_t>(lane)];
  }

  void merge(const Moment& other) {
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      values[lane] = std::max(values[lane], other.values[lane]);
    }
  }
};

// Who touched a physical range last. Kept per slot, resident page and host page, never per logical
// page: two pages that follow each other in one slot are ordered by the slot.
struct Hazard {
  Moment written;
  Moment read;

  // What a new reader waits for.
  [[nodiscard]] Moment before_read() const { return written; }

  // What a new writer waits for.
  [[nodiscard]] Moment before_write() const {
    Moment moment = written;
    moment.merge(read);
    return moment;
  }
};

}  // namespace kvspan
