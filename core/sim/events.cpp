// SPDX-License-Identifier: Apache-2.0
// Virtual time: works start when what they wait for is settled, act at their start or at their end,
// and end in the order of their times. The host's waits and calls are all that moves the clock.
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "device.hpp"
#include "tag.hpp"

#include <algorithm>
#include <cstring>

namespace kvspan::sim {

namespace {

// The longest that a session may take between two operations of the engine, in calls of slots:
// far above what a step needs, so that only an endless loop gets here.
constexpr std::uint64_t kCallsMax = 400'000;

std::byte* at(const kvspan_memory_t* memory, std::uint64_t offset) {
  return memory_of(memory)->data + offset;
}

void poison(std::byte* bytes, std::uint64_t count) {
  std::memset(bytes, kPoison, count);
}

// Calls visit(source, target) for every row of a segment.
template <class Visit>
void for_each_row(const kvspan_segment_t& segment, const Visit& visit) {
  for (std::uint64_t row = 0; row < segment.rows; ++row) {
    visit(at(segment.source, segment.source_offset + row * segment.source_pitch),
          at(segment.target, segment.target_offset + row * segment.target_pitch));
  }
}

// The rows that an encode writes.
void spoil_plane(const kvspan_codec_item_t& item) {
  const std::uint64_t bytes = kvspan_ref_row_bytes(item.type, item.head_size);
  for (std::uint32_t row = 0; row < item.row_count; ++row) {
    for (std::uint32_t head = 0; head < item.head_count; ++head) {
      poison(
          at(item.plane.memory, kvspan_ref_plane_offset(&item.plane, item.first_token + row, head)),
          bytes);
    }
  }
}

bool failed_for(const kvspan_point_t& point) {
  const Fence& fence = *fence_of(point.fence);
  return fence.failed != KVSPAN_OK && point.value > fence.value;
}

bool cancelled(const Call& call) {
  if (call.cancel_memory == nullptr) {
    return false;
  }
  std::uint32_t word = 0;
  std::memcpy(&word, at(call.cancel_memory, call.cancel_offset), sizeof word);
  return word != 0;
}

}  // namespace

void Device::kill(const std::string& checker, const std::string& what) {
  trouble_.report(checker, what);
  dead_ = true;
}

void Device::host_call() {
  if (++calls > kCallsMax) {
    kill("progress", "an operation made more than " + std::to_string(kCallsMax) + " calls");
  }
  constexpr std::uint64_t kPolls = 512;  // whoever asks again and again sees the device go on
  if (dead_) {
    return;
  }
  if (traits().host_call_ns != 0) {
    run_until(now_ns_ + random_.heavy_ns(traits().host_call_ns));
  } else if (calls % kPolls == 0) {
    (void)next_event(UINT64_MAX);
  }
}

void Device::idle(std::uint64_t ns) {
  run_until(now_ns_ + ns);
}

void Device::empty(Queue& queue) {
  while (!queue.works.empty() && next_event(UINT64_MAX)) {
  }
  if (!queue.works.empty() && !dead_) {
    kill("progress", "the engine's own work waits for a point that never settles");
  }
  host_.join(queue.last);
}

void Device::run_until(std::uint64_t ns) {
  while (next_event(ns)) {
  }
  now_ns_ = std::max(now_ns_, ns);
}

// The next thing that happens, at `limit_ns` at the latest; false: nothing does.
bool Device::next_event(std::uint64_t limit_ns) {
  if (dead_) {
    return false;  // memory may be gone under what is left
  }
  Queue* first = nullptr;
  for (const auto& queue : queues) {
    if (queue->running &&
        (first == nullptr || queue->works.front()->end_ns < first->works.front()->end_ns)) {
      first = queue.get();
    }
  }
  const auto timer =
      std::min_element(timers_.begin(), timers_.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  const bool by_timer =
      timer != timers_.end() && (first == nullptr || timer->first <= first->works.front()->end_ns);
  if (!by_timer && first == nullptr) {
    return false;
  }
  const std::uint64_t when = by_timer ? timer->first : first->works.front()->end_ns;
  if (when > limit_ns) {
    return false;
  }
  now_ns_ = std::max(now_ns_, when);
  if (by_timer) {
    const std::function<void()> what = std::move(timer->second);
    timers_.erase(timer);
    what();
  } else {
    finish(*first);
  }
  start_ready();
  return true;
}

void Device::start_ready() {
  for (bool started = true; started;) {
    started = false;
    for (const auto& queue : queues) {
      started = try_start(*queue) || started;
    }
  }
}

// In-order: only a queue's first work can start, and only when its points have settled.
bool Device::try_start(Queue& queue) {
  if (queue.running || queue.works.empty() || !is_next_of_line(queue)) {
    return false;
  }
  Work& work = *queue.works.front();
  bool wait_failed = false;
  for (const kvspan_point_t& point : work.call.waits) {
    if (failed_for(point)) {
      wait_failed = true;
    } else if (fence_of(point.fence)->value < point.value) {
      return false;
    }
  }
  if (wait_failed) {
    work.failing = KVSPAN_E_WAIT_FAILED;
  } else if (work.planted != KVSPAN_OK) {
    work.failing = work.planted;
  } else if (cancelled(work.call) && random_.percent(traits().cancel_percent)) {
    work.failing = KVSPAN_E_CANCELLED;
  }
  work.blind = std::any_of(
      work.call.signals.begin(), work.call.signals.end(), [](const kvspan_point_t& point) {
        return fence_of(point.fence)->failed != KVSPAN_OK;
      });
  work.acts_early = random_.percent(50);
  std::uint64_t usual_ns = traits().compute_ns;
  if (work.call.kind == CallKind::copy) {
    usual_ns = traits().copy_ns;
    for (const kvspan_segment_t& segment : work.call.segments) {
      usual_ns += segment.rows * segment.bytes * traits().copy_kib_ns / 1024;
    }
  }
  work.end_ns = now_ns_ + 1 + random_.heavy_ns(usual_ns);
  queue.running = true;
  if (work.failing == KVSPAN_OK) {
    act(work, true);
  }
  return true;
}

void Device::finish(Queue& queue) {
  const std::unique_ptr<Work> work = std::move(queue.works.front());
  queue.works.pop_front();
  queue.running = false;
  if (work->failing == KVSPAN_OK && cancelled(work->call) && work->call.kind != CallKind::copy &&
      random_.percent(traits().cancel_percent / 2)) {
    work->failing = KVSPAN_E_CANCELLED;  // seen between two items
  }
  if (work->failing == KVSPAN_OK) {
    act(*work, false);
  } else if (traits().undefined_on_failure) {
    spoil(*work);
  }
  settle(*work);
}

// Whether queues that share an in-order line of work have nothing before this one's first work.
bool Device::is_next_of_line(const Queue& queue) const {
  if (traits().aliased == 0) {
    return true;
  }
  const auto line = [this](const Queue& of) {
    return traits().aliased == 1 || of.role == KVSPAN_ROLE_COMPUTE ? std::uint32_t{0} : 1U;
  };
  return std::none_of(queues.begin(), queues.end(), [&](const auto& other) {
    return other.get() != &queue && line(*other) == line(queue) && !other->works.empty() &&
           (other->running || other->works.front()->order < queue.works.front()->order);
  });
}

// Everything in flight fails at once, and so does what comes.
void Device::lose() {
  lost_ = true;
  for (const auto& queue : queues) {
    for (const std::unique_ptr<Work>& work : queue->works) {
      work->failing = KVSPAN_E_DEVICE_LOST;
      spoil(*work);
      settle(*work);
    }
    queue->works.clear();
    queue->running = false;
    host_.join(queue->last);
  }
}

void Device::settle(Work& work) {
  bool reached = work.failing == KVSPAN_OK;
  for (const kvspan_point_t& point : work.call.signals) {
    Fence& fence = *fence_of(point.fence);
    --fence.named;
    fence.named_by_engine -= work.engine ? 1U : 0U;
    if (work.failing != KVSPAN_OK && fence.failed == KVSPAN_OK) {
      fence.failed = work.failing;
      fence.failed_submit = work.call.submit_id;
    }
    if (fence.failed == KVSPAN_OK) {
      fence.value = point.value;
    } else {
      reached = false;
    }
  }
  for (const kvspan_point_t& point : work.call.waits) {
    --fence_of(point.fence)->named;
    fence_of(point.fence)->named_by_engine -= work.engine ? 1U : 0U;
  }
  for (const auto& [memory, count] : work.names) {
    memory->named -= count;
  }
  work.ending->over = true;
  work.ending->reached = reached;
}

// What work writes, undefined: before it is written, or because it failed.
void Device::spoil(const Work& work) {
  const Call& call = work.call;
  for (const kvspan_segment_t& segment : call.segments) {
    for_each_row(segment, [&](const std::byte*, std::byte* to) { poison(to, segment.bytes); });
  }
  for (const kvspan_codec_item_t& item : call.codec_items) {
    spoil_plane(item);
  }
  if (call.kind == CallKind::run || call.kind == CallKind::finish) {
    for (const EntryCopy& copy : call.entries) {
      const kvspan_rows_t& out = copy.entry.out;
      for (std::uint32_t row = 0; row < copy.entry.row_count; ++row) {
        poison(at(out.memory, out.offset + row * out.row_stride),
               std::uint64_t{call.shape.q_heads} * call.shape.head_size_v * sizeof(float));
      }
    }
  }
}

void Device::act(Work& work, bool starting) {
  const Call& call = work.call;
  if (call.kind == CallKind::copy) {
    if (starting && work.acts_early) {  // read now, written at the end, torn in between
      for (const kvspan_segment_t& segment : call.segments) {
        for_each_row(segment, [&](const std::byte* from, std::byte*) {
          work.staged.insert(work.staged.end(), from, from + segment.bytes);
        });
      }
      spoil(work);
    } else if (!starting) {
      std::size_t staged = 0;
      for (const kvspan_segment_t& segment : call.segments) {
        for_each_row(segment, [&](const std::byte* from, std::byte* to) {
          std::memcpy(to, work.acts_early ? work.staged.data() + staged : from, segment.bytes);
          staged += segment.bytes;
        });
      }
    }
    return;
  }
  if (starting != work.acts_early) {
    if (starting) {
      spoil(work);
    }
    return;
  }
  if (call.kind == CallKind::engine) {
    if (!work.blind) {
      call.engine_work();
    }
  } else if (call.kind == CallKind::encode) {
    for (const kvspan_codec_item_t& item : call.codec_items) {
      arithmetic() ? encode_numbers(item) : encode_tags(item);
    }
  } else if (!work.blind) {
    arithmetic() ? attend_numbers(*this, call) : attend_tags(*this, call);
  }
}

void Device::seen(Fence& fence, std::uint64_t value) {
  for (const Signalled& signal : fence.signals) {
    if (signal.value >= value) {
      if (signal.value <= fence.value) {
        host_.join(signal.known);
      }
      break;
    }
  }
  while (!fence.signals.empty() && fence.signals.front().value <= fence.value &&
         host_.covers(fence.signals.front().known)) {
    fence.signals.pop_front();
  }
  for (const auto& memory : memories) {
    memory->accesses.forget(host_);
  }
}

kvspan_result_t Device::wait(std::span<const kvspan_point_t> points,
                             std::uint64_t timeout_ns,
                             kvspan_error_t* error) {
  const std::uint64_t deadline =
      timeout_ns > UINT64_MAX - now_ns_ ? UINT64_MAX : now_ns_ + timeout_ns;
  for (;;) {
    if (dead_) {
      return refuse(error, KVSPAN_E_DEVICE_LOST, "the simulation ended");
    }
    bool all = true;
    for (const kvspan_point_t& point : points) {
      if (failed_for(point)) {
        const Fence& fence = *fence_of(point.fence);
        return refuse(
            error, fence.failed, "submit " + std::to_string(fence.failed_submit) + " failed");
      }
      all = all && fence_of(point.fence)->value >= point.value;
    }
    if (all) {
      for (const kvspan_point_t& point : points) {
        seen(*fence_of(point.fence), point.value);
      }
      return KVSPAN_OK;
    }
    if (lost_) {
      return refuse(error, KVSPAN_E_DEVICE_LOST, "the device is lost");
    }
    if (now_ns_ >= deadline) {
      return refuse(error, KVSPAN_TIMEOUT, "not reached in time");
    }
    if (!next_event(deadline)) {
      if (deadline == UINT64_MAX) {
        kill("progress",
             "the host waits for value " + std::to_string(points.front().value) +
                 " of a fence at " + std::to_string(fence_of(points.front().fence)->value) +
                 ", and nothing is left to happen");
      } else {
        now_ns_ = deadline;
      }
    }
  }
}

}  // namespace kvspan::sim
