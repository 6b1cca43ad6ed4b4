// SPDX-License-Identifier: Apache-2.0
// On a card: the calling thread's current device is after every call what it was before, free_bytes
// can really be had, one history can be imported by two devices at once, and fences are reached in
// the order of cause and effect.
#include "loaded.hpp"

#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {
namespace {

class ContextTest : public LoadedTest {
 protected:
  void SetUp() override {
    LoadedTest::SetUp();
    if (HasFatalFailure()) {
      return;
    }
    if (!has_device()) {
      GTEST_SKIP() << count_error_.message;
    }
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    ASSERT_EQ(cudaGetDriverEntryPointByVersion(
                  "cuCtxGetCurrent", &found, 12000, cudaEnableDefault, &status),
              cudaSuccess);
    get_current_ = reinterpret_cast<GetCurrent>(found);
  }

  CUcontext current() const {
    CUcontext context = nullptr;
    EXPECT_EQ(get_current_(&context), CUDA_SUCCESS);
    return context;
  }

  kvspan_device_t* open() {
    kvspan_device_t* device = nullptr;
    EXPECT_EQ(plugin_.device()->open(plugin_.self(), 0, &device, &error_), KVSPAN_OK)
        << error_.message;
    return device;
  }

  // Every table once, with work.
  void use(kvspan_device_t* device, CUcontext before) {
    kvspan_memory_t* host = nullptr;
    kvspan_memory_t* local = nullptr;
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fence = nullptr;
    const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_UPLOAD, 4, 0};
    ASSERT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_HOST, 8192, &host, &error_), KVSPAN_OK);
    EXPECT_EQ(current(), before) << "memory.alloc of HOST";
    ASSERT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_DEVICE, 8192, &local, &error_),
              KVSPAN_OK);
    EXPECT_EQ(current(), before) << "memory.alloc of DEVICE";
    ASSERT_EQ(plugin_.queue()->create(device, &options, &queue, &error_), KVSPAN_OK);
    EXPECT_EQ(current(), before) << "queue.create";
    ASSERT_EQ(plugin_.fence()->create(device, 0, &fence, &error_), KVSPAN_OK);
    const kvspan_point_t point{fence, 1};
    const kvspan_submit_t submit = signalling(point);
    const kvspan_segment_t segment{host, local, 0, 0, 8192, 1, 0, 0};
    ASSERT_EQ(plugin_.copy()->copy(queue, &segment, 1, &submit, &error_), KVSPAN_OK);
    EXPECT_EQ(current(), before) << "copy.copy";
    ASSERT_EQ(plugin_.fence()->wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error_),
              KVSPAN_OK);
    EXPECT_EQ(current(), before) << "fence.wait";
    EXPECT_EQ(plugin_.fence()->destroy(fence, &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.memory()->release(local, &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.memory()->release(host, &error_), KVSPAN_OK);
    EXPECT_EQ(current(), before) << "the ends of all of them";
  }

  // Fills all of `memory` on the card by a kernel, which needs the pages locked.
  kvspan_result_t fill(kvspan_device_t* device, kvspan_memory_t* memory, uint64_t bytes) {
    const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_COMPUTE, 4, 0};
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fence = nullptr;
    EXPECT_EQ(plugin_.queue()->create(device, &options, &queue, &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.fence()->create(device, 0, &fence, &error_), KVSPAN_OK);
    const kvspan_point_t point{fence, 1};
    const kvspan_range_t range{memory, 0, bytes};
    const kvspan_submit_t submit = signalling(point);
    EXPECT_EQ(plugin_.copy()->fill(queue, &range, 9, 1, &submit, &error_), KVSPAN_OK);
    const kvspan_result_t result =
        plugin_.fence()->wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error_);
    EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.fence()->destroy(fence, &error_), KVSPAN_OK);
    return result;
  }

  static kvspan_submit_t signalling(const kvspan_point_t& point) {
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.signal_count = 1;
    submit.signals = &point;
    return submit;
  }

  using GetCurrent = CUresult (*)(CUcontext* context);
  GetCurrent get_current_ = nullptr;
  kvspan_error_t error_ = no_error();
};

TEST_F(ContextTest, NoneIsCurrentAfterwardsWhereNoneWas) {
  CUcontext before = current();
  kvspan_device_t* const device = open();
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(current(), before) << "device.open";
  use(device, before);
  EXPECT_EQ(plugin_.device()->close(device, &error_), KVSPAN_OK);
  EXPECT_EQ(current(), before) << "device.close";
}

TEST_F(ContextTest, TheCallersOwnStaysCurrent) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  CUcontext before = current();
  ASSERT_NE(before, nullptr);
  kvspan_device_t* const device = open();
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(current(), before) << "device.open";
  use(device, before);
  EXPECT_EQ(plugin_.device()->close(device, &error_), KVSPAN_OK);
  EXPECT_EQ(current(), before) << "device.close";
  void* still = nullptr;
  EXPECT_EQ(cudaMalloc(&still, 4096), cudaSuccess) << "the caller's context works on";
  EXPECT_EQ(cudaFree(still), cudaSuccess);
}

TEST_F(ContextTest, WhatIsFreeCanBeHad) {
  kvspan_device_t* const device = open();
  ASSERT_NE(device, nullptr);
  uint64_t free_bytes = 0;
  ASSERT_EQ(plugin_.device()->free_bytes(device, &free_bytes, &error_), KVSPAN_OK);
  kvspan_memory_t* all = nullptr;
  EXPECT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_DEVICE, free_bytes, &all, &error_),
            KVSPAN_OK)
      << free_bytes << " bytes: " << error_.message;
  if (all != nullptr) {
    kvspan_memory_t* more = nullptr;
    const uint64_t wanted = uint64_t{8} << 30;
    EXPECT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_DEVICE, wanted, &more, &error_),
              KVSPAN_E_DEVICE_MEMORY);
    EXPECT_EQ(error_.required, wanted);
    EXPECT_EQ(error_.native_code, cudaErrorMemoryAllocation);
    EXPECT_EQ(plugin_.memory()->release(all, &error_), KVSPAN_OK);
  }
  EXPECT_EQ(plugin_.device()->close(device, &error_), KVSPAN_OK);
}

TEST_F(ContextTest, TwoDevicesImportTheSamePages) {
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  void* const pages = std::aligned_alloc(4096, kBytes);
  std::memset(pages, 7, kBytes);
  kvspan_device_t* const first = open();
  kvspan_device_t* const second = open();
  ASSERT_NE(second, nullptr);
  kvspan_memory_t* one = nullptr;
  kvspan_memory_t* two = nullptr;
  EXPECT_EQ(plugin_.memory()->import_host(first, pages, kBytes, &one, &error_), KVSPAN_OK)
      << error_.message;
  EXPECT_EQ(plugin_.memory()->import_host(second, pages, kBytes, &two, &error_), KVSPAN_OK)
      << error_.message;
  EXPECT_EQ(plugin_.memory()->release(one, &error_), KVSPAN_OK);
  EXPECT_EQ(fill(second, two, kBytes), KVSPAN_OK) << "still locked for the second";
  EXPECT_EQ(static_cast<const uint8_t*>(pages)[kBytes - 1], 9u);
  EXPECT_EQ(plugin_.memory()->release(two, &error_), KVSPAN_OK);
  ASSERT_EQ(plugin_.memory()->import_host(first, pages, kBytes, &one, &error_), KVSPAN_OK)
      << "nothing stayed locked: " << error_.message;
  EXPECT_EQ(plugin_.memory()->release(one, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.device()->close(first, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.device()->close(second, &error_), KVSPAN_OK);
  std::free(pages);
}

// Work that waited for other work is never seen to have ended before it, although each queue has a
// thread of its own that may be late.
TEST_F(ContextTest, CausesAreReachedBeforeTheirEffects) {
  constexpr uint32_t kRounds = 2000;
  kvspan_device_t* const device = open();
  ASSERT_NE(device, nullptr);
  kvspan_queue_t* queues[2] = {};
  kvspan_fence_t* fences[2] = {};
  for (uint32_t i = 0; i < 2; ++i) {
    const kvspan_queue_options_t options{sizeof options, i, 0, 0};
    ASSERT_EQ(plugin_.queue()->create(device, &options, &queues[i], &error_), KVSPAN_OK);
    ASSERT_EQ(plugin_.fence()->create(device, 0, &fences[i], &error_), KVSPAN_OK);
  }
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const kvspan_point_t cause{fences[0], round};
    const kvspan_point_t effect{fences[1], round};
    const kvspan_submit_t before = signalling(cause);
    kvspan_submit_t after = signalling(effect);
    after.wait_count = 1;
    after.waits = &cause;
    ASSERT_EQ(plugin_.copy()->copy(queues[0], nullptr, 0, &before, &error_), KVSPAN_OK);
    ASSERT_EQ(plugin_.copy()->copy(queues[1], nullptr, 0, &after, &error_), KVSPAN_OK);
    ASSERT_EQ(plugin_.fence()->wait(device, &effect, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error_),
              KVSPAN_OK);
    uint64_t value = 0;
    ASSERT_EQ(plugin_.fence()->query(fences[0], &value, &error_), KVSPAN_OK);
    ASSERT_EQ(value, round) << "the effect was reached, its cause was not";
  }
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plugin_.queue()->destroy(queues[i], &error_), KVSPAN_OK);
    EXPECT_EQ(plugin_.fence()->destroy(fences[i], &error_), KVSPAN_OK);
  }
  EXPECT_EQ(plugin_.device()->close(device, &error_), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::cuda
