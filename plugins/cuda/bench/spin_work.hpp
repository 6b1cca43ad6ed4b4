// SPDX-License-Identifier: Apache-2.0
// An engine's other work: a kernel that spins on a stream of its own, ordered with the plugin's
// work through the native table, without a host round trip. One block of one thread: it takes time,
// and no share of the card that attention would miss.
#pragma once

#include "kvspan/bench/step_engine.hpp"
#include "kvspan/native.h"

#include "rig.hpp"

#include <cuda_runtime_api.h>

namespace kvspan::cuda_bench {

class SpinWork final : public bench::OtherWork {
 public:
  // Throws Failure: no native table, or no stream. The rig outlives it.
  SpinWork(const Rig& rig, double seconds);

  SpinWork(const SpinWork&) = delete;
  SpinWork& operator=(const SpinWork&) = delete;
  SpinWork(SpinWork&&) = delete;
  SpinWork& operator=(SpinWork&&) = delete;
  ~SpinWork() override;

  [[nodiscard]] Result<kvspan_point_t> submit(const kvspan_point_t& outputs) override;
  [[nodiscard]] Result<void> wait(const kvspan_point_t& point) override;

 private:
  kvspan_device_t* device_;
  const kvspan_native_table_t* native_;
  std::uint64_t nanoseconds_;
  bench::Line line_;  // gives the event's points
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

}  // namespace kvspan::cuda_bench
