// SPDX-License-Identifier: Apache-2.0
// On a card: imports of the same, of overlapping and of enclosed host pages, each alive for itself,
// and memory that is given back while the card is busy.
#include "engine.hpp"

#include <cstring>
#include <sys/mman.h>

namespace kvspan::cuda {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MemoryTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    open(8, false);
    void* const mapped =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    pages_ = static_cast<uint8_t*>(mapped);
    for (uint64_t i = 0; i < kBytes; ++i) {
      pages_[i] = static_cast<uint8_t>(i / 4096 * 7 + i);
    }
    queue_ = make_queue();
  }

  void TearDown() override {
    if (queue_ != nullptr) {
      EXPECT_EQ(plugin_.queue()->destroy(queue_, &error_), KVSPAN_OK);
    }
    if (pages_ != nullptr) {
      EXPECT_EQ(munmap(pages_, kBytes), 0);
    }
    EngineTest::TearDown();
  }

  kvspan_memory_t* import(uint64_t first, uint64_t end) {
    kvspan_memory_t* memory = nullptr;
    EXPECT_EQ(plugin_.memory()->import_host(device_, pages_ + first, end - first, &memory, &error_),
              KVSPAN_OK)
        << error_.message;
    return memory;
  }

  void release(kvspan_memory_t* memory) {
    EXPECT_EQ(plugin_.memory()->release(memory, &error_), KVSPAN_OK) << error_.message;
  }

  // Copies an import to the card and back behind itself: its bytes arrive, whoever locked them.
  void expect_usable(kvspan_memory_t* memory, uint64_t first, uint64_t end) {
    const uint64_t bytes = end - first;
    kvspan_memory_t* const local = alloc(bytes);
    kvspan_memory_t* back = nullptr;
    ASSERT_EQ(plugin_.memory()->alloc(device_, KVSPAN_MEMORY_HOST, bytes, &back, &error_),
              KVSPAN_OK);
    void* address = nullptr;
    ASSERT_EQ(plugin_.memory()->map(back, &address, &error_), KVSPAN_OK);
    const kvspan_segment_t up[] = {
        {memory, local, 0, 0, bytes / 2, 1, 0, 0},
        {memory, local, bytes / 2, bytes / 2, bytes - bytes / 2, 1, 0, 0}};
    const kvspan_segment_t down{local, back, 0, 0, bytes, 1, 0, 0};
    const kvspan_submit_t plain = no_points();
    const kvspan_point_t point{fence_, ++value_};
    const kvspan_submit_t signals = signalling(point);
    good(plugin_.copy()->copy(queue_, up, 2, &plain, &error_), "copy.copy");
    good(plugin_.copy()->copy(queue_, &down, 1, &signals, &error_), "copy.copy");
    wait_for(value_);
    EXPECT_EQ(std::memcmp(address, pages_ + first, bytes), 0);
    release(back);
    release(local);
  }

  static constexpr uint64_t kBytes = 8 * kMiB;
  uint8_t* pages_ = nullptr;
  kvspan_queue_t* queue_ = nullptr;
  uint64_t value_ = 0;
};

TEST_F(MemoryTest, AnImportInsideAnotherOutlivesIt) {
  kvspan_memory_t* const all = import(0, kBytes);
  kvspan_memory_t* const part = import(2 * kMiB, 3 * kMiB);
  expect_usable(all, 0, kBytes);
  release(all);
  expect_usable(part, 2 * kMiB, 3 * kMiB);
  // What was let go of around it may be mapped anew: it is not taken for locked.
  kvspan_memory_t* none = nullptr;
  EXPECT_EQ(plugin_.memory()->import_host(device_, pages_, kMiB, &none, &error_),
            KVSPAN_E_INVALID_ARG);
  kvspan_memory_t* const same = import(2 * kMiB, 3 * kMiB);
  release(part);
  expect_usable(same, 2 * kMiB, 3 * kMiB);
  release(same);
  kvspan_memory_t* const again = import(0, kMiB);
  expect_usable(again, 0, kMiB);
  release(again);
}

TEST_F(MemoryTest, ImportsThatOverlapAreUsedTogether) {
  kvspan_memory_t* const low = import(0, 4 * kMiB);
  kvspan_memory_t* const high = import(5 * kMiB, 7 * kMiB);
  kvspan_memory_t* const across = import(3 * kMiB, 6 * kMiB);
  kvspan_memory_t* const all = import(0, kBytes);
  expect_usable(low, 0, 4 * kMiB);
  expect_usable(across, 3 * kMiB, 6 * kMiB);
  expect_usable(all, 0, kBytes);
  release(low);
  release(high);
  expect_usable(across, 3 * kMiB, 6 * kMiB);
  release(all);
  expect_usable(across, 3 * kMiB, 6 * kMiB);
  release(across);
  kvspan_memory_t* const afterwards = import(0, kBytes);
  expect_usable(afterwards, 0, kBytes);
  release(afterwards);
}

// A pool that keeps what it was given would starve the engine's own allocator.
TEST_F(MemoryTest, WhatIsReleasedIsFreeAtOnce) {
  constexpr uint64_t kLarge = uint64_t{4} << 30;
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  kvspan_memory_t* const memory = alloc(kLarge);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_LE(after + kLarge, before);
  close_gate();
  release(memory);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady) << "release waited for the engine";
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_GE(after + (64 * kMiB), before);
  open_gate();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

}  // namespace
}  // namespace kvspan::cuda
