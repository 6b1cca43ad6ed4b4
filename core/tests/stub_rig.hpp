// SPDX-License-Identifier: Apache-2.0
// A stub device for core's tests: virtual time, a seeded scheduler, sparse memory, planted faults.
// Another plugin where a test names it. The plugin comes through the SDK's loader like any other.
// Not here: sessions (engine_rig.hpp).
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/sdk/handle.hpp"
#include "kvspan/sdk/loader.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

namespace kvspan::test {

class StubRig {
 public:
  explicit StubRig(const std::map<std::string, std::string>& options = {}) {
    open("stub", options);
  }

  // Another plugin than the stub.
  struct Plugin {
    std::string name;
  };

  explicit StubRig(const Plugin& plugin) { open(plugin.name, {}); }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  void plant(std::uint32_t kind, std::uint64_t nth, kvspan_result_t code) {
    EXPECT_EQ(plugin_.debug()->fault(device_.get(), kind, nth, code, nullptr), KVSPAN_OK);
  }

  [[nodiscard]] kvspan_debug_counters_t counters() const {
    kvspan_debug_counters_t counters{};
    counters.struct_size = sizeof counters;
    EXPECT_EQ(plugin_.debug()->counters(device_.get(), &counters, nullptr), KVSPAN_OK);
    return counters;
  }

  // OK only when every memory, queue and fence was given back: the leak check of every test that
  // calls it.
  [[nodiscard]] kvspan_result_t close(kvspan_error_t* error) { return device_.reset(error); }

 private:
  void open(const std::string& plugin, const std::map<std::string, std::string>& options) {
    const char* const folder = std::getenv("KVSPAN_TEST_PLUGINS");
    sdk::LoadOptions load;
    load.options = options;
    kvspan_error_t error = empty_error();
    const std::string file =
        std::string(folder == nullptr ? "." : folder) + "/kvspan-" + plugin + ".so";
    EXPECT_EQ(sdk::Plugin::load(file, load, plugin_, &error), KVSPAN_OK) << error.message;
    EXPECT_EQ(sdk::Device::open(plugin_, 0, device_, &error), KVSPAN_OK) << error.message;
    kvspan_device_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(plugin_.device()->describe(plugin_.self(), 0, &info, &error), KVSPAN_OK);
    BackendTables tables{plugin_.device(),
                         plugin_.memory(),
                         plugin_.queue(),
                         plugin_.fence(),
                         plugin_.copy(),
                         plugin_.codec(),
                         plugin_.attention(),
                         plugin_.debug()};
    backend_ = std::make_unique<Backend>(tables, device_.get(), info);
  }

  sdk::Plugin plugin_;
  sdk::Device device_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace kvspan::test
