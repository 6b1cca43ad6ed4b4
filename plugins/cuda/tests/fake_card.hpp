// SPDX-License-Identifier: Apache-2.0
// A card that is played by one thread: streams and events, and what is ready runs in any order. Not
// here: CUDA's functions over it (queue_test.cpp).
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace kvspan::cuda::test {

struct FakeEvent {
  bool restful = false;
  uint64_t recorded = 0;
  uint64_t done = 0;
};

struct FakeOp {
  enum class Kind { work, wait, record, gate, clear };

  Kind kind = Kind::work;
  FakeEvent* event = nullptr;
  uint64_t value = 0;
  std::atomic<bool>* ended = nullptr;  // by work
  const void* memory = nullptr;        // that clear writes
};

struct FakeStream {
  std::deque<FakeOp> ops;
};

// The card: runs the front of any stream that is ready.
class FakeCard {
 public:
  explicit FakeCard(uint64_t seed) : random_(seed), thread_([this] { run(); }) {}

  FakeCard(const FakeCard&) = delete;
  FakeCard& operator=(const FakeCard&) = delete;
  FakeCard(FakeCard&&) = delete;
  FakeCard& operator=(FakeCard&&) = delete;

  ~FakeCard() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void push(cudaStream_t stream, const FakeOp& op) {
    const std::lock_guard lock(mutex_);
    reinterpret_cast<FakeStream*>(stream)->ops.push_back(op);
    changed_.notify_all();
  }

  void record(cudaStream_t stream, FakeEvent* event) {
    const std::lock_guard lock(mutex_);
    restful += event->restful ? 1 : 0;
    reinterpret_cast<FakeStream*>(stream)->ops.push_back(
        {FakeOp::Kind::record, event, ++event->recorded, nullptr, nullptr});
    changed_.notify_all();
  }

  void wait(cudaStream_t stream, FakeEvent* event) {
    const std::lock_guard lock(mutex_);
    reinterpret_cast<FakeStream*>(stream)->ops.push_back(
        {FakeOp::Kind::wait, event, event->recorded, nullptr, nullptr});
    changed_.notify_all();
  }

  void synchronize(FakeEvent* event) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(event->restful) << "a thread would spin";
    ++sleeps;
    const uint64_t value = event->recorded;
    changed_.wait(lock, [&] { return event->done >= value; });
  }

  void drain(cudaStream_t stream) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reinterpret_cast<FakeStream*>(stream)->ops.empty(); });
  }

  // Nothing on its way may write what is freed.
  void expect_unused(const void* memory) {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) {
      for (const FakeOp& op : stream->ops) {
        EXPECT_NE(op.memory, memory) << "freed while a stream has yet to write it";
      }
    }
  }

  bool has_ended(const FakeEvent* event) {
    const std::lock_guard lock(mutex_);
    return event->done >= event->recorded;
  }

  cudaStream_t add_stream() {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<FakeStream>());
    return reinterpret_cast<cudaStream_t>(streams_.back().get());
  }

  // Until then gates let nothing pass, or nothing at all runs.
  void open_gate() {
    const std::lock_guard lock(mutex_);
    gate_open_ = true;
    changed_.notify_all();
  }

  void close_gate() {
    const std::lock_guard lock(mutex_);
    gate_open_ = false;
  }

  void pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
  }

  std::atomic<uint64_t> sleeps{0};   // for an event
  std::atomic<uint64_t> restful{0};  // records of events that a thread can sleep for

 private:
  bool ready(const FakeStream& stream) const {
    if (paused_ || stream.ops.empty()) {
      return false;
    }
    const FakeOp& op = stream.ops.front();
    return op.kind == FakeOp::Kind::wait   ? op.event->done >= op.value
           : op.kind == FakeOp::Kind::gate ? gate_open_
                                           : true;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      std::vector<FakeStream*> able;
      for (const auto& stream : streams_) {
        if (ready(*stream)) {
          able.push_back(stream.get());
        }
      }
      if (able.empty()) {
        changed_.wait(lock);
        continue;
      }
      FakeStream& stream = *able[random_() % able.size()];
      const FakeOp op = stream.ops.front();
      stream.ops.pop_front();
      if (op.kind == FakeOp::Kind::work) {
        *op.ended = true;
      } else if (op.kind == FakeOp::Kind::record) {
        op.event->done = op.value;
      }
      changed_.notify_all();
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::mt19937_64 random_;
  bool stop_ = false;
  bool gate_open_ = false;
  bool paused_ = false;
  std::thread thread_;
};

}  // namespace kvspan::cuda::test
