// SPDX-License-Identifier: Apache-2.0
// Values of the compute lane that no work reached before a recovery: whoever waits for one is told,
// since the lane's later work passes it. Private to core/session. Read next: session.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvspan {

// Values are added in ascending order. Bounded: of recoveries long ago, values between their lost
// ones count as lost too; nobody is told that a lost one was reached. Thread class: SYNC(points).
class LostPoints {
 public:
  static constexpr std::size_t kRecoveriesMax = 64;  // told apart

  // The values (after, until].
  void add(std::uint64_t after, std::uint64_t until) {
    if (ranges_.size() == kRecoveriesMax) {
      ranges_[1].after = ranges_[0].after;
      ranges_.erase(ranges_.begin());
    }
    ranges_.push_back({after, until});
  }

  [[nodiscard]] bool contains(std::uint64_t value) const {
    for (const Range& range : ranges_) {
      if (value > range.after && value <= range.until) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] std::size_t ranges() const { return ranges_.size(); }

 private:
  struct Range {
    std::uint64_t after;
    std::uint64_t until;
  };

  std::vector<Range> ranges_;  // ascending
};

}  // namespace kvspan
