// SPDX-License-Identifier: Apache-2.0
// Faults of submits: what is waited for, what is signalled, when arrays are read, full queues.
// Not here: the cancel word (cancels.cpp), what the work does (copies.cpp and further).
#include "edits.hpp"
#include "fault_list.hpp"

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::faults {
namespace {

bool forget_waits(kvspan_queue_t*, kvspan_submit_t& submit) {
  const bool some = submit.wait_count != 0;
  submit.wait_count = 0;
  submit.waits = nullptr;
  return some;
}

/// Attention starts before the copies and encodes that it waits for.
void ignores_the_producer(Layer& layer) {
  edit_submits(layer, kAttention, forget_waits);
}

/// A copy overwrites what is still being read.
void ignores_the_consumer(Layer& layer) {
  edit_submits(layer, kCopy | kFill, forget_waits);
}

/// Encoded rows go where the last reader may not have ended.
void codec_ignores_waits(Layer& layer) {
  edit_submits(layer, kEncode | kDecode, forget_waits);
}

void waits_for_the_first_point_only(Layer& layer) {
  edit_submits(layer, kEverySlot, [](kvspan_queue_t*, kvspan_submit_t& submit) {
    const bool more = submit.wait_count > 1;
    submit.wait_count = more ? 1 : submit.wait_count;
    return more;
  });
}

/// Signals when the work is accepted, not when it is done.
void signals_early(Layer& layer) {
  around_submits(
      layer, kEverySlot, [&layer](auto*, const kvspan_submit_t* submit, auto* error, const Go& go) {
        kvspan_submit_t silent = *submit;
        silent.signal_count = 0;
        silent.signals = nullptr;
        const kvspan_result_t result = go(&silent, error);
        for (uint32_t i = 0; result == KVSPAN_OK && i < submit->signal_count; ++i) {
          const kvspan_point_t& point = submit->signals[i];
          static_cast<void>(layer.base.fence->signal(point.fence, point.value, nullptr));
          layer.ran();
        }
        return result;
      });
}

void signals_the_first_point_only(Layer& layer) {
  edit_submits(layer, kEverySlot, [](kvspan_queue_t*, kvspan_submit_t& submit) {
    const bool more = submit.signal_count > 1;
    submit.signal_count = more ? 1 : submit.signal_count;
    return more;
  });
}

/// What waits for a failed point runs as if it had been reached.
void runs_behind_a_failed_point(Layer& layer) {
  around_submits(
      layer, kEverySlot, [&layer](auto*, const kvspan_submit_t* submit, auto* error, const Go& go) {
        std::vector<kvspan_point_t> left;
        for (uint32_t i = 0; i < submit->wait_count; ++i) {
          const kvspan_point_t& point = submit->waits[i];
          uint64_t value = 0;
          if (point.fence == nullptr ||
              layer.base.fence->query(point.fence, &value, nullptr) == KVSPAN_OK) {
            left.push_back(point);
          }
        }
        if (left.size() == submit->wait_count) {
          return go(submit, error);
        }
        layer.ran();
        kvspan_submit_t changed = *submit;
        changed.waits = left.data();
        changed.wait_count = static_cast<uint32_t>(left.size());
        return go(&changed, error);
      });
}

/// An error return, and the signals come all the same.
void refused_work_signals(Layer& layer) {
  around_submits(
      layer, kEverySlot, [&layer](auto*, const kvspan_submit_t* submit, auto* error, const Go& go) {
        const kvspan_result_t result = go(submit, error);
        for (uint32_t i = 0; result < 0 && i < submit->signal_count; ++i) {
          const kvspan_point_t& point = submit->signals[i];
          if (point.fence != nullptr) {
            static_cast<void>(layer.base.fence->signal(point.fence, point.value, nullptr));
            layer.ran();
          }
        }
        return result;
      });
}

/// The failure of earlier work comes back from the next submit of the queue.
void blames_the_next_submit(Layer& layer) {
  struct Last {
    std::mutex mutex;
    std::map<const kvspan_queue_t*, kvspan_point_t> points;
  };

  auto last = std::make_shared<Last>();
  around_submits(
      layer,
      kEverySlot,
      [&layer, last](auto* queue, const kvspan_submit_t* submit, auto* error, const Go& go) {
        const std::lock_guard lock(last->mutex);
        const auto found = last->points.find(queue);
        if (found != last->points.end() && owner_of(found->second.fence).has_value()) {
          const kvspan_point_t before = found->second;
          uint64_t value = 0;
          const kvspan_result_t failed = layer.base.fence->query(before.fence, &value, error);
          if (failed < 0 && value < before.value) {
            last->points.erase(found);
            layer.ran();
            return failed;
          }
        }
        const kvspan_result_t result = go(submit, error);
        if (result == KVSPAN_OK && submit->signal_count != 0) {
          last->points[queue] = submit->signals[0];
        }
        return result;
      });
}

/// The submit keeps the caller's arrays and looks at them when somebody asks for the result.
void reads_arrays_after_return(Layer& layer) {
  struct Kept {
    std::mutex mutex;
    std::function<void()> send;

    void flush() {
      const std::function<void()> now = std::exchange(send, nullptr);
      if (now) {
        now();
      }
    }
  };

  auto kept = std::make_shared<Kept>();
  layer.calls.copy = [&layer, kept, next = layer.calls.copy](kvspan_queue_t* queue,
                                                             const kvspan_segment_t* segments,
                                                             uint32_t count,
                                                             const kvspan_submit_t* submit,
                                                             kvspan_error_t* error) {
    const std::lock_guard lock(kept->mutex);
    kept->flush();
    if (submit == nullptr || submit->struct_size != sizeof *submit || segments == nullptr ||
        count < 2 || submit->signal_count != 1 || submit->wait_count != 0) {
      return next(queue, segments, count, submit, error);
    }
    layer.ran();
    kept->send = [next, queue, segments, count, submit = *submit, point = submit->signals[0]] {
      kvspan_submit_t own = submit;
      own.signals = &point;
      if (next(queue, segments, count, &own, nullptr) != KVSPAN_OK) {
        static_cast<void>(next(queue, nullptr, 0, &own, nullptr));
      }
    };
    return kvspan_result_t{KVSPAN_OK};
  };
  layer.calls.wait = [kept, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    {
      const std::lock_guard lock(kept->mutex);
      kept->flush();
    }
    return next(device, points, count, mode, ns, error);
  };
  layer.calls.query = [kept, next = layer.calls.query](auto* fence, auto* out, auto* error) {
    {
      const std::lock_guard lock(kept->mutex);
      kept->flush();
    }
    return next(fence, out, error);
  };
}

/// The slot waits for room instead of saying QUEUE_FULL.
void full_queue_blocks(Layer& layer) {
  around_submits(
      layer,
      kEverySlot,
      [&layer](auto*, const kvspan_submit_t* submit, kvspan_error_t* error, const Go& go) {
        kvspan_result_t result = go(submit, error);
        while (result == KVSPAN_E_QUEUE_FULL) {
          layer.ran();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          result = go(submit, error);
        }
        return result;
      });
}

void full_queue_asks_for_too_little(Layer& layer) {
  around_submits(
      layer, kEverySlot, [&layer](auto*, auto* submit, kvspan_error_t* error, const Go& go) {
        const kvspan_result_t result = go(submit, error);
        if (result == KVSPAN_E_QUEUE_FULL && error != nullptr) {
          --error->required;
          layer.ran();
        }
        return result;
      });
}

/// Says OK to a signal that does not increase, and forgets it.
void signals_may_repeat(Layer& layer) {
  around_submits(layer, kEverySlot, [&layer](auto*, auto* submit, kvspan_error_t*, const Go& go) {
    kvspan_error_t own = {};
    own.struct_size = sizeof own;
    const kvspan_result_t result = go(submit, &own);
    const bool signals = own.field_offset == offsetof(kvspan_submit_t, signals);
    if (result != KVSPAN_E_INVALID_ARG || !signals) {
      return result;
    }
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  });
}

void submit_id_is_lost(Layer& layer) {
  edit_submits(layer, kEverySlot, [](kvspan_queue_t*, kvspan_submit_t& submit) {
    const bool some = submit.submit_id != 0;
    submit.submit_id = 0;
    return some;
  });
}

/// Accepts a wait that nothing submitted can end, and hangs on it.
void waits_for_what_nobody_submitted(Layer& layer) {
  around_submits(
      layer, kEverySlot, [&layer](auto*, auto* submit, kvspan_error_t* error, const Go& go) {
        const kvspan_result_t result = go(submit, error);
        if (result != KVSPAN_E_UNSUPPORTED || submit->wait_count == 0) {
          return result;
        }
        layer.ran();
        return kvspan_result_t{KVSPAN_OK};
      });
}

constexpr Fault kFaults[] = {
    {"ignores_the_producer", ignores_the_producer},
    {"ignores_the_consumer", ignores_the_consumer},
    {"codec_ignores_waits", codec_ignores_waits},
    {"waits_for_the_first_point_only", waits_for_the_first_point_only},
    {"signals_early", signals_early},
    {"signals_the_first_point_only", signals_the_first_point_only},
    {"runs_behind_a_failed_point", runs_behind_a_failed_point},
    {"refused_work_signals", refused_work_signals},
    {"blames_the_next_submit", blames_the_next_submit},
    {"reads_arrays_after_return", reads_arrays_after_return},
    {"full_queue_blocks", full_queue_blocks},
    {"full_queue_asks_for_too_little", full_queue_asks_for_too_little},
    {"signals_may_repeat", signals_may_repeat},
    {"submit_id_is_lost", submit_id_is_lost},
    {"waits_for_what_nobody_submitted", waits_for_what_nobody_submitted},
};

}  // namespace

std::span<const Fault> submit_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
