// SPDX-License-Identifier: Apache-2.0
// Read first: link_rate.hpp.
#include "kvspan/bench/link_rate.hpp"

#include "kvspan/bench/spread.hpp"

#include "upload_train.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvspan::bench {

Result<double> link_rate(const Backend& backend) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  constexpr double kCopySeconds = 0.02;  // at most, so that a slow link does not take minutes
  constexpr int kCopies = 4;
  auto copies = UploadTrain::create(backend, 64 * kMiB);
  if (!copies) {
    return tl::unexpected(std::move(copies).error());
  }
  double small_seconds = 0.0;
  for (int run = 0; run < 2; ++run) {  // the first only warms up
    const auto seconds = copies->seconds(1, kMiB);
    if (!seconds) {
      return tl::unexpected(seconds.error());
    }
    small_seconds = *seconds;
  }
  const double fit = std::clamp(kCopySeconds / small_seconds, 1.0, 64.0);
  const std::uint64_t bytes = static_cast<std::uint64_t>(fit) * kMiB;
  std::vector<double> all_seconds;
  for (int run = -1; run < 7; ++run) {
    const auto seconds = copies->seconds(kCopies, bytes);
    if (!seconds) {
      return tl::unexpected(seconds.error());
    }
    if (run >= 0) {
      all_seconds.push_back(*seconds);
    }
  }
  return static_cast<double>(kCopies * bytes) / spread_of(std::move(all_seconds)).median;
}

}  // namespace kvspan::bench
