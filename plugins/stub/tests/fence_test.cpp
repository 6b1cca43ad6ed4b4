// SPDX-License-Identifier: Apache-2.0
// Fences of the stub against a model, and what only it does: deadlocks are named, not hung on.
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace kvspan::stub_test {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;

/// What a fence will have come to once all that is submitted has settled.
struct ModelFence {
  std::uint64_t value = 0;     // last one reached
  std::uint64_t promised = 0;  // greatest one submitted
  std::uint64_t seen = 0;      // greatest one that query showed
  kvspan_result_t cause = KVSPAN_OK;

  bool reaches(std::uint64_t wanted) const { return wanted <= value; }
};

/// Random submits, signals, failures, polls and waits, checked against the model. Fence i is only
/// signalled by queue i, and the host touches it only when all of its work has settled.
class RandomFences {
 public:
  explicit RandomFences(std::uint64_t seed)
      : dice_(seed),
        rig_({{"seed", std::to_string(seed)}, {"queues", seed % 2 == 0 ? "shuffled" : "one"}}),
        slots_(rig_.memory(KVSPAN_MEMORY_HOST, kSlots)) {
    std::memset(rig_.bytes(slots_), 0, kSlots);
    for (std::uint32_t i = 0; i < kFences; ++i) {
      queues_.push_back(rig_.queue(i % KVSPAN_ROLE_COUNT));
      fences_.push_back(rig_.fence());
      model_.emplace_back();
    }
  }

  void run() {
    for (int i = 0; i < 60 && !::testing::Test::HasFatalFailure(); ++i) {
      switch (dice_.below(6)) {
        case 0:
          wait_one();
          break;
        case 1:
          query_one();
          break;
        case 2:
          touch_from_host();
          break;
        case 3:
          break_a_rule();
          break;
        default:
          submit();
      }
    }
    finish();
  }

 private:
  static constexpr std::uint32_t kFences = 4;
  static constexpr std::uint32_t kSlots = 64;

  kvspan_point_t some_promised() {
    const std::uint64_t i = dice_.below(kFences);
    return {fences_[i].get(), dice_.below(model_[i].promised + 1)};
  }

  ModelFence& model_of(const kvspan_point_t& point) {
    for (std::uint32_t i = 0; i < kFences; ++i) {
      if (fences_[i].get() == point.fence) {
        return model_[i];
      }
    }
    ADD_FAILURE() << "a fence of nobody";
    return model_[0];
  }

  void submit() {
    if (expected_.size() == kSlots) {
      return;
    }
    const std::uint64_t i = dice_.below(kFences);
    ModelFence& fence = model_[i];
    const kvspan_point_t signal{fences_[i].get(), fence.promised + 1 + dice_.below(3)};
    Points points{{}, {signal}, expected_.size()};
    bool blocked = false;
    for (std::uint64_t left = dice_.below(3); left != 0; --left) {
      points.waits.push_back(some_promised());
      blocked = blocked || !model_of(points.waits.back()).reaches(points.waits.back().value);
    }
    const bool planted = dice_.below(12) == 0;
    if (planted) {
      ASSERT_EQ(rig_.fault(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_INTERNAL), KVSPAN_OK);
    }
    const kvspan_range_t slot{slots_.get(), expected_.size(), 1};
    ASSERT_EQ(rig_.fill(queues_[i], slot, 1, points), KVSPAN_OK) << rig_.error.message;
    const bool undefined = planted || fence.cause != KVSPAN_OK;
    expected_.push_back(blocked ? Outcome::untouched : undefined ? Outcome::any : Outcome::written);
    fence.promised = signal.value;
    if (fence.cause == KVSPAN_OK && (blocked || planted)) {
      fence.cause = blocked ? KVSPAN_E_WAIT_FAILED : KVSPAN_E_INTERNAL;
    }
    if (fence.cause == KVSPAN_OK) {
      fence.value = signal.value;
    }
  }

  void wait_one() {
    const kvspan_point_t point = some_promised();
    const ModelFence& fence = model_of(point);
    const kvspan_result_t expected = fence.reaches(point.value) ? KVSPAN_OK : fence.cause;
    ASSERT_EQ(rig_.wait({point}), expected) << rig_.error.message;
  }

  void query_one() {
    const std::uint64_t i = dice_.below(kFences);
    ModelFence& fence = model_[i];
    std::uint64_t value = 0;
    const kvspan_result_t result =
        rig_.plugin().fence()->query(fences_[i].get(), &value, &rig_.error);
    ASSERT_GE(value, fence.seen);
    ASSERT_LE(value, fence.value);
    if (result != KVSPAN_OK) {
      ASSERT_EQ(result, fence.cause);
      ASSERT_EQ(value, fence.value);
    }
    fence.seen = value;
  }

  void settle(std::uint64_t i) {
    const ModelFence& fence = model_[i];
    const kvspan_result_t result = rig_.wait({{fences_[i].get(), fence.promised}});
    ASSERT_EQ(result, fence.reaches(fence.promised) ? KVSPAN_OK : fence.cause);
  }

  void touch_from_host() {
    const std::uint64_t i = dice_.below(kFences);
    settle_everything();
    ModelFence& fence = model_[i];
    kvspan_fence_t* const handle = fences_[i].get();
    const kvspan_fence_table_t& table = *rig_.plugin().fence();
    if (dice_.below(4) == 0) {
      ASSERT_EQ(table.fail(handle, KVSPAN_E_FAILED, &rig_.error), KVSPAN_OK);
      fence.cause = fence.cause == KVSPAN_OK ? KVSPAN_E_FAILED : fence.cause;
      return;
    }
    const std::uint64_t value = fence.value + dice_.below(3);
    kvspan_result_t expected = fence.cause;
    if (expected == KVSPAN_OK) {
      expected = value > fence.value ? KVSPAN_OK : KVSPAN_E_INVALID_ARG;
    }
    ASSERT_EQ(table.signal(handle, value, &rig_.error), expected) << rig_.error.message;
    if (expected == KVSPAN_OK) {
      fence.value = value;
      fence.promised = value > fence.promised ? value : fence.promised;
    }
  }

  void break_a_rule() {
    const std::uint64_t i = dice_.below(kFences);
    const ModelFence& fence = model_[i];
    const kvspan_range_t nothing{nullptr, 0, 0};
    const kvspan_point_t old{fences_[i].get(), fence.value};
    EXPECT_EQ(rig_.fill(queues_[i], nothing, 0, {{}, {old}}), KVSPAN_E_INVALID_ARG);
    if (fence.cause == KVSPAN_OK) {
      const kvspan_point_t unknown{fences_[i].get(), fence.promised + 1};
      EXPECT_EQ(rig_.fill(queues_[i], nothing, 0, {{unknown}, {}}), KVSPAN_E_UNSUPPORTED);
    }
  }

  void settle_everything() {
    for (std::uint32_t i = 0; i < kFences; ++i) {
      settle(i);
    }
  }

  void finish() {
    settle_everything();
    for (std::uint32_t i = 0; i < kFences; ++i) {
      std::uint64_t value = 0;
      EXPECT_EQ(rig_.plugin().fence()->query(fences_[i].get(), &value, nullptr), model_[i].cause);
      EXPECT_EQ(value, model_[i].value);
      EXPECT_EQ(fences_[i].reset(&rig_.error), KVSPAN_OK) << rig_.error.message;
    }
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i] != Outcome::any) {
        EXPECT_EQ(rig_.bytes(slots_)[i], expected_[i] == Outcome::written ? 1 : 0) << "slot " << i;
      }
    }
  }

  enum class Outcome { written, untouched, any };

  Dice dice_;
  Rig rig_;
  sdk::Memory slots_;
  std::vector<sdk::Queue> queues_;
  std::vector<sdk::Fence> fences_;
  std::vector<ModelFence> model_;
  std::vector<Outcome> expected_;
};

TEST(Fence, AgreesWithTheModelForEverySeed) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomFences(seed).run();
    if (HasFailure()) {
      return;
    }
  }
}

TEST(Fence, AFailedThirdOfEightStopsTheRest) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(Options{{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    const sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 8);
    std::memset(rig.bytes(target), 0, 8);
    std::vector<sdk::Queue> queues;
    std::vector<sdk::Fence> fences;
    ASSERT_EQ(rig.fault(KVSPAN_FAULT_SUBMIT, 3, KVSPAN_E_INTERNAL), KVSPAN_OK);
    for (std::uint32_t i = 0; i < 8; ++i) {
      queues.push_back(rig.queue(i % KVSPAN_ROLE_COUNT));
      fences.push_back(rig.fence());
      Points points{{}, {{fences[i].get(), 1}}, 100 + i};
      if (i != 0) {
        points.waits.push_back({fences[i - 1].get(), 1});
      }
      ASSERT_EQ(rig.fill(queues[i], {target.get(), i, 1}, 1, points), KVSPAN_OK);
    }
    for (std::uint32_t i = 8; i-- > 0;) {
      const kvspan_result_t expected = i < 2    ? KVSPAN_OK
                                       : i == 2 ? KVSPAN_E_INTERNAL
                                                : KVSPAN_E_WAIT_FAILED;
      ASSERT_EQ(rig.wait({{fences[i].get(), 1}}), expected) << i;
      if (i >= 2) {
        EXPECT_EQ(rig.error.submit_id, 100 + i);
        EXPECT_NE(rig.error.flags & KVSPAN_ERROR_ASYNC, 0u);
      }
    }
    EXPECT_EQ(std::memcmp(rig.bytes(target), "\1\1", 2), 0);
    EXPECT_EQ(std::memcmp(rig.bytes(target) + 3, "\0\0\0\0\0", 5), 0) << "destinations 4..8";
  }
}

TEST(Fence, WorkWhoseFenceHasFailedLetsGoOfItsMemoryAtOnce) {
  Rig rig({});
  sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 1);
  rig.bytes(target)[0] = 0;
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  const sdk::Fence other = rig.fence();
  const kvspan_range_t byte{target.get(), 0, 1};
  const kvspan_point_t point{fence.get(), 1};
  ASSERT_EQ(rig.fill(queue, byte, 1, {{}, {point, {other.get(), 1}}}), KVSPAN_OK);
  ASSERT_EQ(rig.plugin().fence()->fail(fence.get(), KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  EXPECT_EQ(target.reset(), KVSPAN_E_BUSY) << "its other point has not settled";
  ASSERT_EQ(rig.wait({{other.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.bytes(target)[0], 1);
  ASSERT_EQ(rig.fill(queue, byte, 2, {{}, {{other.get(), 2}}}), KVSPAN_OK);
  ASSERT_EQ(rig.plugin().fence()->fail(other.get(), KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{other.get(), 2}}), KVSPAN_E_FAILED);
  EXPECT_EQ(rig.bytes(target)[0], 1) << "its points had settled before it ran";
  EXPECT_EQ(target.reset(), KVSPAN_OK);
}

TEST(Fence, WithoutFailStopsFailedWorkRunsAndStillFails) {
  Rig rig(Options{{"fail_stops", "no"}});
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(rig.plugin().device()->describe(rig.plugin().self(), 0, &info, nullptr), KVSPAN_OK);
  EXPECT_EQ(info.flags & KVSPAN_DEVICE_FAIL_STOPS, 0u);
  const sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 1);
  rig.bytes(target)[0] = 0;
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence failed = rig.fence();
  const sdk::Fence done = rig.fence();
  ASSERT_EQ(rig.plugin().fence()->fail(failed.get(), KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  ASSERT_EQ(rig.fill(queue, {target.get(), 0, 1}, 1, {{{failed.get(), 1}}, {{done.get(), 1}}}),
            KVSPAN_OK);
  EXPECT_EQ(rig.wait({{done.get(), 1}}), KVSPAN_E_WAIT_FAILED);
  EXPECT_EQ(rig.bytes(target)[0], 1);
}

TEST(Fence, AnEndlessWaitForNothingNamesTheDeadlock) {
  Rig rig(Options{{"deadlock_ms", "0"}});
  const sdk::Fence fence = rig.fence(3);
  EXPECT_EQ(rig.wait({{fence.get(), 7}}), KVSPAN_E_INVALID_ARG);
  EXPECT_NE(std::strstr(rig.error.message, "deadlock"), nullptr) << rig.error.message;
  EXPECT_NE(std::strstr(rig.error.message, "value 7"), nullptr) << rig.error.message;
}

TEST(Fence, AFiniteWaitForNothingIsATimeoutAndNeverEarly) {
  Rig rig({});
  const sdk::Fence fence = rig.fence();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(rig.wait({{fence.get(), 1}}, 20 * kMillisecond), KVSPAN_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
  EXPECT_EQ(rig.wait({{fence.get(), 1}}, 0), KVSPAN_TIMEOUT);
  ASSERT_EQ(rig.plugin().fence()->signal(fence.get(), 1, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 1}}, 0), KVSPAN_OK);
}

TEST(Fence, AnotherThreadMayEndAWait) {
  Rig rig(Options{{"deadlock_ms", "600000"}});
  sdk::Fence fence = rig.fence();
  std::thread waiter([&] {
    kvspan_error_t error{};
    const kvspan_point_t point{fence.get(), 1};
    EXPECT_EQ(
        rig.plugin().fence()->wait(rig.device(), &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error),
        KVSPAN_OK)
        << error.message;
  });
  ASSERT_EQ(rig.plugin().fence()->signal(fence.get(), 1, nullptr), KVSPAN_OK);
  waiter.join();
  EXPECT_EQ(fence.reset(), KVSPAN_OK);
}

TEST(Fence, PollingAloneGetsWorkDone) {
  Rig rig(Options{{"queues", "shuffled"}});
  const sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 1);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  ASSERT_EQ(rig.fill(queue, {target.get(), 0, 1}, 5, {{}, {{fence.get(), 1}}}), KVSPAN_OK);
  std::uint64_t value = 0;
  for (int polls = 0; polls < 3 && value == 0; ++polls) {
    ASSERT_EQ(rig.plugin().fence()->query(fence.get(), &value, nullptr), KVSPAN_OK);
  }
  EXPECT_EQ(value, 1u);
  EXPECT_EQ(rig.bytes(target)[0], 5);
}

TEST(Fence, WhatPendingWorkNamesCannotBeEnded) {
  Rig rig({});
  sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 1);
  sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  sdk::Fence fence = rig.fence();
  const kvspan_point_t point{fence.get(), 1};
  ASSERT_EQ(rig.fill(queue, {target.get(), 0, 1}, 5, {{}, {point}}), KVSPAN_OK);
  EXPECT_EQ(target.reset(&rig.error), KVSPAN_E_BUSY);
  EXPECT_EQ(fence.reset(&rig.error), KVSPAN_E_BUSY);
  EXPECT_EQ(queue.reset(&rig.error), KVSPAN_E_BUSY);
  EXPECT_EQ(rig.error.provided, 1u);
  EXPECT_EQ(rig.wait({point}), KVSPAN_OK);
  EXPECT_EQ(target.reset(&rig.error), KVSPAN_OK);
  EXPECT_EQ(fence.reset(&rig.error), KVSPAN_OK);
  EXPECT_EQ(queue.reset(&rig.error), KVSPAN_OK);
}

TEST(Fence, AFullQueueSaysHowDeepItWouldHaveToBe) {
  Rig rig({});
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE, 2);
  const sdk::Fence fence = rig.fence();
  const kvspan_range_t nothing{nullptr, 0, 0};
  for (std::uint64_t i = 1; i <= 2; ++i) {
    ASSERT_EQ(rig.fill(queue, nothing, 0, {{}, {{fence.get(), i}}}), KVSPAN_OK);
  }
  EXPECT_EQ(rig.fill(queue, nothing, 0, {{}, {{fence.get(), 3}}}), KVSPAN_E_QUEUE_FULL);
  EXPECT_EQ(rig.error.required, 3u);
  EXPECT_EQ(rig.error.resource, KVSPAN_RESOURCE_QUEUE_DEPTH);
  EXPECT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.fill(queue, nothing, 0, {{}, {{fence.get(), 3}}}), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 3}}), KVSPAN_OK);
}

TEST(Fence, TheHostMaySignalOnlyBelowWhatWorkHasPromised) {
  Rig rig({});
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Queue other = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  const kvspan_range_t nothing{nullptr, 0, 0};
  ASSERT_EQ(rig.fill(queue, nothing, 0, {{}, {{fence.get(), 5}}}), KVSPAN_OK);
  EXPECT_EQ(rig.fill(other, nothing, 0, {{}, {{fence.get(), 6}}}), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(rig.plugin().fence()->signal(fence.get(), 5, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(rig.plugin().fence()->signal(fence.get(), 4, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 5}}), KVSPAN_OK);
  EXPECT_EQ(rig.fill(other, nothing, 0, {{}, {{fence.get(), 6}}}), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 6}}), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::stub_test
