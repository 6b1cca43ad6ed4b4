// SPDX-License-Identifier: Apache-2.0
// Read first: link_rate.hpp.
#include "kvspan/bench/link_rate.hpp"

#include "kvspan/bench/line.hpp"
#include "kvspan/bench/random_pages.hpp"
#include "kvspan/bench/spread.hpp"

#include <utility>
#include <vector>

namespace kvspan::bench {

Result<double> link_rate(const Backend& backend) {
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  constexpr int kCopies = 4;
  auto source = host_memory(backend, kBytes);
  auto target = backend.allocate(KVSPAN_MEMORY_DEVICE, kBytes);
  if (!source || !target) {
    return tl::unexpected(source ? target.error() : source.error());
  }
  auto* const floats = reinterpret_cast<float*>(source->address);
  for (std::uint64_t index = 0; index < kBytes / sizeof(float); ++index) {
    floats[index] = noise(0x6c, index);
  }
  auto line = Line::create(backend, KVSPAN_ROLE_UPLOAD);
  if (!line) {
    return tl::unexpected(std::move(line).error());
  }
  const kvspan_segment_t all{source->memory.get(), target->get(), 0, 0, kBytes, 1, 0, 0};
  std::vector<double> seconds;
  for (int run = -1; run < 7; ++run) {
    const Clock::time_point start = Clock::now();
    kvspan_point_t last{};
    for (int copy = 0; copy < kCopies; ++copy) {
      auto point = line->copy({}, {&all, 1});
      if (!point) {
        return tl::unexpected(std::move(point).error());
      }
      last = *point;
    }
    if (auto waited = line->wait(last); !waited) {
      return tl::unexpected(std::move(waited).error());
    }
    if (run >= 0) {
      seconds.push_back(seconds_since(start));
    }
  }
  return static_cast<double>(kCopies * kBytes) / spread_of(std::move(seconds)).median;
}

}  // namespace kvspan::bench
