// SPDX-License-Identifier: Apache-2.0
// Points of the compute lane as it was before recoveries: whoever waits for one is told what became
// of it, though its fence is gone and the lane's later values pass it. Private to core/session.
// Read next: session.cpp.
#pragma once

#include "kvspan/queue.h"

#include <cstddef>
#include <cstdint>
#include <deque>

namespace kvspan {

// A value names one piece of work for good, so it says which lane a point is of, and the fence
// whether the point is the session's at all. Bounded: points from before the last kRecoveriesMax
// recoveries are as unknown as those of somebody else; nobody is told that a lost one was reached.
// Thread class: SYNC(points).
class PastPoints {
 public:
  static constexpr std::size_t kRecoveriesMax = 64;  // remembered

  enum class Answer {
    unknown,  // no point of a lane that ended
    reached,
    lost  // its work fell
  };

  // The lane that ends: its fence, of whose values those up to `reached` were, and none behind
  // `last`. It began where the one before it ended.
  void add(const kvspan_fence_t* fence, std::uint64_t reached, std::uint64_t last) {
    lanes_.push_back({fence, end_, reached, last});
    end_ = last;
    if (lanes_.size() > kRecoveriesMax) {
      lanes_.pop_front();
    }
  }

  [[nodiscard]] Answer answer(const kvspan_point_t& point) const {
    for (const Lane& lane : lanes_) {
      if (point.value > lane.after && point.value <= lane.last) {
        return point.fence != lane.fence     ? Answer::unknown
               : point.value <= lane.reached ? Answer::reached
                                             : Answer::lost;
      }
    }
    return Answer::unknown;
  }

  // The last value of all lanes that ended: behind it come those of the lane that is.
  [[nodiscard]] std::uint64_t end() const { return end_; }

  [[nodiscard]] std::size_t lanes() const { return lanes_.size(); }

 private:
  // Values (after, last].
  struct Lane {
    const kvspan_fence_t* fence;
    std::uint64_t after;
    std::uint64_t reached;
    std::uint64_t last;
  };

  std::deque<Lane> lanes_;  // ascending
  std::uint64_t end_ = 0;
};

}  // namespace kvspan
