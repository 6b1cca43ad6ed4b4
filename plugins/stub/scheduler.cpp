// SPDX-License-Identifier: Apache-2.0
// Virtual time. A work waits for its points, is made ready at a tick that the seed picks, starts,
// and takes effect when it ends: between start and end other lanes may get in. A host that forgets
// a wait point meets a seed that shows it; a host that forgets none gets the same bytes every time.
// Read next: queue.cpp, which lets work in and turns the crank.
#include "scheduler.hpp"

#include "kvspan/sdk/error.hpp"

#include "memory.hpp"
#include "queue.hpp"

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

namespace kvspan::stub {
namespace {

/// One tick is a nanosecond of the virtual device; this is its bandwidth (16 GB/s).
constexpr std::uint64_t kBytesPerTick = 16;

/// In mode `shuffled` one submit in this many lets up to kEagerSteps events happen at once.
constexpr std::uint64_t kEagerOneIn = 4;
constexpr std::uint64_t kEagerSteps = 4;

/// The longest delay is the even one's times 2^this. With it a work may sleep through hundreds of
/// others, as long as those that nothing but a forgotten wait point would have held back.
constexpr int kDoublingsMax = 12;

bool settled(const Point& point) {
  return point.reached() || point.failed();
}

bool earlier(const Work& left, const Work& right) {
  return left.at_tick != right.at_tick ? left.at_tick < right.at_tick : left.rank < right.rank;
}

/// The first of the work's wait points that can never be reached, or NULL.
const Point* failed_wait(const Work& work) {
  for (const Point& point : work.waits) {
    if (point.failed()) {
      return &point;
    }
  }
  return nullptr;
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15ull;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

std::uint64_t Random::up_to(std::uint64_t most) {
  return most == 0 ? 0 : next() % (most + 1);
}

std::uint64_t Random::delay(std::uint64_t most) {
  if (most == 0) {
    return 0;
  }
  const int doublings = std::min(std::countr_zero(next()), kDoublingsMax);
  return up_to(most) << doublings;
}

kvspan_result_t report(const Failure& failure, kvspan_error_t* error, const char* where) {
  sdk::fail(error, failure.code, where, "%s", failure.message.c_str());
  if (error != nullptr) {
    error->flags = failure.flags;
    error->submit_id = failure.submit_id;
  }
  return failure.code;
}

Scheduler::Scheduler(const ScheduleOptions& options) : options_(options), random_(options.seed) {
  if (options.mode == QueueMode::one) {
    lanes_.emplace_back();
  }
}

Lane* Scheduler::open_lane() {
  if (options_.mode == QueueMode::shuffled) {
    return &lanes_.emplace_back();
  }
  return &lanes_.front();
}

void Scheduler::close_lane(Lane* lane) {
  if (options_.mode == QueueMode::shuffled) {
    lanes_.remove_if([lane](const Lane& other) { return &other == lane; });
  }
}

void Scheduler::plant(Work& work) {
  if (faults_.fail_in != 0 && --faults_.fail_in == 0) {
    work.failure = Failure{faults_.fail_code,
                           KVSPAN_ERROR_ASYNC,
                           work.submit_id,
                           "this submit failed after it was accepted: discard its destinations"};
  }
  if (faults_.lose_in != 0 && --faults_.lose_in == 0) {
    work.loses_device = true;
  }
}

void Scheduler::enqueue(Lane& lane, std::unique_ptr<Work> work) {
  Work& added = *work;
  // The promises first: they may run out of memory, and then nothing may have happened.
  std::size_t promised = 0;
  try {
    for (const Point& point : added.signals) {
      point.fence->promises.push_back(point.value);
      ++promised;
    }
    lane.push_back(std::move(work));
  } catch (...) {
    while (promised != 0) {
      added.signals[--promised].fence->promises.pop_back();
    }
    throw;
  }
  for (const Point& point : added.signals) {
    point.fence->signaller = added.queue;
    ++point.fence->uses;
  }
  for (const Point& point : added.waits) {
    ++point.fence->uses;
  }
  for (Memory* memory : added.memories) {
    ++memory->uses;
  }
  ++added.queue->in_flight;
  ++in_flight_;
  ++submits_;
  plant(added);
  drop_futile();
  if (options_.mode == QueueMode::shuffled && random_.up_to(kEagerOneIn - 1) == 0) {
    for (std::uint64_t left = random_.up_to(kEagerSteps); left != 0 && step(); --left) {
    }
  }
}

void Scheduler::make_ready(Work& work) {
  work.state = WorkState::ready;
  work.at_tick = now_ticks_ + random_.delay(options_.delay_max_ticks);
  work.rank = random_.next();
}

Work* Scheduler::next_event() {
  Work* next = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.empty()) {
      continue;
    }
    Work& front = *lane.front();
    if (front.state == WorkState::waiting &&
        std::all_of(front.waits.begin(), front.waits.end(), settled)) {
      make_ready(front);
    }
    if (front.state != WorkState::waiting && (next == nullptr || earlier(front, *next))) {
      next = &front;
    }
  }
  return next;
}

bool Scheduler::step() {
  Work* const next = next_event();
  if (next == nullptr) {
    return false;
  }
  now_ticks_ = std::max(now_ticks_, next->at_tick);
  if (next->state == WorkState::ready) {
    start(*next);
  } else {
    finish(*next);
  }
  return true;
}

void Scheduler::start(Work& work) {
  if (work.loses_device) {
    lose(work.submit_id);
    return;
  }
  if (const Point* point = failed_wait(work)) {
    work.failure =
        Failure{KVSPAN_E_WAIT_FAILED,
                KVSPAN_ERROR_ASYNC,
                work.submit_id,
                "submit " + std::to_string(work.submit_id) +
                    " waited for a point that failed: " + point->fence->failure->message};
    if (options_.failed_waits == FailedWaits::stop) {
      settle(work);
      return;
    }
  } else if (work.cancel != nullptr && __atomic_load_n(work.cancel, __ATOMIC_ACQUIRE) != 0) {
    work.failure = Failure{KVSPAN_E_CANCELLED,
                           KVSPAN_ERROR_ASYNC,
                           work.submit_id,
                           "submit " + std::to_string(work.submit_id) +
                               " was cancelled before it started: submit it again if it is wanted"};
    settle(work);
    return;
  }
  work.body->start(random_);
  work.state = WorkState::running;
  work.started_tick = now_ticks_;
  work.at_tick =
      now_ticks_ + 1 + work.bytes / kBytesPerTick + random_.delay(options_.delay_max_ticks);
  work.rank = random_.next();
}

void Scheduler::finish(Work& work) {
  ++launches_;
  try {
    work.body->finish();
  } catch (const std::exception& problem) {
    work.failure = Failure{KVSPAN_E_HOST_MEMORY,
                           KVSPAN_ERROR_ASYNC,
                           work.submit_id,
                           std::string("host memory ran out inside a work: ") + problem.what()};
  }
  settle(work);
}

/// The end of a work: its signals are reached or fail, and nothing that it named is in use by it.
void Scheduler::settle(Work& work) {
  Lane& lane = *work.queue->lane;
  const auto at = std::find_if(
      lane.begin(), lane.end(), [&work](const auto& other) { return other.get() == &work; });
  const std::unique_ptr<Work> ended = std::move(*at);
  lane.erase(at);
  bool failed_some = false;
  for (const Point& point : work.signals) {
    Fence& fence = *point.fence;
    fence.promises.erase(std::find(fence.promises.begin(), fence.promises.end(), point.value));
    --fence.uses;
    if (fence.failure.has_value()) {
      continue;
    }
    if (work.failure.has_value()) {
      fence.failure = work.failure;
      failed_some = true;
    } else {
      fence.value = point.value;
    }
  }
  for (const Point& point : work.waits) {
    --point.fence->uses;
  }
  for (Memory* memory : work.memories) {
    --memory->uses;
  }
  Queue& queue = *work.queue;
  if ((work.flags & KVSPAN_SUBMIT_MEASURE) != 0 && !work.failure.has_value() &&
      queue.measurements.size() < kMeasurementsMax) {
    queue.measurements.push_back({work.submit_id, now_ticks_ - work.started_tick, work.bytes});
  }
  --queue.in_flight;
  --in_flight_;
  if (failed_some) {
    drop_futile();
  }
}

void Scheduler::fail(Fence& fence, const Failure& failure) {
  fence.failure = failure;
  drop_futile();
}

/// A host that sees a work's points failed may reuse the work's memory, so from then on the work
/// must not touch it: work all of whose signals have failed ends on the spot.
void Scheduler::drop_futile() {
  for (Lane& lane : lanes_) {
    for (std::size_t i = 0; i < lane.size();) {
      Work& work = *lane[i];
      const bool futile = !work.signals.empty() &&
                          std::all_of(work.signals.begin(), work.signals.end(), [](const Point& p) {
                            return p.fence->failure.has_value();
                          });
      if (futile) {
        work.failure = work.signals.front().fence->failure;
        settle(work);  // fails no further fence, so it does not come back here
      } else {
        ++i;
      }
    }
  }
}

void Scheduler::lose(std::uint64_t submit_id) {
  lost_ = Failure{KVSPAN_E_DEVICE_LOST,
                  KVSPAN_ERROR_STICKY | KVSPAN_ERROR_ASYNC | KVSPAN_ERROR_REOPEN_DEVICE,
                  submit_id,
                  "the device was lost in submit " + std::to_string(submit_id) +
                      ": release everything, close it and open it again"};
  for (Lane& lane : lanes_) {
    while (!lane.empty()) {
      lane.front()->failure = lost_;
      settle(*lane.front());
    }
  }
  for (Fence* fence : fences_) {
    if (!fence->failure.has_value()) {
      fence->failure = lost_;
    }
  }
}

}  // namespace kvspan::stub
