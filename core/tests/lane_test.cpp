// SPDX-License-Identifier: Apache-2.0
// Lanes over a device that is about to do the unlikely: a queue that is full and then empty, a
// refusal that passes.
#include "kvspan/core/backend/lane.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace kvspan {
namespace {

struct FakeFence {
  std::uint64_t value = 0;
  bool failed = false;
};

// One device: what was submitted is reached at once, unless `hold`.
struct FakeDevice {
  bool hold = false;      // work settles when somebody looks
  int refuse_copies = 0;  // with `refusal`, from now on
  kvspan_result_t refusal = KVSPAN_E_QUEUE_FULL;
  std::vector<kvspan_point_t> held;
  std::uint64_t waited_for_nothing = 0;  // waits without end for values that nobody signals
  bool settle_on_query = true;           // a query is a look
  std::uint64_t last_waited = 0;         // the value
  int slept = 0;                         // waits with an end for what did not come
  std::uint32_t word = 0;
  int copies = 0;

  void settle() {
    for (const kvspan_point_t& point : held) {
      reinterpret_cast<FakeFence*>(point.fence)->value = point.value;
    }
    held.clear();
  }
};

FakeDevice* device_of(kvspan_device_t* handle) {
  return reinterpret_cast<FakeDevice*>(handle);
}

FakeDevice* current = nullptr;  // queues do not name their device here

kvspan_memory_table_t memory_table() {
  kvspan_memory_table_t memory{};
  memory.alloc = [](kvspan_device_t* device,
                    std::uint32_t,
                    std::uint64_t,
                    kvspan_memory_t** out,
                    kvspan_error_t*) noexcept -> kvspan_result_t {
    *out = reinterpret_cast<kvspan_memory_t*>(&device_of(device)->word);
    return KVSPAN_OK;
  };
  memory.map =
      [](kvspan_memory_t* handle, void** out, kvspan_error_t*) noexcept -> kvspan_result_t {
    *out = handle;
    return KVSPAN_OK;
  };
  memory.release = [](kvspan_memory_t*, kvspan_error_t*) noexcept -> kvspan_result_t {
    return KVSPAN_OK;
  };
  return memory;
}

kvspan_queue_table_t queue_table() {
  kvspan_queue_table_t queue{};
  queue.create = [](kvspan_device_t*,
                    const kvspan_queue_options_t*,
                    kvspan_queue_t** out,
                    kvspan_error_t*) noexcept -> kvspan_result_t {
    *out = reinterpret_cast<kvspan_queue_t*>(new char);
    return KVSPAN_OK;
  };
  queue.destroy = [](kvspan_queue_t* handle, kvspan_error_t*) noexcept -> kvspan_result_t {
    delete reinterpret_cast<char*>(handle);
    return KVSPAN_OK;
  };
  return queue;
}

kvspan_fence_table_t fence_table() {
  kvspan_fence_table_t fence{};
  fence.create = [](kvspan_device_t*,
                    std::uint64_t initial,
                    kvspan_fence_t** out,
                    kvspan_error_t*) noexcept -> kvspan_result_t {
    *out = reinterpret_cast<kvspan_fence_t*>(new FakeFence{initial, false});
    return KVSPAN_OK;
  };
  fence.query =
      [](kvspan_fence_t* handle, std::uint64_t* out, kvspan_error_t*) noexcept -> kvspan_result_t {
    if (current->settle_on_query) {
      current->settle();
    }
    *out = reinterpret_cast<FakeFence*>(handle)->value;
    return KVSPAN_OK;
  };
  fence.wait = [](kvspan_device_t*,
                  const kvspan_point_t* points,
                  std::uint32_t,
                  std::uint32_t,
                  std::uint64_t timeout_ns,
                  kvspan_error_t*) noexcept -> kvspan_result_t {
    current->settle();
    current->last_waited = points[0].value;
    const auto* const target = reinterpret_cast<FakeFence*>(points[0].fence);
    if (target->failed) {
      return KVSPAN_E_FAILED;
    }
    if (points[0].value > target->value && timeout_ns != UINT64_MAX) {
      ++current->slept;
      return KVSPAN_TIMEOUT;
    }
    current->waited_for_nothing += points[0].value > target->value ? 1U : 0U;
    return points[0].value > target->value ? KVSPAN_E_INTERNAL : KVSPAN_OK;
  };
  fence.destroy = [](kvspan_fence_t* handle, kvspan_error_t*) noexcept -> kvspan_result_t {
    delete reinterpret_cast<FakeFence*>(handle);
    return KVSPAN_OK;
  };
  return fence;
}

kvspan_copy_table_t copy_table() {
  kvspan_copy_table_t copy{};
  copy.copy = [](kvspan_queue_t*,
                 const kvspan_segment_t*,
                 std::uint32_t,
                 const kvspan_submit_t* submit,
                 kvspan_error_t*) noexcept -> kvspan_result_t {
    ++current->copies;
    if (current->refuse_copies != 0) {
      --current->refuse_copies;
      return current->refusal;
    }
    current->held.push_back(submit->signals[0]);
    if (!current->hold) {
      current->settle();
    }
    return KVSPAN_OK;
  };
  return copy;
}

BackendTables tables() {
  static const kvspan_memory_table_t memory = memory_table();
  static const kvspan_queue_table_t queue = queue_table();
  static const kvspan_fence_table_t fence = fence_table();
  static const kvspan_copy_table_t copy = copy_table();
  BackendTables out;
  out.memory = &memory;
  out.queue = &queue;
  out.fence = &fence;
  out.copy = &copy;
  return out;
}

class LaneTest : public ::testing::Test {
 protected:
  LaneTest() : backend_(tables(), reinterpret_cast<kvspan_device_t*>(&device_), info()) {
    current = &device_;
  }

  static kvspan_device_info_t info() {
    kvspan_device_info_t out{};
    out.depth_max = 4;
    return out;
  }

  Result<std::uint64_t> submit(Lanes& lanes) {
    return lanes.submit(
        LaneId::upload,
        {},
        [this](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
          return backend_.tables().copy->copy(queue, nullptr, 0, submit, error);
        });
  }

  FakeDevice device_;
  Backend backend_;
};

// The queue is full; before anybody looks at the fence, everything has settled.
TEST_F(LaneTest, AFullQueueThatEmptiedIsSubmittedToAgain) {
  auto lanes = Lanes::create(backend_, {});
  ASSERT_TRUE(lanes.has_value());
  device_.hold = true;
  ASSERT_TRUE(submit(*lanes).has_value());
  device_.refuse_copies = 1;
  const auto second = submit(*lanes);
  ASSERT_TRUE(second.has_value()) << second.error().message;
  EXPECT_EQ(*second, 2U);
  EXPECT_EQ(device_.waited_for_nothing, 0U);
}

// The host wakes once for half of the queue, not for each submit of it.
TEST_F(LaneTest, AFullQueueIsWaitedForUntilHalfOfItHasSettled) {
  auto lanes = Lanes::create(backend_, {});
  ASSERT_TRUE(lanes.has_value());
  device_.hold = true;
  device_.settle_on_query = false;
  for (int index = 0; index < 9; ++index) {
    ASSERT_TRUE(submit(*lanes).has_value());
  }
  device_.refuse_copies = 1;
  ASSERT_TRUE(submit(*lanes).has_value());
  EXPECT_EQ(device_.last_waited, 5U);
  device_.settle_on_query = true;
}

TEST_F(LaneTest, LanesGoOnFromTheValuesOfThoseBefore) {
  Moment from = Moment::at(LaneId::upload, 41);
  auto lanes = Lanes::create(backend_, {}, from);
  ASSERT_TRUE(lanes.has_value());
  EXPECT_EQ(lanes->reached(LaneId::upload), 41U);
  EXPECT_EQ(lanes->last(LaneId::upload), 41U);
  EXPECT_TRUE(lanes->wait(LaneId::upload, 7).has_value());
  EXPECT_EQ(*submit(*lanes), 42U);
}

// Behind a failed fence an empty copy tells when the queue is empty, and one refusal of it is no
// reason to give up.
TEST_F(LaneTest, DrainingBehindAFailedFenceSurvivesARefusal) {
  auto lanes = Lanes::create(backend_, {});
  ASSERT_TRUE(lanes.has_value());
  ASSERT_TRUE(submit(*lanes).has_value());
  reinterpret_cast<FakeFence*>(lanes->point(LaneId::upload, 1).fence)->failed = true;
  device_.refuse_copies = 1;
  device_.refusal = KVSPAN_E_HOST_MEMORY;
  EXPECT_TRUE(lanes->drain().has_value());
  device_.refuse_copies = 100;
  EXPECT_FALSE(lanes->drain().has_value()) << "what is refused again and again is";
  device_.refuse_copies = 0;
}

// A full queue behind a failed fence is looked at now and then, not all the time.
TEST_F(LaneTest, DrainingAFullQueueBehindAFailedFenceSleepsBetweenLooks) {
  auto lanes = Lanes::create(backend_, {});
  ASSERT_TRUE(lanes.has_value());
  ASSERT_TRUE(submit(*lanes).has_value());
  reinterpret_cast<FakeFence*>(lanes->point(LaneId::upload, 1).fence)->failed = true;
  device_.refuse_copies = 7;
  EXPECT_TRUE(lanes->drain().has_value());
  EXPECT_EQ(device_.refuse_copies, 0);
  EXPECT_EQ(device_.slept, 7);
}

// A healthy fence tells by itself: nothing is made, nothing can be refused.
TEST_F(LaneTest, DrainingHealthyLanesSubmitsNothing) {
  auto lanes = Lanes::create(backend_, {});
  ASSERT_TRUE(lanes.has_value());
  ASSERT_TRUE(submit(*lanes).has_value());
  const int copies = device_.copies;
  EXPECT_TRUE(lanes->drain().has_value());
  EXPECT_EQ(device_.copies, copies);
}

}  // namespace
}  // namespace kvspan
