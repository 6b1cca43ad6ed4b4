// SPDX-License-Identifier: Apache-2.0
// Queues with real threads: random graphs of copies over several queues, submitted and waited for
// from several host threads; failures, cancel words, a lost device. Meant for TSan above all.
#include "rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

namespace kvspan::cpu {
namespace {

// Rounds of a stress test: enough to meet every interleaving that a day of use meets, few enough
// for TSan.
constexpr uint32_t kRounds = 300;

// Each of three threads owns a queue and a cell. It copies its neighbour's cell behind the
// neighbour's point, then its own value: a wait that ends early shows as a torn or stale value.
TEST(Queue, CarriesValuesThroughChainsOfQueues) {
  Rig rig(2);
  constexpr uint32_t kQueues = 3;
  constexpr uint64_t kCell = 4096;
  void* address = nullptr;
  kvspan_memory_t* const memory = rig.memory(kCell * (kQueues + 1), &address);
  std::memset(address, 0, kCell * (kQueues + 1));
  std::vector<Line*> lines;
  for (uint32_t i = 0; i < kQueues; ++i) {
    lines.push_back(&rig.line(i % KVSPAN_ROLE_COUNT, 16));
  }
  // Round r: fill cell 0 with r, copy cell i to i + 1 on queue i. Everything waits for what it
  // follows.
  for (uint32_t round = 1; round <= kRounds; ++round) {
    const kvspan_range_t range{memory, 0, kCell};
    std::vector<kvspan_point_t> waits{{lines[0]->fence, lines[0]->value}};
    while (rig.submit(
               *lines[0],
               [&](auto* queue, const auto* submit, auto* error) {
                 return kCopyTable.fill(queue, &range, round, 4, submit, error);
               },
               waits) == KVSPAN_E_QUEUE_FULL) {
      ASSERT_EQ(rig.wait(*lines[kQueues - 1]), KVSPAN_OK);
    }
    for (uint32_t i = 0; i < kQueues; ++i) {
      const kvspan_segment_t segment{memory, memory, i * kCell, (i + 1) * kCell, kCell, 1, 0, 0};
      Line& before = *lines[i == 0 ? 0 : i - 1];
      const std::vector<kvspan_point_t> after{{before.fence, before.value}};
      while (rig.submit(
                 *lines[i],
                 [&](auto* queue, const auto* submit, auto* error) {
                   return kCopyTable.copy(queue, &segment, 1, submit, error);
                 },
                 after) == KVSPAN_E_QUEUE_FULL) {
        ASSERT_EQ(rig.wait(*lines[i]), KVSPAN_OK);
      }
    }
    if (round % 7 == 0) {
      ASSERT_EQ(rig.wait(*lines[kQueues - 1]), KVSPAN_OK) << rig.error.message;
      for (uint32_t i = 0; i < kCell / 4; ++i) {
        const auto* const cell =
            reinterpret_cast<const uint32_t*>(static_cast<uint8_t*>(address) + kQueues * kCell);
        ASSERT_EQ(cell[i], round);
      }
    } else {
      // The next fill must not overtake the last copy.
      const kvspan_segment_t none{};
      const std::vector<kvspan_point_t> last{{lines[kQueues - 1]->fence, lines[kQueues - 1]->value},
                                             {lines[1]->fence, lines[1]->value}};
      while (rig.submit(
                 *lines[0],
                 [&](auto* queue, const auto* submit, auto* error) {
                   return kCopyTable.copy(queue, &none, 1, submit, error);
                 },
                 last) == KVSPAN_E_QUEUE_FULL) {
        ASSERT_EQ(rig.wait(*lines[0]), KVSPAN_OK);
      }
    }
  }
  for (Line* line : lines) {
    ASSERT_EQ(rig.wait(*line), KVSPAN_OK);
  }
}

TEST(Queue, WakesEveryHostThreadThatWaits) {
  Rig rig(1);
  Line& line = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  std::atomic<uint32_t> woken{0};
  std::vector<std::thread> threads;
  for (uint64_t value = 1; value <= 4; ++value) {
    threads.emplace_back([&, value] {
      kvspan_error_t error = no_error();
      const kvspan_point_t point{line.fence, value};
      if (kFenceTable.wait(rig.device, &point, 1, KVSPAN_WAIT_ANY, UINT64_MAX, &error) ==
          KVSPAN_OK) {
        ++woken;
      }
    });
  }
  const kvspan_segment_t none{};
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(rig.submit(line,
                         [&](auto* queue, const auto* submit, auto* error) {
                           return kCopyTable.copy(queue, &none, 1, submit, error);
                         }),
              KVSPAN_OK);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(woken, 4u);
}

// The process's handlers run on the host's threads only.
TEST(Queue, BlocksAllSignalsInItsThreads) {
  const auto unblocked = [] {
    size_t count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(task.path() / "status");
      std::string word;
      while (status >> word && word != "SigBlk:") {
      }
      status >> word;
      count += (std::stoull(word, nullptr, 16) >> (SIGTERM - 1) & 1) == 0 ? 1u : 0u;
    }
    return count;
  };
  const size_t before = unblocked();
  Rig rig(3);
  rig.line(KVSPAN_ROLE_UPLOAD, 4);
  EXPECT_EQ(unblocked(), before);
}

TEST(Queue, FailsWhatFollowsAFailureAndNothingElse) {
  Rig rig(1);
  Line& line = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  void* address = nullptr;
  kvspan_memory_t* const memory = rig.memory(64, &address);
  const kvspan_range_t range{memory, 0, 64};
  const auto fill = [&](auto* queue, const auto* submit, auto* error) {
    return kCopyTable.fill(queue, &range, 0, 1, submit, error);
  };
  kvspan_fence_t* failed = nullptr;
  rig.expect_ok(kFenceTable.create(rig.device, 0, &failed, &rig.error), "fence");
  rig.expect_ok(rig.submit(line, fill, {{failed, 1}}), "submit");
  rig.expect_ok(kFenceTable.fail(failed, KVSPAN_E_FAILED, &rig.error), "fail");
  EXPECT_EQ(rig.wait(line), KVSPAN_E_WAIT_FAILED);
  EXPECT_EQ(rig.error.submit_id, 1u);
  EXPECT_NE(rig.error.flags & KVSPAN_ERROR_ASYNC, 0u);
  EXPECT_EQ(*static_cast<uint8_t*>(address), 0xFF) << "work behind a failed point has started";
  Line& other = rig.line(KVSPAN_ROLE_DOWNLOAD, 8);
  rig.settle(other, fill);
  EXPECT_EQ(*static_cast<uint8_t*>(address), 0);
  rig.expect_ok(kFenceTable.destroy(failed, &rig.error), "destroy");
}

TEST(Queue, SeesACancelWordAndGoesOn) {
  Rig rig(1);
  Line& line = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  void* word_address = nullptr;
  kvspan_memory_t* const word = rig.memory(64, &word_address);
  void* address = nullptr;
  kvspan_memory_t* const memory = rig.memory(64, &address);
  __atomic_store_n(static_cast<uint32_t*>(word_address), 1u, __ATOMIC_RELEASE);
  const kvspan_range_t range{memory, 0, 64};
  const kvspan_result_t result =
      rig.submit(line, [&](auto* queue, const auto* submit, auto* error) {
        kvspan_submit_t cancelled = *submit;
        cancelled.cancel_memory = word;
        return kCopyTable.fill(queue, &range, 0, 1, &cancelled, error);
      });
  rig.expect_ok(result, "submit");
  EXPECT_EQ(rig.wait(line), KVSPAN_E_CANCELLED);
  EXPECT_EQ(*static_cast<uint8_t*>(address), 0xFF);
  Line& fresh = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  rig.settle(fresh, [&](auto* queue, const auto* submit, auto* error) {
    return kCopyTable.fill(queue, &range, 0, 1, submit, error);
  });
  EXPECT_EQ(*static_cast<uint8_t*>(address), 0);
}

TEST(Queue, LosesTheDeviceForGoodAndStillCloses) {
  Rig rig(2);
  Line& line = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  Line& other = rig.line(KVSPAN_ROLE_DOWNLOAD, 8);
  kvspan_memory_t* const memory = rig.memory(64);
  const kvspan_range_t range{memory, 0, 64};
  const auto fill = [&](auto* queue, const auto* submit, auto* error) {
    return kCopyTable.fill(queue, &range, 0, 1, submit, error);
  };
  rig.expect_ok(rig.submit(other, fill, {{line.fence, 2}}), "submit");  // hangs until the loss
  rig.expect_ok(
      kDebugTable.fault(rig.device, KVSPAN_FAULT_DEVICE, 1, KVSPAN_E_DEVICE_LOST, &rig.error),
      "fault");
  rig.expect_ok(rig.submit(line, fill), "submit");
  EXPECT_EQ(rig.wait(line), KVSPAN_E_DEVICE_LOST);
  EXPECT_NE(rig.error.flags & KVSPAN_ERROR_REOPEN_DEVICE, 0u);
  EXPECT_EQ(rig.wait(other), KVSPAN_E_DEVICE_LOST);
  EXPECT_EQ(rig.submit(line, fill), KVSPAN_E_DEVICE_LOST) << "a loss is sticky";
}  // and the rig's end destroys everything

}  // namespace
}  // namespace kvspan::cpu
