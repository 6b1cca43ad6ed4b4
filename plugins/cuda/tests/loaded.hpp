// SPDX-License-Identifier: Apache-2.0
// The built kvspan-cuda.so, loaded as a host would load it.
#pragma once

#include "kvspan/sdk/loader.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace kvspan::cuda {

inline kvspan_error_t no_error() {
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  return error;
}

class LoadedTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("KVSPAN_TEST_PLUGINS");
    ASSERT_NE(folder, nullptr) << "KVSPAN_TEST_PLUGINS names the folder of the built plugins";
    sdk::LoadOptions options;
    options.log = [this](uint32_t, std::string_view line) { log_ += std::string(line) + "\n"; };
    kvspan_error_t error = no_error();
    ASSERT_EQ(sdk::Plugin::load(std::string(folder) + "/kvspan-cuda.so", options, plugin_, &error),
              KVSPAN_OK)
        << error.message;
    counted_ = plugin_.device()->count(plugin_.self(), &count_, &count_error_);
  }

  void TearDown() override { EXPECT_EQ(plugin_.close(), KVSPAN_OK); }

  [[nodiscard]] bool has_device() const { return counted_ == KVSPAN_OK && count_ > 0; }

  sdk::Plugin plugin_;
  std::string log_;
  uint32_t count_ = 0;
  kvspan_result_t counted_ = KVSPAN_OK;
  kvspan_error_t count_error_ = no_error();
};

}  // namespace kvspan::cuda
