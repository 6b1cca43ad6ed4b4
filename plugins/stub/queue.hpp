// SPDX-License-Identifier: Apache-2.0
// A queue of the stub and the one door through which every submitting slot enqueues.
// Read next: queue.cpp, scheduler.hpp.
#pragma once

#include "kvspan/copy.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/validate_range.hpp"

#include "memory.hpp"
#include "plugin.hpp"
#include "scheduler.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace kvspan::stub {

/// Measurements a queue keeps for feedback; more are dropped.
inline constexpr std::size_t kMeasurementsMax = 256;

struct Queue {
  Device& device;
  Lane* const lane = nullptr;
  const std::uint32_t depth = 0;
  std::uint32_t in_flight = 0;
  std::deque<kvspan_measurement_t> measurements{};
};

inline Queue* queue_of(kvspan_queue_t* handle) {
  return reinterpret_cast<Queue*>(handle);
}

inline kvspan_queue_t* handle_of(Queue* queue) {
  return reinterpret_cast<kvspan_queue_t*>(queue);
}

inline Fence* fence_of(kvspan_fence_t* handle) {
  return reinterpret_cast<Fence*>(handle);
}

inline kvspan_fence_t* handle_of(Fence* fence) {
  return reinterpret_cast<kvspan_fence_t*>(fence);
}

/// Bytes of a memory of this device, for the checks of the SDK.
struct OwnBytes {
  const Device* device;

  std::uint64_t operator()(kvspan_memory_t* memory) const {
    const Memory& named = *memory_of(memory);
    return &named.device == device ? named.bytes : sdk::kForeignMemory;
  }
};

/// What a submitting slot made of its arguments, all of them copied.
struct Job {
  std::unique_ptr<Body> body;
  std::vector<kvspan_memory_t*> memories;  ///< all that the body touches; NULL is skipped
  std::uint64_t bytes = 0;                 ///< moved, for the virtual duration
};

/// Checks `submit` by KV-SUBMIT-1..8 and enqueues. On failure nothing was enqueued. The caller
/// holds the lock and has checked the job's own arguments; `argument` is the submit's position.
kvspan_result_t enqueue(Queue& queue,
                        Job job,
                        const kvspan_submit_t* submit,
                        std::uint32_t argument,
                        kvspan_error_t* error,
                        const char* where);

}  // namespace kvspan::stub
