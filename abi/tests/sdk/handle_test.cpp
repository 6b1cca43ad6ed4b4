// SPDX-License-Identifier: Apache-2.0
// Owners of handles, over tables that count what is alive.
#include "kvspan/sdk/handle.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

struct kvspan_fence_s {
  int* alive;
  bool busy;
};

namespace kvspan::sdk {
namespace {

// A device pointer is the test's own counter in disguise.
kvspan_result_t KVSPAN_CALL create(kvspan_device_t* device,
                                   std::uint64_t initial,
                                   kvspan_fence_t** out,
                                   kvspan_error_t* error) noexcept {
  if (initial == 1) {
    return KVSPAN_OK;  // and no handle
  }
  if (initial == 2) {
    return fail(error, KVSPAN_E_HOST_MEMORY, "fence.create", "none left");
  }
  if (initial == 3) {
    return KVSPAN_TIMEOUT;  // no result of this slot
  }
  auto* alive = reinterpret_cast<int*>(device);
  ++*alive;
  *out = new kvspan_fence_s{alive, false};
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL destroy(kvspan_fence_t* fence, kvspan_error_t* error) noexcept {
  if (fence->busy) {
    return fail(error, KVSPAN_E_BUSY, "fence.destroy", "in use");
  }
  --*fence->alive;
  delete fence;
  return KVSPAN_OK;
}

struct Backend {
  const kvspan_fence_table_t* fence() const { return &table; }

  kvspan_fence_table_t table{};
};

class Handle : public ::testing::Test {
 protected:
  Handle() {
    backend_.table.create = create;
    backend_.table.destroy = destroy;
  }

  ~Handle() override { EXPECT_EQ(alive_, 0) << "a handle leaked"; }

  kvspan_result_t make(std::uint64_t initial, Fence& out, kvspan_error_t* error = nullptr) {
    return Fence::create(
        backend_, reinterpret_cast<kvspan_device_t*>(&alive_), initial, out, error);
  }

  int alive_ = 0;
  Backend backend_;
};

TEST_F(Handle, DestroysWhenItEnds) {
  Fence fence;
  EXPECT_FALSE(fence);
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  EXPECT_TRUE(fence);
  EXPECT_EQ(alive_, 1);
}

TEST_F(Handle, MovesWithoutCopying) {
  Fence first;
  ASSERT_EQ(make(0, first), KVSPAN_OK);
  kvspan_fence_t* raw = first.get();
  Fence second = std::move(first);
  EXPECT_EQ(second.get(), raw);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  Fence third;
  ASSERT_EQ(make(0, third), KVSPAN_OK);
  EXPECT_EQ(alive_, 2);
  third = std::move(second);
  EXPECT_EQ(alive_, 1);
  EXPECT_EQ(third.get(), raw);
}

TEST_F(Handle, CreatingIntoAFullOneDestroysTheOldOne) {
  Fence fence;
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  EXPECT_EQ(alive_, 1);
}

TEST_F(Handle, ABusyOneStaysOwned) {
  Fence fence;
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  fence.get()->busy = true;
  EXPECT_EQ(fence.reset(), KVSPAN_E_BUSY);
  EXPECT_TRUE(fence);
  fence.get()->busy = false;
  EXPECT_EQ(fence.reset(), KVSPAN_OK);
  EXPECT_FALSE(fence);
  EXPECT_EQ(fence.reset(), KVSPAN_OK);
}

TEST_F(Handle, ReleaseGivesItUp) {
  Fence fence;
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  kvspan_fence_t* raw = fence.release();
  EXPECT_FALSE(fence);
  EXPECT_EQ(destroy(raw, nullptr), KVSPAN_OK);
}

TEST_F(Handle, FailuresLeaveTheOwnerAsItWas) {
  Fence fence;
  ASSERT_EQ(make(0, fence), KVSPAN_OK);
  kvspan_fence_t* raw = fence.get();
  kvspan_error_t error{};
  EXPECT_EQ(make(2, fence, &error), KVSPAN_E_HOST_MEMORY);
  EXPECT_STREQ(error.message, "none left");
  EXPECT_EQ(fence.get(), raw);
}

TEST_F(Handle, OkWithoutAHandleOrAnOddResultIsTheDefectThatItIs) {
  Fence fence;
  kvspan_error_t error{};
  EXPECT_EQ(make(1, fence, &error), KVSPAN_E_INTERNAL);
  EXPECT_NE(std::string(error.message).find("no handle"), std::string::npos);
  EXPECT_EQ(make(3, fence, &error), KVSPAN_E_INTERNAL);
  EXPECT_FALSE(fence);
}

}  // namespace
}  // namespace kvspan::sdk
