// SPDX-License-Identifier: Apache-2.0
// Read first: spin_work.hpp.
#include "spin_work.hpp"

#include "kernels.hpp"

#include <utility>

namespace kvspan::cuda_bench {

namespace {

Error failed(const char* doing, const char* why) {
  return error_of(Errc::internal, std::string(doing) + ": " + why, "bench");
}

}  // namespace

SpinWork::SpinWork(const Rig& rig, double seconds)
    : device_(rig.device()),
      native_(rig.plugin().native()),
      nanoseconds_(static_cast<std::uint64_t>(seconds * 1e9)),
      line_(take(bench::Line::create(rig.backend(), KVSPAN_ROLE_COMPUTE), "a queue")) {
  if (native_ == nullptr) {
    throw Failure("the plugin has no native table");
  }
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "making an event");
}

SpinWork::~SpinWork() {
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(done_);
  cudaStreamDestroy(stream_);
}

Result<kvspan_point_t> SpinWork::submit(const kvspan_point_t& outputs) {
  kvspan_error_t error = empty_error();
  const auto stream = reinterpret_cast<std::uint64_t>(stream_);
  if (native_->export_point(device_, &outputs, stream, &error) != KVSPAN_OK) {
    return tl::unexpected(failed("exporting a point", error.message));
  }
  cudaError_t bad = launch_spin(stream_, nanoseconds_);
  bad = bad != cudaSuccess ? bad : cudaEventRecord(done_, stream_);
  if (bad != cudaSuccess) {
    return tl::unexpected(failed("spinning", cudaGetErrorString(bad)));
  }
  return line_.submit(
      {}, [this](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* refused) {
        return native_->import_point(
            queue, reinterpret_cast<std::uint64_t>(done_), 0, submit, refused);
      });
}

Result<void> SpinWork::wait(const kvspan_point_t& point) {
  return line_.wait(point);
}

}  // namespace kvspan::cuda_bench
