// SPDX-License-Identifier: Apache-2.0
// Queues, their threads and fences without a card: CUDA's streams and events are played here by one
// thread that runs what is ready in any order. Values are never reached before their work ended,
// every wait ends, and the threads that settle sleep once for many submits where nobody waits.
#include "queue.hpp"

#include "fence.hpp"
#include "tests/fake_card.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace {

using kvspan::cuda::test::FakeCard;
using kvspan::cuda::test::FakeEvent;
using kvspan::cuda::test::FakeOp;
using kvspan::cuda::test::FakeStream;

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): CUDA's functions know no
// object.
FakeCard* fake_card = nullptr;

}  // namespace

// NOLINTBEGIN(readability-*): these stand in for CUDA's own.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = fake_card->add_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  fake_card->drain(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  fake_card->wait(stream, reinterpret_cast<FakeEvent*>(event));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent{(flags & cudaEventBlockingSync) != 0});
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<FakeEvent*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  fake_card->record(stream, reinterpret_cast<FakeEvent*>(event));
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  fake_card->synchronize(reinterpret_cast<FakeEvent*>(event));
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return fake_card->has_ended(reinterpret_cast<FakeEvent*>(event)) ? cudaSuccess
                                                                   : cudaErrorNotReady;
}

cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  *made = std::malloc(bytes);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned int) {
  *made = std::malloc(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* made) {
  fake_card->expect_unused(made);
  std::free(made);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* made) {
  std::free(made);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int, std::size_t, cudaStream_t stream) {
  // A queue clears what lies behind the descriptors of its work.
  const void* const begin = static_cast<const uint8_t*>(memory) - kvspan::cuda::kRoomBytes;
  fake_card->push(stream, {FakeOp::Kind::clear, nullptr, 0, nullptr, begin});
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

// NOLINTEND(readability-*)

namespace kvspan::cuda {
namespace {

void* KVSPAN_CALL take(kvspan_host_t*, uint64_t bytes, uint64_t alignment) noexcept {
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void KVSPAN_CALL give(kvspan_host_t*, void* block, uint64_t, uint64_t) noexcept {
  std::free(block);
}

struct WorkBody {
  std::atomic<bool>* ended;
  bool gate;
};

cudaError_t issue_work(const Issue& issue, const void* opaque) {
  const auto& body = *static_cast<const WorkBody*>(opaque);
  if (body.gate) {
    fake_card->push(issue.stream, {FakeOp::Kind::gate, nullptr, 0, nullptr, nullptr});
  }
  fake_card->push(issue.stream, {FakeOp::Kind::work, nullptr, 0, body.ended, nullptr});
  return cudaSuccess;
}

class Work final : public Task {
 public:
  Work(std::atomic<bool>* ended, bool gate) : ended_(ended), gate_(gate) {}

  void lay_out(Cutter& cutter) override { cutter.cut(body_, 1); }

  void fill(Packet& packet, Uses&) override {
    *body_ = {ended_, gate_};
    packet.body = body_;
    packet.issue = issue_work;
  }

 private:
  std::atomic<bool>* ended_;
  bool gate_;
  WorkBody* body_ = nullptr;
};

CUresult accept(CUcontext) {
  return CUDA_SUCCESS;
}

CUresult give_up(CUcontext*) {
  return CUDA_SUCCESS;
}

class QueueTest : public testing::Test {
 protected:
  static constexpr uint32_t kDepth = 128;
  static constexpr uint64_t kWorksMax = 4096;  // of a line

  // A queue with a fence, and what of its work has ended.
  struct Line {
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fence = nullptr;
    uint64_t last = 0;
    std::vector<std::atomic<bool>> ended = std::vector<std::atomic<bool>>(kWorksMax);
  };

  void SetUp() override {
    services_.alloc = take;
    services_.free = give;
    card_ = std::make_unique<FakeCard>(7);
    fake_card = card_.get();
    plugin_ = std::make_unique<Plugin>(Host(&services_));
    device_ = std::make_unique<Device>(*plugin_);
    device_->driver.push = accept;
    device_->driver.pop = give_up;
    ASSERT_EQ(device_->pool.open(0), cudaSuccess);
    ASSERT_EQ(device_->pinned.open(0), cudaSuccess);
  }

  void TearDown() override {
    end_lines();
    device_->pinned.close();
    device_->pool.close();
    device_.reset();
    card_.reset();
  }

  // Waits for what is under way, whatever became of it, and gives everything back.
  void end_lines() {
    for (const auto& line : lines_) {
      (void)wait(*line, line->last);
    }
    for (const auto& line : lines_) {
      kvspan_result_t ended = kQueueTable.destroy(line->queue, nullptr);
      while (ended == KVSPAN_E_BUSY) {  // behind a failure some are still on their way
        std::this_thread::yield();
        ended = kQueueTable.destroy(line->queue, nullptr);
      }
      EXPECT_EQ(ended, KVSPAN_OK);
    }
    for (const auto& line : lines_) {
      EXPECT_EQ(kFenceTable.destroy(line->fence, nullptr), KVSPAN_OK);
    }
    lines_.clear();
  }

  Line& add_line(bool imported = false, uint32_t depth = kDepth) {
    lines_.push_back(std::make_unique<Line>());
    Line& line = *lines_.back();
    cudaStream_t stream = imported ? card_->add_stream() : nullptr;
    EXPECT_EQ(make_queue(*device_, depth, stream, &line.queue, nullptr, "test"), KVSPAN_OK);
    EXPECT_EQ(kFenceTable.create(handle_of(device_.get()), 0, &line.fence, nullptr), KVSPAN_OK);
    return line;
  }

  // The next work of a line behind `waits`.
  kvspan_result_t submit(Line& line, const std::vector<kvspan_point_t>& waits, bool gate = false) {
    const kvspan_point_t signal{line.fence, line.last + 1};
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.wait_count = static_cast<uint32_t>(waits.size());
    submit.waits = waits.data();
    submit.signal_count = 1;
    submit.signals = &signal;
    submit.submit_id = signal.value;
    Work work(&line.ended[signal.value], gate);
    const kvspan_result_t result = queue_of(line.queue)->submit(work, &submit, 2, nullptr, "test");
    line.last += result == KVSPAN_OK ? 1 : 0;
    return result;
  }

  kvspan_result_t wait(const Line& line, uint64_t value, uint64_t timeout_ns = UINT64_MAX) {
    const kvspan_point_t point{line.fence, value};
    return kFenceTable.wait(
        handle_of(device_.get()), &point, 1, KVSPAN_WAIT_ALL, timeout_ns, nullptr);
  }

  // What a host does that runs ahead.
  void submit_all(Line& line, const std::vector<kvspan_point_t>& waits) {
    kvspan_result_t result = submit(line, waits);
    while (result == KVSPAN_E_QUEUE_FULL) {
      ASSERT_EQ(wait(line, line.last - kDepth / 2), KVSPAN_OK);
      result = submit(line, waits);
    }
    ASSERT_EQ(result, KVSPAN_OK);
  }

  kvspan_host_services_t services_{};
  std::unique_ptr<FakeCard> card_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Line>> lines_;
};

TEST_F(QueueTest, ValuesAreReachedBehindTheirWorkAndEveryWaitEnds) {
  std::mt19937_64 random(11);
  for (int line = 0; line < 3; ++line) {
    add_line();
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> shared[3] = {};
  std::thread other([&] {  // waits for values of its own choice
    std::mt19937_64 own(12);
    while (!stop) {
      const std::size_t at = own() % 3;
      const uint64_t last = shared[at];
      const uint64_t value = last == 0 ? 0 : last - own() % std::min<uint64_t>(last, 100);
      EXPECT_EQ(wait(*lines_[at], value), KVSPAN_OK);
      EXPECT_TRUE(value == 0 || lines_[at]->ended[value]);
    }
  });
  for (int round = 0; round < 6000; ++round) {
    const std::size_t at = random() % 3;
    Line& line = *lines_[at];
    if (line.last + 1 == kWorksMax) {
      continue;
    }
    std::vector<kvspan_point_t> waits;
    for (std::size_t of = 0; of < 3; ++of) {
      const Line& before = *lines_[of];
      if (before.last != 0 && random() % 2 == 0) {
        waits.push_back(
            {before.fence, before.last - random() % std::min<uint64_t>(before.last, 9)});
      }
    }
    ASSERT_NO_FATAL_FAILURE(submit_all(line, waits));
    shared[at] = line.last;
    if (random() % 40 == 0) {
      const Line& seen = *lines_[random() % 3];
      const uint64_t value = seen.last == 0 ? 0 : 1 + random() % seen.last;
      ASSERT_EQ(wait(seen, value), KVSPAN_OK);
      for (uint64_t before = 1; before <= value; ++before) {
        ASSERT_TRUE(seen.ended[before]) << "seed 11, round " << round;
      }
    }
    if (random() % 10 == 0) {
      const Line& seen = *lines_[random() % 3];
      uint64_t value = 0;
      ASSERT_EQ(kFenceTable.query(seen.fence, &value, nullptr), KVSPAN_OK);
      ASSERT_TRUE(value == 0 || seen.ended[value]) << "seed 11, round " << round;
    }
  }
  stop = true;
  other.join();
}

// Whoever runs far ahead wakes the threads that settle once for many submits; whoever waits for
// each is told of each.
TEST_F(QueueTest, ManyInFlightSettleAtOnce) {
  Line& compute = add_line();
  Line& upload = add_line();
  constexpr uint64_t kBatch = 120;
  constexpr uint64_t kRounds = 20;
  for (uint64_t round = 0; round < kRounds; ++round) {
    card_->pause(true);
    for (uint64_t work = 0; work < kBatch; ++work) {
      std::vector<kvspan_point_t> waits;
      if (compute.last > 2) {
        waits.push_back({compute.fence, compute.last - 2});
      }
      ASSERT_EQ(submit(upload, waits), KVSPAN_OK);
      ASSERT_EQ(submit(compute, {{upload.fence, upload.last}}), KVSPAN_OK);
    }
    card_->pause(false);
    ASSERT_EQ(wait(compute, compute.last), KVSPAN_OK);
    ASSERT_EQ(wait(upload, upload.last), KVSPAN_OK);
  }
  EXPECT_LT(card_->sleeps, kRounds * kBatch / 4) << "of " << 2 * kRounds * kBatch << " submits";
  EXPECT_LT(card_->restful, kRounds * kBatch) << "of " << 2 * kRounds * kBatch << " submits";
  for (uint64_t work = 0; work < 500; ++work) {
    ASSERT_EQ(submit(compute, {}), KVSPAN_OK);
    ASSERT_EQ(wait(compute, compute.last), KVSPAN_OK);
  }
}

// An engine's stream stands still until the host has seen a value: nothing behind it may keep that
// value back, wherever among the events that a thread can sleep for.
TEST_F(QueueTest, WhatWaitsForAnEngineKeepsNoValueBack) {
  for (int free_works = 37; free_works <= 44; ++free_works) {
    SCOPED_TRACE(free_works);
    Line& own = add_line();
    Line& engine = add_line(true);
    Line& behind = add_line();
    ASSERT_EQ(submit(engine, {}, true), KVSPAN_OK);
    ASSERT_EQ(submit(behind, {{engine.fence, 1}}), KVSPAN_OK);
    ASSERT_EQ(submit(behind, {}), KVSPAN_OK);  // on its stream, so behind the engine too
    for (int work = 0; work < free_works; ++work) {
      ASSERT_EQ(submit(own, {}), KVSPAN_OK);
    }
    for (int work = 0; work < 80; ++work) {
      ASSERT_EQ(submit(own, {{behind.fence, 2}}), KVSPAN_OK);
    }
    for (int value = 1; value <= free_works; ++value) {  // that need no engine
      ASSERT_EQ(wait(own, static_cast<uint64_t>(value)), KVSPAN_OK);
    }
    EXPECT_EQ(wait(own, own.last, 0), KVSPAN_TIMEOUT);
    card_->open_gate();
    EXPECT_EQ(wait(own, own.last), KVSPAN_OK);
    card_->close_gate();
  }
  card_->open_gate();
}

// The same while the host submits: what it has not submitted yet cannot be slept for.
TEST_F(QueueTest, WhatIsSubmittedMeanwhileKeepsNoValueBack) {
  for (int round = 0; round < 40; ++round) {
    Line& own = add_line();
    Line& engine = add_line(true);
    ASSERT_EQ(submit(engine, {}, true), KVSPAN_OK);
    const auto free_works = static_cast<uint64_t>(8 + round % 7);
    for (uint64_t work = 0; work < free_works; ++work) {
      ASSERT_EQ(submit(own, {}), KVSPAN_OK);
    }
    for (int work = 0; work < 20; ++work) {
      ASSERT_EQ(submit(own, {{engine.fence, 1}}), KVSPAN_OK);
    }
    ASSERT_EQ(wait(own, free_works), KVSPAN_OK) << "seed 7, round " << round;
    card_->open_gate();
    ASSERT_EQ(wait(own, own.last), KVSPAN_OK);
    ASSERT_EQ(wait(engine, 1), KVSPAN_OK);
    card_->close_gate();
    end_lines();
  }
}

// Works that never ran, in the midst of many: their signals fail, and those of what waited for
// them; everything else is reached, and every wait ends.
TEST_F(QueueTest, WorkThatNeverRanHoldsNobodyUp) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 60; ++round) {
    Line& compute = add_line();
    Line& upload = add_line();
    card_->pause(true);
    device_->faults.submit_in = 1 + random() % 60;
    device_->faults.submit_code = KVSPAN_E_INTERNAL;
    for (uint64_t work = 0; work < 40; ++work) {
      const std::vector<kvspan_point_t> before = {{compute.fence, compute.last}};
      (void)submit(upload, compute.last == 0 ? std::vector<kvspan_point_t>() : before);
      (void)submit(compute, {{upload.fence, upload.last}});
    }
    card_->pause(false);
    const kvspan_result_t ended = wait(compute, compute.last);
    EXPECT_EQ(ended == KVSPAN_OK, device_->faults.submit_in != 0) << "seed 13, round " << round;
    EXPECT_NE(wait(upload, upload.last), KVSPAN_TIMEOUT);
    device_->faults.submit_in = 0;
    end_lines();
  }
}

// Slots of the ring are filled anew while their queue's thread rests.
TEST_F(QueueTest, ShallowQueuesSettleToo) {
  Line& compute = add_line(false, 2);
  Line& upload = add_line(false, 3);
  for (int work = 0; work < 1000; ++work) {
    for (Line* line : {&upload, &compute}) {
      const Line& other = line == &upload ? compute : upload;
      const std::vector<kvspan_point_t> waits = {{other.fence, other.last}};
      kvspan_result_t result = KVSPAN_E_QUEUE_FULL;
      while (result == KVSPAN_E_QUEUE_FULL) {
        result = submit(*line, other.last == 0 ? std::vector<kvspan_point_t>() : waits);
        if (result == KVSPAN_E_QUEUE_FULL) {
          ASSERT_EQ(wait(*line, line->last - 1), KVSPAN_OK);
        }
      }
      ASSERT_EQ(result, KVSPAN_OK);
    }
  }
}

// A queue that ends at once frees its room, though the engine's stream stands still: what clears it
// has ended. Where that came too late a card lost the device, in one of some hundred suites.
TEST_F(QueueTest, NothingWritesTheRoomOfAQueueThatEnded) {
  for (const bool imported : {false, true}) {
    cudaStream_t stream = imported ? card_->add_stream() : nullptr;
    if (imported) {
      card_->push(stream, {FakeOp::Kind::gate, nullptr, 0, nullptr, nullptr});
    }
    kvspan_queue_t* queue = nullptr;
    ASSERT_EQ(make_queue(*device_, kDepth, stream, &queue, nullptr, "test"), KVSPAN_OK);
    ASSERT_EQ(kQueueTable.destroy(queue, nullptr), KVSPAN_OK);
  }
}

}  // namespace
}  // namespace kvspan::cuda
