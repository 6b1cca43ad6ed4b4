// SPDX-License-Identifier: Apache-2.0
// Read first: line.hpp.
#include "kvspan/bench/line.hpp"

#include <utility>

namespace kvspan::bench {

Result<HostMemory> host_memory(const Backend& backend, std::uint64_t bytes) {
  auto memory = backend.allocate(KVSPAN_MEMORY_HOST, bytes);
  if (!memory) {
    return tl::unexpected(std::move(memory).error());
  }
  const auto address = backend.map(*memory);
  if (!address) {
    return tl::unexpected(address.error());
  }
  return HostMemory{std::move(*memory), static_cast<std::byte*>(*address)};
}

Result<Line> Line::create(const Backend& backend, std::uint32_t role) {
  Line line(backend);
  kvspan_queue_options_t options{};
  options.struct_size = sizeof options;
  options.role = role;
  kvspan_error_t error = empty_error();
  const BackendTables& tables = backend.tables();
  kvspan_result_t result = tables.queue->create(backend.device(), &options, &line.queue_, &error);
  if (result == KVSPAN_OK) {
    result = tables.fence->create(backend.device(), 0, &line.fence_, &error);
  }
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "making a queue"));
  }
  return line;
}

Line::Line(Line&& other) noexcept
    : backend_(other.backend_),
      queue_(std::exchange(other.queue_, nullptr)),
      fence_(std::exchange(other.fence_, nullptr)),
      last_(other.last_) {}

Line::~Line() {
  if (fence_ != nullptr) {
    (void)wait({fence_, last_});
  }
  if (queue_ != nullptr) {
    (void)backend_.tables().queue->destroy(queue_, nullptr);
  }
  if (fence_ != nullptr) {
    (void)backend_.tables().fence->destroy(fence_, nullptr);
  }
}

Result<kvspan_point_t> Line::submit(std::span<const kvspan_point_t> waits, const Call& call) {
  const kvspan_point_t signal{fence_, last_ + 1};
  kvspan_submit_t submit{};
  submit.struct_size = sizeof submit;
  submit.wait_count = static_cast<std::uint32_t>(waits.size());
  submit.waits = waits.data();
  submit.signal_count = 1;
  submit.signals = &signal;
  submit.submit_id = signal.value;
  for (;;) {
    kvspan_error_t error = empty_error();
    const kvspan_result_t result = call(queue_, &submit, &error);
    if (result == KVSPAN_OK) {
      last_ = signal.value;
      return signal;
    }
    if (result != KVSPAN_E_QUEUE_FULL) {
      return tl::unexpected(from_abi(result, error, "submitting"));
    }
    std::uint64_t value = 0;
    (void)backend_.tables().fence->query(fence_, &value, nullptr);
    if (auto room = wait({fence_, value + 1}); !room) {
      return tl::unexpected(std::move(room).error());
    }
  }
}

Result<kvspan_point_t> Line::copy(std::span<const kvspan_point_t> waits,
                                  std::span<const kvspan_segment_t> segments) {
  return submit(
      waits, [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        return backend_.tables().copy->copy(
            queue, segments.data(), static_cast<std::uint32_t>(segments.size()), submit, error);
      });
}

Result<kvspan_point_t> Line::fill(const DeviceMemory& memory,
                                  std::uint64_t bytes,
                                  std::uint8_t pattern) {
  const kvspan_range_t range{memory.get(), 0, bytes};
  return submit({},
                [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                  return backend_.tables().copy->fill(queue, &range, pattern, 1, submit, error);
                });
}

Result<void> Line::move(const kvspan_segment_t& segment) {
  const auto point = copy({}, {&segment, 1});
  return point ? wait(*point) : tl::unexpected(point.error());
}

Result<void> Line::wait(const kvspan_point_t& point) const {
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = backend_.tables().fence->wait(
      backend_.device(), &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error);
  return result == KVSPAN_OK ? Result<void>{} : tl::unexpected(from_abi(result, error, "waiting"));
}

bool Line::reached(const kvspan_point_t& point) const {
  std::uint64_t value = 0;
  (void)backend_.tables().fence->query(point.fence, &value, nullptr);
  return value >= point.value;
}

}  // namespace kvspan::bench
