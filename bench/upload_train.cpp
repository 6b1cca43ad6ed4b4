// SPDX-License-Identifier: Apache-2.0
// Read first: upload_train.hpp.
#include "upload_train.hpp"

#include "kvspan/bench/random_pages.hpp"
#include "kvspan/bench/spread.hpp"

namespace kvspan::bench {

Result<UploadTrain> UploadTrain::create(const Backend& backend, std::uint64_t bytes_max) {
  auto source = host_memory(backend, bytes_max);
  auto target = backend.allocate(KVSPAN_MEMORY_DEVICE, bytes_max);
  if (!source || !target) {
    return tl::unexpected(source ? target.error() : source.error());
  }
  auto* const floats = reinterpret_cast<float*>(source->address);
  for (std::uint64_t index = 0; index < bytes_max / sizeof(float); ++index) {
    floats[index] = noise(0x6c, index);
  }
  auto line = Line::create(backend, KVSPAN_ROLE_UPLOAD);
  if (!line) {
    return tl::unexpected(std::move(line).error());
  }
  return UploadTrain(std::move(*source), std::move(*target), std::move(*line));
}

Result<double> UploadTrain::seconds(std::uint64_t count, std::uint64_t bytes) {
  const kvspan_segment_t segment{source_.memory.get(), target_.get(), 0, 0, bytes, 1, 0, 0};
  const Clock::time_point start = Clock::now();
  kvspan_point_t last{};
  for (std::uint64_t copy = 0; copy < count; ++copy) {
    auto point = line_.copy({}, {&segment, 1});
    if (!point) {
      return tl::unexpected(std::move(point).error());
    }
    last = *point;
  }
  if (auto waited = line_.wait(last); !waited) {
    return tl::unexpected(std::move(waited).error());
  }
  return seconds_since(start);
}

}  // namespace kvspan::bench
