// SPDX-License-Identifier: Apache-2.0
// Read first: link_rate.hpp.
#include "kvspan/bench/link_rate.hpp"

#include "kvspan/bench/spread.hpp"

#include "upload_train.hpp"

#include <utility>
#include <vector>

namespace kvspan::bench {

Result<double> link_rate(const Backend& backend) {
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  constexpr int kCopies = 4;
  auto copies = UploadTrain::create(backend, kBytes);
  if (!copies) {
    return tl::unexpected(std::move(copies).error());
  }
  std::vector<double> all_seconds;
  for (int run = -1; run < 7; ++run) {
    const auto seconds = copies->seconds(kCopies, kBytes);
    if (!seconds) {
      return tl::unexpected(seconds.error());
    }
    if (run >= 0) {
      all_seconds.push_back(*seconds);
    }
  }
  return static_cast<double>(kCopies * kBytes) / spread_of(std::move(all_seconds)).median;
}

}  // namespace kvspan::bench
