// SPDX-License-Identifier: Apache-2.0
// A device that is really lost: somebody's kernel traps in the context that the plugin shares.
// Every slot then says so with CUDA's own code and that a new process is needed; every wait
// returns, every destroy and close succeeds. The only case of its executable: the process is spoilt
// afterwards.
#include "loaded.hpp"
#include "trap_kernel.hpp"

#include <cuda_runtime_api.h>

namespace kvspan::cuda {
namespace {

class LostTest : public LoadedTest {
 protected:
  void SetUp() override {
    LoadedTest::SetUp();
    if (!HasFatalFailure() && !has_device()) {
      GTEST_SKIP() << count_error_.message;
    }
  }

  kvspan_result_t copy(kvspan_queue_t* queue,
                       const kvspan_segment_t& segment,
                       const kvspan_point_t& point) {
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.signal_count = 1;
    submit.signals = &point;
    submit.submit_id = 77;
    return plugin_.copy()->copy(queue, &segment, 1, &submit, &error_);
  }

  kvspan_error_t error_ = no_error();
};

TEST_F(LostTest, IsSaidEverywhereAndEverythingCanBeEnded) {
  kvspan_device_t* device = nullptr;
  kvspan_memory_t* host = nullptr;
  kvspan_memory_t* local = nullptr;
  kvspan_queue_t* queue = nullptr;
  kvspan_fence_t* fence = nullptr;
  const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_UPLOAD, 0, 0};
  ASSERT_EQ(plugin_.device()->open(plugin_.self(), 0, &device, &error_), KVSPAN_OK);
  ASSERT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_HOST, 4096, &host, &error_), KVSPAN_OK);
  ASSERT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_DEVICE, 4096, &local, &error_),
            KVSPAN_OK);
  ASSERT_EQ(plugin_.queue()->create(device, &options, &queue, &error_), KVSPAN_OK);
  ASSERT_EQ(plugin_.fence()->create(device, 0, &fence, &error_), KVSPAN_OK);
  const kvspan_segment_t segment{host, local, 0, 0, 4096, 1, 0, 0};
  ASSERT_EQ(copy(queue, segment, {fence, 1}), KVSPAN_OK);
  const kvspan_point_t before{fence, 1};
  ASSERT_EQ(plugin_.fence()->wait(device, &before, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error_),
            KVSPAN_OK);

  ASSERT_NE(run_trap(), cudaSuccess);

  const kvspan_result_t submitted = copy(queue, segment, {fence, 2});
  ASSERT_EQ(submitted, KVSPAN_OK) << "accepted, and failed afterwards";
  const kvspan_point_t after{fence, 2};
  EXPECT_EQ(plugin_.fence()->wait(device, &after, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error_),
            KVSPAN_E_DEVICE_LOST);
  EXPECT_NE(error_.native_code, 0) << "CUDA's own code";
  EXPECT_EQ(error_.submit_id, 77u);
  EXPECT_EQ(error_.flags, KVSPAN_ERROR_ASYNC | KVSPAN_ERROR_STICKY | KVSPAN_ERROR_RESTART_PROCESS);
  EXPECT_EQ(plugin_.fence()->wait(device, &before, 1, KVSPAN_WAIT_ALL, 0, &error_), KVSPAN_OK)
      << "what was reached stays reached";
  EXPECT_EQ(copy(queue, segment, {fence, 3}), KVSPAN_E_DEVICE_LOST);
  EXPECT_EQ(error_.flags, KVSPAN_ERROR_STICKY | KVSPAN_ERROR_RESTART_PROCESS);
  kvspan_memory_t* more = nullptr;
  EXPECT_EQ(plugin_.memory()->alloc(device, KVSPAN_MEMORY_DEVICE, 4096, &more, &error_),
            KVSPAN_E_DEVICE_LOST);
  uint64_t free_bytes = 0;
  EXPECT_EQ(plugin_.device()->free_bytes(device, &free_bytes, &error_), KVSPAN_E_DEVICE_LOST);

  EXPECT_EQ(plugin_.fence()->destroy(fence, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.memory()->release(local, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.memory()->release(host, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.device()->close(device, &error_), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::cuda
