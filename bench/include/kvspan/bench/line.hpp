// SPDX-License-Identifier: Apache-2.0
// A queue of a backend with a timeline of its own, and host memory with its address: what an engine
// has beside a session.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace kvspan::bench {

// Host memory of the plugin, mapped.
struct HostMemory {
  DeviceMemory memory;
  std::byte* address = nullptr;
};

// Errors: the allocation's.
[[nodiscard]] Result<HostMemory> host_memory(const Backend& backend, std::uint64_t bytes);

// Thread class: SYNC(line). The backend outlives it.
class Line {
 public:
  using Call =
      std::function<kvspan_result_t(kvspan_queue_t*, const kvspan_submit_t*, kvspan_error_t*)>;

  // Errors: the queue's or the fence's creation.
  [[nodiscard]] static Result<Line> create(const Backend& backend, std::uint32_t role);

  Line(Line&& other) noexcept;
  Line& operator=(Line&&) = delete;
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Waits for what was submitted.
  ~Line();

  // Puts work behind `waits`; returns the point that settles it. A full queue is waited for.
  // Errors: the slot's.
  [[nodiscard]] Result<kvspan_point_t> submit(std::span<const kvspan_point_t> waits,
                                              const Call& call);

  [[nodiscard]] Result<kvspan_point_t> copy(std::span<const kvspan_point_t> waits,
                                            std::span<const kvspan_segment_t> segments);

  // Bytes [0, bytes) of `memory` become `pattern`.
  [[nodiscard]] Result<kvspan_point_t> fill(const DeviceMemory& memory,
                                            std::uint64_t bytes,
                                            std::uint8_t pattern);

  // Copies and waits.
  [[nodiscard]] Result<void> move(const kvspan_segment_t& segment);

  // Errors: the cause of failed work.
  [[nodiscard]] Result<void> wait(const kvspan_point_t& point) const;
  [[nodiscard]] bool reached(const kvspan_point_t& point) const;

 private:
  explicit Line(const Backend& backend) : backend_(backend) {}

  Backend backend_;
  kvspan_queue_t* queue_ = nullptr;
  kvspan_fence_t* fence_ = nullptr;
  std::uint64_t last_ = 0;
};

}  // namespace kvspan::bench
