// SPDX-License-Identifier: Apache-2.0
// Copies up, one behind another on a queue of their own, timed on the host's clock.
#pragma once

#include "kvspan/bench/line.hpp"

#include <cstdint>
#include <utility>

namespace kvspan::bench {

// Thread class: SYNC(train). The backend outlives it.
class UploadTrain {
 public:
  // Random bytes on the host, as many on the device, a queue. Errors: theirs.
  [[nodiscard]] static Result<UploadTrain> create(const Backend& backend, std::uint64_t bytes_max);

  // Seconds of `count` copies of the first `bytes`, the last one waited for. Errors: the copies'.
  [[nodiscard]] Result<double> seconds(std::uint64_t count, std::uint64_t bytes);

 private:
  UploadTrain(HostMemory source, DeviceMemory target, Line line)
      : source_(std::move(source)), target_(std::move(target)), line_(std::move(line)) {}

  HostMemory source_;
  DeviceMemory target_;
  Line line_;  // ends first: it waits for what is in flight
};

}  // namespace kvspan::bench
