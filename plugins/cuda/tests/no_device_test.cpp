// SPDX-License-Identifier: Apache-2.0
// A machine without a card: the plugin loads, says so in words with CUDA's own code, and closes.
#include "loaded.hpp"

#include <cstring>

namespace kvspan::cuda {
namespace {

class NoDeviceTest : public LoadedTest {
 protected:
  void SetUp() override {
    LoadedTest::SetUp();
    if (!HasFatalFailure() && has_device()) {
      GTEST_SKIP() << "this machine has a card";
    }
  }

  static void expect_said(kvspan_result_t result, const kvspan_error_t& error) {
    EXPECT_EQ(result, KVSPAN_E_NO_DEVICE) << error.message;
    EXPECT_EQ(error.code, KVSPAN_E_NO_DEVICE);
    EXPECT_NE(std::strstr(error.message, "no device"), nullptr) << error.message;
    EXPECT_NE(error.native_code, 0) << "CUDA's own code";
  }
};

TEST_F(NoDeviceTest, CountSaysWhyInWords) {
  if (counted_ == KVSPAN_OK) {
    EXPECT_EQ(count_, 0u) << "a driver without a card";
    return;
  }
  expect_said(counted_, count_error_);
  EXPECT_STREQ(count_error_.where, "device.count");
}

TEST_F(NoDeviceTest, DescribeAndOpenRefuseAndLeaveTheirOutputs) {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  info.queues_max = 12345;
  kvspan_error_t error = no_error();
  const kvspan_result_t described = plugin_.device()->describe(plugin_.self(), 0, &info, &error);
  EXPECT_LT(described, 0);
  EXPECT_EQ(info.queues_max, 12345u);
  auto* const untouched = reinterpret_cast<kvspan_device_t*>(this);
  kvspan_device_t* device = untouched;
  error = no_error();
  const kvspan_result_t opened = plugin_.device()->open(plugin_.self(), 0, &device, &error);
  EXPECT_EQ(device, untouched);
  if (counted_ == KVSPAN_OK) {
    EXPECT_EQ(opened, KVSPAN_E_INVALID_ARG) << "no such index";
  } else {
    expect_said(opened, error);
  }
}

TEST_F(NoDeviceTest, TablesAreCompleteAllTheSame) {
  EXPECT_NE(plugin_.attention(), nullptr);
  EXPECT_NE(plugin_.debug(), nullptr);
  EXPECT_NE(plugin_.native(), nullptr);
  EXPECT_NE(plugin_.draft(KVSPAN_TABLE_GRAPH), nullptr);
}

}  // namespace
}  // namespace kvspan::cuda
