// SPDX-License-Identifier: Apache-2.0
// Read first: copy_samples.hpp.
#include "kvspan/bench/copy_samples.hpp"

#include "upload_train.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::bench {

namespace {

constexpr std::uint64_t kSmallestBytes = 4096;
constexpr std::uint64_t kLargestBytes = std::uint64_t{64} << 20;
constexpr int kRepeats = 9;

// Bytes of a train of copies: small ones go many at a time.
constexpr std::uint64_t kTrainBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kTrainMax = 64;

std::uint64_t train_of(std::uint64_t bytes) {
  return std::clamp<std::uint64_t>(kTrainBytes / bytes, 1, kTrainMax);
}

}  // namespace

Result<std::vector<CopySample>> copy_samples(const Backend& backend) {
  auto copies = UploadTrain::create(backend, kLargestBytes);
  if (!copies) {
    return tl::unexpected(std::move(copies).error());
  }
  std::vector<CopySample> samples;
  for (std::uint64_t bytes = kSmallestBytes; bytes <= kLargestBytes; bytes *= 4) {
    const std::uint64_t train = train_of(bytes);
    for (int run = -1; run < kRepeats; ++run) {
      const auto seconds = copies->seconds(train, bytes);
      if (!seconds) {
        return tl::unexpected(seconds.error());
      }
      if (run >= 0) {  // the first only warms up
        samples.push_back({bytes, *seconds * 1e9 / static_cast<double>(train)});
      }
    }
  }
  return samples;
}

Result<DeviceCalibration> calibrate(const Backend& backend) {
  const auto samples = copy_samples(backend);
  if (!samples) {
    return tl::unexpected(samples.error());
  }
  const auto link = fit_link(*samples);
  if (!link) {
    return tl::unexpected(link.error());
  }
  DeviceCalibration out;
  std::copy_n(backend.info().id, out.device_id.size(), out.device_id.begin());
  out.upload = *link;
  std::vector<double> large_ns;
  for (const CopySample& sample : *samples) {
    if (sample.bytes == kTrainBytes) {
      large_ns.push_back(sample.ns);
    }
  }
  std::sort(large_ns.begin(), large_ns.end());
  out.jitter_ns = large_ns.back() - large_ns[large_ns.size() / 2];
  return out;
}

}  // namespace kvspan::bench
