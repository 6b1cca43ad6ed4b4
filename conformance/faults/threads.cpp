// SPDX-License-Identifier: Apache-2.0
// Faults of threads: slots of class ANY that are not, threads that outlive the plugin or take the
// process's signals.
#include "fault_list.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

namespace kvspan::faults {
namespace {

/// What a thread of a fault does: sleeps in short naps until `stop`.
void nap(const std::shared_ptr<std::atomic<bool>>& stop) {
  while (!*stop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Works on the thread that opened the plugin only.
void works_on_one_thread(Layer& layer) {
  layer.calls.ask = [&layer, first = std::this_thread::get_id(), next = layer.calls.ask](
                        auto* device, auto* shape, auto* out, auto* error) {
    if (std::this_thread::get_id() == first) {
      return next(device, shape, out, error);
    }
    layer.ran();
    return kvspan_result_t{KVSPAN_E_INTERNAL};
  };
}

/// One place for every caller's answer: who asks at the same time gets the other's.
void query_has_one_scratch(Layer& layer) {
  struct Scratch {
    std::atomic<uint32_t> users = 0;
    std::atomic<uint32_t> split_count = 0;
  };

  auto scratch = std::make_shared<Scratch>();
  layer.calls.ask = [&layer, scratch, next = layer.calls.ask](
                        auto* device, auto* shape, kvspan_attention_caps_t* out, auto* error) {
    const kvspan_result_t result = next(device, shape, out, error);
    if (result != KVSPAN_OK || out->struct_size != sizeof *out) {
      return result;
    }
    const bool beside = scratch->users++ != 0;
    scratch->split_count = out->split_count;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (beside && scratch->split_count != out->split_count) {
      out->split_count = scratch->split_count;
      layer.ran();
    }
    --scratch->users;
    return result;
  };
}

/// A thread of the plugin lives on after close. It lives on for good: there is nothing to end it.
void thread_survives_close(Layer& layer) {
  std::thread([] { nap(std::make_shared<std::atomic<bool>>(false)); }).detach();
  layer.ran();
}

/// A thread of the plugin takes signals of the process. Threads of a plugin block them all.
void thread_takes_signals(Layer& layer) {
  auto stop = std::make_shared<std::atomic<bool>>(false);
  auto started = std::make_shared<std::atomic<bool>>(false);
  auto thread = std::make_shared<std::thread>([stop, started] {
    *started = true;
    nap(stop);
  });
  while (!*started) {  // the C library blocks all signals of a thread until its function runs
    std::this_thread::yield();
  }
  layer.ran();
  layer.calls.close_plugin =
      [stop, thread, next = layer.calls.close_plugin](kvspan_error_t* error) {
        const kvspan_result_t result = next(error);
        if (result == KVSPAN_OK) {
          *stop = true;
          thread->join();
        }
        return result;
      };
}

/// A submitting slot waits for the work before it.
void submit_waits_for_earlier_work(Layer& layer) {
  layer.calls.copy = [&layer, next = layer.calls.copy](
                         auto* queue, auto* segments, auto count, const auto* submit, auto* error) {
    const std::optional<Owner> owner = owner_of(queue);
    if (owner.has_value() && submit != nullptr && submit->struct_size == sizeof *submit &&
        submit->wait_count != 0 && submit->waits != nullptr) {
      layer.ran();
      constexpr uint64_t kLong_ns = 300'000'000'000;
      static_cast<void>(layer.base.fence->wait(
          owner->device, submit->waits, submit->wait_count, KVSPAN_WAIT_ALL, kLong_ns, nullptr));
    }
    return next(queue, segments, count, submit, error);
  };
}

constexpr Fault kFaults[] = {
    {"works_on_one_thread", works_on_one_thread},
    {"query_has_one_scratch", query_has_one_scratch},
    {"thread_survives_close", thread_survives_close},
    {"thread_takes_signals", thread_takes_signals},
    {"submit_waits_for_earlier_work", submit_waits_for_earlier_work},
};

}  // namespace

std::span<const Fault> thread_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
