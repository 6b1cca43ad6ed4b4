// SPDX-License-Identifier: Apache-2.0
// A queue: one thread that does one submit after another, as a device would. The codec and copy
// tables check their own arguments, make a Job of them, and hand it to enqueue(), the one door.
// Replace the thread by your device's stream. Read next: queue.cpp, worker.cpp.
#pragma once

#include "kvspan/copy.h"
#include "kvspan/queue.h"

#include "fence.hpp"
#include "memory.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <pthread.h>
#include <vector>

namespace mine {

// Measurements that a queue keeps for feedback; more are dropped.
inline constexpr uint32_t kMeasurementsMax = 256;

// What a submitting slot made of its arguments, all of them copied.
struct Job {
  std::function<void()> body;              // runs once at most; allocates and throws nothing
  std::vector<kvspan_memory_t*> memories;  // all that the body touches; NULL is skipped
  uint64_t bytes = 0;                      // moved, for feedback
};

struct Work {
  std::function<void()> body;
  std::vector<Memory*> memories;
  std::vector<Point> waits;
  std::vector<Point> signals;
  const uint32_t* cancel = nullptr;  // the cancel word, or NULL
  uint64_t submit_id = 0;
  uint64_t bytes = 0;
  bool measure = false;
};

// The device's mutex guards everything below `depth`.
struct Queue {
  Device& device;
  const uint32_t depth;
  std::deque<Work> pending{};  // the front is what the thread waits for or runs
  std::vector<kvspan_measurement_t> measurements{};  // at most kMeasurementsMax, oldest first
  std::condition_variable wake{};                    // work came, or stopping
  bool stopping = false;
  pthread_t thread{};
};

inline Queue* queue_of(kvspan_queue_t* handle) {
  return reinterpret_cast<Queue*>(handle);
}

// worker.cpp. Starts the queue's thread; false: the system has none to give. It ends once
// `stopping` is set, and join waits for that.
bool start(Queue& queue);
void join(Queue& queue);

// Checks what every submit carries (KV-SUBMIT-1 to 9) and enqueues the job, whose own arguments
// have been checked. `argument` is the position of `submit`. On failure nothing was enqueued. The
// device's mutex is held.
kvspan_result_t enqueue(Queue& queue,
                        Job job,
                        const kvspan_submit_t* submit,
                        uint32_t argument,
                        kvspan_error_t* error,
                        const char* where);

}  // namespace mine
