// SPDX-License-Identifier: Apache-2.0
// The loader over fake plugins that break one thing each: refused by name, and nothing is left.
#include "kvspan/sdk/loader.hpp"

#include "kvspan/sdk/handle.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvspan::sdk {
namespace {

std::string fake(const std::string& name) {
  return std::string(KVSPAN_FAKES) + "/kvspan-" + name + ".so";
}

bool is_mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::size_t open_files() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.path().empty() ? 0u : 1u;
  }
  return count;
}

/// Loads fakes with memory and log that are watched.
class Loader : public ::testing::Test {
 protected:
  Loader() {
    options_.unload = Unload::unmap;
    options_.log_level = KVSPAN_LOG_INFO;
    options_.log = [this](std::uint32_t, std::string_view text) { log_.emplace_back(text); };
    options_.alloc = [this](std::uint64_t bytes, std::uint64_t alignment) {
      void* block = ::operator new(bytes, std::align_val_t(alignment));
      blocks_[block] = {bytes, alignment};
      return block;
    };
    options_.free = [this](void* block, std::uint64_t bytes, std::uint64_t alignment) {
      const auto found = blocks_.find(block);
      ASSERT_NE(found, blocks_.end());
      EXPECT_EQ(found->second, std::make_pair(bytes, alignment));
      blocks_.erase(found);
      ::operator delete(block, std::align_val_t(alignment));
    };
    files_ = open_files();
  }

  void expect_nothing_left(const std::string& name) {
    EXPECT_TRUE(blocks_.empty()) << name << " left host memory";
    EXPECT_EQ(open_files(), files_) << name << " left a file open";
    EXPECT_FALSE(is_mapped(fake(name))) << name << " is still mapped";
  }

  void expect_refused(const std::string& name, kvspan_result_t code, const std::string& sentence) {
    SCOPED_TRACE(name);
    Plugin plugin;
    kvspan_error_t error{};
    EXPECT_EQ(Plugin::load(fake(name), options_, plugin, &error), code);
    EXPECT_EQ(error.code, code);
    EXPECT_FALSE(plugin);
    const std::string message = error.message;
    EXPECT_EQ(message.rfind("kvspan-" + name + ".so ", 0), 0u) << message;
    EXPECT_NE(message.find(sentence), std::string::npos) << message;
    EXPECT_EQ(Plugin::load(fake(name), options_, plugin, nullptr), code) << "without a record";
    expect_nothing_left(name);
  }

  LoadOptions options_;
  std::vector<std::string> log_;
  std::map<void*, std::pair<std::uint64_t, std::uint64_t>> blocks_;
  std::size_t files_ = 0;
};

TEST_F(Loader, OpensACompletePluginAndLeavesNothing) {
  {
    Plugin plugin;
    kvspan_error_t error{};
    ASSERT_EQ(Plugin::load(fake("complete"), options_, plugin, &error), KVSPAN_OK) << error.message;
    EXPECT_TRUE(plugin);
    EXPECT_NE(plugin.self(), nullptr);
    EXPECT_EQ(plugin.note().name, "fake");
    EXPECT_EQ(plugin.minor(), KVSPAN_ABI_MINOR);
    EXPECT_NE(plugin.codec(), nullptr);
    EXPECT_EQ(plugin.attention(), nullptr);
    EXPECT_EQ(plugin.native(), nullptr);
    EXPECT_EQ(plugin.debug(), nullptr);
    EXPECT_TRUE(is_mapped(fake("complete")));
    EXPECT_FALSE(blocks_.empty());
  }
  EXPECT_EQ(log_, (std::vector<std::string>{"opened", "closed"}));
  expect_nothing_left("complete");
}

TEST_F(Loader, RefusesByNoteWithoutLoading) {
  const kvspan_result_t bad_file = KVSPAN_E_INVALID_ARG;
  expect_refused("no-note", bad_file, "has no kvspan note");
  expect_refused("two-notes", bad_file, "kvspan note");
  expect_refused("no-floor", bad_file, "processor floor");
  expect_refused("wrong-hash", KVSPAN_E_VERSION, "0123456789abcdef");
  expect_refused("wrong-major", KVSPAN_E_VERSION, "major 7");
  EXPECT_TRUE(log_.empty()) << "a refused plugin ran";
}

TEST_F(Loader, NamesTheMissingLibrary) {
  expect_refused("absent-library", KVSPAN_E_VERSION, "needs libkvspan_absent.so");
}

TEST_F(Loader, RefusesEntriesThatFailThrowOrAreAbsent) {
  expect_refused("no-entry", KVSPAN_E_INTERNAL, "does not export kvspan_plugin_open_0");
  expect_refused("open-fails", KVSPAN_E_NO_DEVICE, "the moon is in the wrong house");
  expect_refused("open-timeout", KVSPAN_E_INTERNAL, "returned 2 from open");
  EXPECT_TRUE(log_.empty());
}

// Sanitizers keep modules of theirs mapped when an exception has been thrown: only the refusal
// counts.
TEST_F(Loader, RefusesAnEntryThatThrows) {
  Plugin plugin;
  kvspan_error_t error{};
  EXPECT_EQ(Plugin::load(fake("throwing"), options_, plugin, &error), KVSPAN_E_INTERNAL);
  EXPECT_NE(std::string(error.message).find("threw an exception"), std::string::npos);
  EXPECT_TRUE(blocks_.empty());
}

TEST_F(Loader, RefusesWhatIsWrongAfterOpenAndClosesIt) {
  const kvspan_result_t defect = KVSPAN_E_INTERNAL;

  struct Case {
    const char* name;
    const char* sentence;
  };

  for (const Case& c : {Case{"null-slot", "NULL in slot 2 of its copy table"},
                        Case{"short-table", "fence table of"},
                        Case{"missing-table", "has no codec table"},
                        Case{"any-table", "table with id 0"},
                        Case{"wrong-minor", "chose minor 42"},
                        Case{"other-range", "other minors than its note"},
                        Case{"no-table-function", "without its two functions"}}) {
    log_.clear();
    expect_refused(c.name, defect, c.sentence);
    EXPECT_EQ(log_, (std::vector<std::string>{"opened", "closed", "opened", "closed"})) << c.name;
  }
}

TEST_F(Loader, RefusesWhatIsNoFile) {
  Plugin plugin;
  kvspan_error_t error{};
  EXPECT_EQ(Plugin::load("/nonexistent/kvspan-x.so", options_, plugin, &error),
            KVSPAN_E_INVALID_ARG);
  EXPECT_NE(std::string(error.message).find("does not exist"), std::string::npos);
  EXPECT_EQ(Plugin::load(KVSPAN_FAKES, options_, plugin, &error), KVSPAN_E_INVALID_ARG);
  EXPECT_NE(std::string(error.message).find("is not a file"), std::string::npos);
  EXPECT_EQ(Plugin::load("", options_, plugin, nullptr), KVSPAN_E_INVALID_ARG);
}

TEST_F(Loader, FailureLeavesAnOpenPluginAsItWas) {
  Plugin plugin;
  ASSERT_EQ(Plugin::load(fake("complete"), options_, plugin, nullptr), KVSPAN_OK);
  const void* self = plugin.self();
  EXPECT_NE(Plugin::load(fake("null-slot"), options_, plugin, nullptr), KVSPAN_OK);
  ASSERT_TRUE(plugin);
  EXPECT_EQ(plugin.self(), self);
}

TEST_F(Loader, FollowsLinksAndNamesTheRealFile) {
  const std::string link = ::testing::TempDir() + "kvspan-link.so";
  ::unlink(link.c_str());
  ASSERT_EQ(::symlink(fake("complete").c_str(), link.c_str()), 0);
  Plugin plugin;
  ASSERT_EQ(Plugin::load(link, options_, plugin, nullptr), KVSPAN_OK);
  EXPECT_EQ(plugin.path(), std::filesystem::canonical(fake("complete")));
  ::unlink(link.c_str());
}

TEST_F(Loader, APluginWithOpenDevicesStaysOpen) {
  Plugin plugin;
  ASSERT_EQ(Plugin::load(fake("complete"), options_, plugin, nullptr), KVSPAN_OK);
  kvspan_error_t error{};
  Device device;
  ASSERT_EQ(Device::open(plugin, 0, device, &error), KVSPAN_OK);
  EXPECT_EQ(plugin.close(&error), KVSPAN_E_BUSY);
  EXPECT_TRUE(plugin);
  EXPECT_EQ(device.reset(), KVSPAN_OK);
  EXPECT_EQ(plugin.close(&error), KVSPAN_OK);
  EXPECT_FALSE(plugin);
  EXPECT_EQ(plugin.close(), KVSPAN_OK) << "twice is once";
  expect_nothing_left("complete");
}

TEST_F(Loader, DevicesComeWithAHandleOrAReason) {
  Plugin plugin;
  ASSERT_EQ(Plugin::load(fake("complete"), options_, plugin, nullptr), KVSPAN_OK);
  Device device;
  kvspan_error_t error{};
  EXPECT_EQ(Device::open(plugin, 1, device, &error), KVSPAN_E_INTERNAL);
  EXPECT_EQ(Device::open(plugin, 2, device, &error), KVSPAN_E_NO_DEVICE);
  EXPECT_STREQ(error.message, "there is no device 2");
  EXPECT_FALSE(device);
}

TEST_F(Loader, MovesAndReplacesOpenPlugins) {
  Plugin first;
  Plugin second;
  ASSERT_EQ(Plugin::load(fake("complete"), options_, first, nullptr), KVSPAN_OK);
  ASSERT_EQ(Plugin::load(fake("complete"), options_, second, nullptr), KVSPAN_OK);
  const void* self = first.self();
  second = std::move(first);
  EXPECT_EQ(second.self(), self);
  EXPECT_EQ(log_, (std::vector<std::string>{"opened", "opened", "closed"}));
}

TEST_F(Loader, WithoutUnmappingTheFileStaysMapped) {
  options_.unload = Unload::keep_mapped;
  {
    Plugin plugin;
    ASSERT_EQ(Plugin::load(fake("complete"), options_, plugin, nullptr), KVSPAN_OK);
  }
  EXPECT_TRUE(is_mapped(fake("complete")));
  EXPECT_TRUE(blocks_.empty());
  EXPECT_EQ(log_.back(), "closed");
}

TEST(HostServicesOf, OptionsAreCopiedCutAndMeasured) {
  LoadOptions options;
  options.options = {{"threads", "12345"}, {"empty", ""}};
  const HostServices services(options);
  const kvspan_host_services_t& host = *services.table();
  char target[8] = "unset..";
  EXPECT_EQ(host.option(host.self, "threads", target, sizeof target), 5u);
  EXPECT_STREQ(target, "12345");
  EXPECT_EQ(host.option(host.self, "threads", target, 3), 5u);
  EXPECT_STREQ(target, "12");
  EXPECT_EQ(host.option(host.self, "threads", nullptr, 0), 5u);
  EXPECT_EQ(host.option(host.self, "seed", target, sizeof target), 0u);
  EXPECT_EQ(host.option(host.self, nullptr, target, sizeof target), 0u);
  EXPECT_STREQ(target, "12") << "not set leaves the target alone";
}

TEST(HostServicesOf, MemoryIsAlignedAndTheClockDoesNotGoBack) {
  const HostServices services{LoadOptions{}};
  const kvspan_host_services_t& host = *services.table();
  for (std::uint64_t alignment = 1; alignment <= 4096; alignment *= 2) {
    void* block = host.alloc(host.self, 100, alignment);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u);
    host.free(host.self, block, 100, alignment);
  }
  EXPECT_EQ(host.alloc(host.self, 100, 3), nullptr);
  EXPECT_EQ(host.alloc(host.self, 100, 0), nullptr);
  host.free(host.self, nullptr, 100, 8);
  const std::uint64_t before = host.now_ns(host.self);
  EXPECT_LE(before, host.now_ns(host.self));
}

}  // namespace
}  // namespace kvspan::sdk
