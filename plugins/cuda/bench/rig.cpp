// SPDX-License-Identifier: Apache-2.0
// Read first: rig.hpp.
#include "rig.hpp"

#include <sys/resource.h>
#include <utility>

namespace kvspan::cuda_bench {

Rig::Rig(const std::string& file) {
  sdk::LoadOptions load;
  kvspan_error_t error = empty_error();
  check(sdk::Plugin::load(file, load, plugin_, &error), error, "loading the plugin");
  error = empty_error();
  check(sdk::Device::open(plugin_, 0, device_, &error), error, "opening the device");
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  check(plugin_.device()->describe(plugin_.self(), 0, &info, &error), error, "describing it");
  BackendTables tables;
  tables.device = plugin_.device();
  tables.memory = plugin_.memory();
  tables.queue = plugin_.queue();
  tables.fence = plugin_.fence();
  tables.copy = plugin_.copy();
  tables.codec = plugin_.codec();
  tables.attention = plugin_.attention();
  tables.debug = plugin_.debug();
  backend_ = std::make_unique<Backend>(tables, device_.get(), info);
}

HostMemory host_memory(const Rig& rig, std::uint64_t bytes) {
  HostMemory out;
  out.memory = take(rig.backend().allocate(KVSPAN_MEMORY_HOST, bytes), "host memory");
  out.address = static_cast<std::byte*>(take(rig.backend().map(out.memory), "mapping it"));
  return out;
}

DeviceMemory device_memory(const Rig& rig, std::uint64_t bytes) {
  return take(rig.backend().allocate(KVSPAN_MEMORY_DEVICE, bytes), "device memory");
}

Plug::Plug(const Rig& rig)
    : source(host_memory(rig, kPlugBytes)), target(device_memory(rig, kPlugBytes)) {}

Line::Line(const Rig& rig, std::uint32_t role) : rig_(rig) {
  kvspan_queue_options_t options{};
  options.struct_size = sizeof options;
  options.role = role;
  kvspan_error_t error = empty_error();
  check(sdk::Queue::create(rig.plugin(), rig.device(), options, queue_, &error), error, "a queue");
  check(sdk::Fence::create(rig.plugin(), rig.device(), 0, fence_, &error), error, "a fence");
}

Line::~Line() {
  const kvspan_point_t last{fence_.get(), last_};
  (void)rig_.tables().fence->wait(rig_.device(), &last, 1, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr);
}

kvspan_point_t Line::submit(std::span<const kvspan_point_t> waits, const Call& call) {
  const kvspan_point_t signal{fence_.get(), last_ + 1};
  kvspan_submit_t submit{};
  submit.struct_size = sizeof submit;
  submit.wait_count = static_cast<std::uint32_t>(waits.size());
  submit.waits = waits.data();
  submit.signal_count = 1;
  submit.signals = &signal;
  submit.submit_id = signal.value;
  for (;;) {
    kvspan_error_t error = empty_error();
    const kvspan_result_t result = call(queue_.get(), &submit, &error);
    if (result == KVSPAN_E_QUEUE_FULL) {
      std::uint64_t value = 0;
      (void)rig_.tables().fence->query(fence_.get(), &value, nullptr);
      wait({fence_.get(), value + 1});
      continue;
    }
    check(result, error, "submitting");
    last_ = signal.value;
    return signal;
  }
}

kvspan_point_t Line::copy(std::span<const kvspan_point_t> waits,
                          std::span<const kvspan_segment_t> segments) {
  return submit(
      waits, [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        return rig_.tables().copy->copy(
            queue, segments.data(), static_cast<std::uint32_t>(segments.size()), submit, error);
      });
}

kvspan_point_t Line::fill(const DeviceMemory& memory, std::uint64_t bytes, std::uint8_t pattern) {
  const kvspan_range_t range{memory.get(), 0, bytes};
  return submit({},
                [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                  return rig_.tables().copy->fill(queue, &range, pattern, 1, submit, error);
                });
}

void Line::wait(const kvspan_point_t& point) const {
  kvspan_error_t error = empty_error();
  check(rig_.tables().fence->wait(rig_.device(), &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error),
        error,
        "waiting");
}

bool Line::reached(const kvspan_point_t& point) const {
  std::uint64_t value = 0;
  kvspan_error_t error = empty_error();
  check(rig_.tables().fence->query(point.fence, &value, &error), error, "asking a fence");
  return value >= point.value;
}

void Line::drain() const {
  wait({fence_.get(), last_});
}

CpuTime cpu_time() {
  const auto seconds = [](const rusage& usage) {
    const auto part = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return part(usage.ru_utime) + part(usage.ru_stime);
  };
  rusage process{};
  rusage thread{};
  (void)getrusage(RUSAGE_SELF, &process);
  (void)getrusage(RUSAGE_THREAD, &thread);
  return {seconds(process), seconds(thread)};
}

}  // namespace kvspan::cuda_bench
