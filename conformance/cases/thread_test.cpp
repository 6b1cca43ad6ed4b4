// SPDX-License-Identifier: Apache-2.0
// Slots of class ANY from sixteen threads at once answer as they do from one, and objects of class
// SYNC go from thread to thread. Not here: tables by id (entry_test.cpp).
#include "worker/case.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint32_t kThreads = 16;

class ThreadTest : public PluginTest {
 protected:
  /// What questions about the device are answered, as bytes.
  std::string answers();

  /// Runs `work(thread, round)` from all threads at once; it returns what went wrong, or "".
  template <class Work>
  void from_all(uint32_t rounds, Work&& work) {
    std::mutex mutex;
    std::set<std::string> wrong;
    std::atomic<uint32_t> ready = 0;
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        ++ready;
        while (ready < kThreads) {
          std::this_thread::yield();
        }
        for (uint32_t round = 0; round < rounds; ++round) {
          const std::string text = work(thread, round);
          if (!text.empty()) {
            const std::lock_guard<std::mutex> lock(mutex);
            wrong.insert(text);
            return;
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const std::string& text : wrong) {
      ADD_FAILURE() << text;
    }
  }
};

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string ThreadTest::answers() {
  const Tables& t = rig().tables();
  std::string out;
  uint32_t count = 0;
  append(out, t.device->count(rig().plugin_self(), &count, nullptr));
  append(out, count);
  kvspan_device_info_t info = {};
  info.struct_size = sizeof info;
  append(out, t.device->describe(rig().plugin_self(), settings().device, &info, nullptr));
  append(out, info);
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  append(out, t.copy->limits(rig().device(), &limits, nullptr));
  append(out, limits);
  for (const kvspan_type_t type : {KVSPAN_TYPE_F16, KVSPAN_TYPE_Q4_0, kvspan_type_t{99}}) {
    kvspan_codec_caps_t caps = {};
    caps.struct_size = sizeof caps;
    append(out, t.codec->query(rig().device(), KVSPAN_TYPE_F32, type, 80, &caps, nullptr));
    append(out, caps);
  }
  for (const uint32_t head_size : {64u, 128u, 80u, 64u, 1000u}) {
    if (t.attention == nullptr) {
      break;
    }
    kvspan_attention_shape_t shape = {};
    shape.struct_size = sizeof shape;
    shape.k_type = shape.v_type = KVSPAN_TYPE_Q8_0;
    shape.head_size_k = shape.head_size_v = head_size;
    shape.q_heads = shape.kv_heads = shape.memory_kinds = 1;
    shape.rows_max = shape.entries_max = shape.items_max = shape.spans_max = 3;
    shape.tokens_max = 1000;
    shape.row_class = head_size == 128 ? KVSPAN_ROWS_PREFILL : KVSPAN_ROWS_DECODE;
    kvspan_attention_caps_t caps = {};
    caps.struct_size = sizeof caps;
    append(out, t.attention->query(rig().device(), &shape, &caps, nullptr));
    append(out, caps);
  }
  return out;
}

KVSPAN_CASE(ThreadTest,
            QuestionsAreAnsweredAlikeFromSixteenThreads,
            "KV-THREAD-1 KV-THREAD-2 KV-DEVICE-2",
            cost_ms(300)) {
  const std::string alone = answers();
  from_all(cases(settings(), 600, 60), [&](uint32_t, uint32_t) {
    return answers() == alone ? "" : "another answer than from one thread";
  });
  EXPECT_EQ(answers(), alone);
}

KVSPAN_CASE(ThreadTest,
            FencesAndMemoriesAreMadeAndEndedFromSixteenThreads,
            "KV-THREAD-1 KV-STRUCT-4",
            cost_ms(300)) {
  const Tables& t = rig().tables();
  kvspan_device_t* device = rig().device();
  std::mutex mutex;
  std::set<void*> alive;
  const auto born = [&](void* handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    return handle != nullptr && alive.insert(handle).second;
  };
  const auto ends = [&](void* handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    alive.erase(handle);
  };
  from_all(cases(settings(), 300, 30), [&](uint32_t thread, uint32_t round) -> std::string {
    kvspan_fence_t* fence = nullptr;
    kvspan_memory_t* memory = nullptr;
    if (t.fence->create(device, round, &fence, nullptr) != KVSPAN_OK ||
        t.memory->alloc(device, KVSPAN_MEMORY_HOST, 256 + thread, &memory, nullptr) != KVSPAN_OK) {
      return "create or alloc failed";
    }
    if (!born(fence) || !born(memory)) {
      return "KV-STRUCT-4: a handle is NULL or that of a living object";
    }
    uint64_t value = 0;
    void* address = nullptr;
    const kvspan_point_t point = {fence, round + 1};
    const kvspan_error_t clean = fresh_error();
    kvspan_error_t error = clean;
    if (t.memory->map(memory, &address, nullptr) != KVSPAN_OK) {
      return "map failed";
    }
    std::memset(address, static_cast<int>(thread), 256 + thread);
    if (t.fence->wait(device, &point, 1, KVSPAN_WAIT_ALL, 0, nullptr) != KVSPAN_TIMEOUT ||
        t.fence->signal(fence, round, &error) != KVSPAN_E_INVALID_ARG ||
        t.fence->signal(fence, round + 1, nullptr) != KVSPAN_OK ||
        t.fence->query(fence, &value, nullptr) != KVSPAN_OK || value != round + 1 ||
        t.fence->wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr) != KVSPAN_OK) {
      return "a fence did not do what it does alone";
    }
    const auto* bytes = static_cast<const uint8_t*>(address);
    for (uint32_t i = 0; i < 256 + thread; ++i) {
      if (bytes[i] != thread) {
        return "somebody else's bytes";
      }
    }
    ends(fence);
    ends(memory);
    return t.fence->destroy(fence, nullptr) == KVSPAN_OK &&
                   t.memory->release(memory, nullptr) == KVSPAN_OK
               ? ""
               : "destroy or release failed";
  });
}

/// A waiter in each thread, and one signal for all of them.
KVSPAN_CASE(ThreadTest, OneSignalReleasesEveryWaiter, "KV-THREAD-1 KV-FENCE-5") {
  for (uint32_t round = 0; round < cases(settings(), 30, 5) && !HasFailure(); ++round) {
    kvspan_fence_t* fence = rig().fence();
    std::atomic<uint32_t> waiting = 0;
    std::atomic<uint32_t> wrong = 0;
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        ++waiting;
        const kvspan_point_t point = {fence, 1};
        const kvspan_result_t result = rig().tables().fence->wait(
            rig().device(), &point, 1, KVSPAN_WAIT_ALL, 60'000'000'000, nullptr);
        wrong += result == KVSPAN_OK ? 0u : 1u;
      });
    }
    while (waiting < kThreads) {
      std::this_thread::yield();
    }
    EXPECT_EQ(rig().tables().fence->signal(fence, 1, nullptr), KVSPAN_OK);
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(wrong, 0u);
    rig().destroy(fence);
  }
}

KVSPAN_CASE(ThreadTest, AQueueGoesFromThreadToThread, "KV-THREAD-2 KV-QUEUE-1") {
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
  const kvspan_range_t range = {buffer->memory, 0, 4096};
  for (uint64_t hand = 1; hand <= 40 && !HasFailure(); ++hand) {
    std::thread other([&] {  // made, used and gone: the next thread is a new one
      Submit submit;
      submit.signal(lane.next());
      EXPECT_EQ(rig().calls().fill(lane.queue, &range, hand, 1, submit.raw(), nullptr), KVSPAN_OK);
      EXPECT_TRUE(hand % 3 != 0 || rig().wait(lane.last()) == KVSPAN_OK);
    });
    other.join();
  }
  ASSERT_EQ(rig().wait(lane.last()), KVSPAN_OK);
  buffer->image.assign(buffer->bytes(), uint8_t{40});
  EXPECT_TRUE(rig().unchanged(*buffer));
}

}  // namespace
}  // namespace kvspan::conformance
