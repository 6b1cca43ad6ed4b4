// SPDX-License-Identifier: Apache-2.0
// What is left of a plugin that was used, closed and unloaded: nothing. A suite of its own, because
// its cases want a process in which nobody else has the file mapped.
#include "kvspan/kvspan.h"

#include "worker/call_watch.hpp"
#include "worker/case.hpp"
#include "worker/library.hpp"
#include "worker/retained.hpp"

#include <cstring>
#include <fstream>
#include <functional>
#include <unistd.h>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kGrowthBytesMax = uint64_t{512} << 20;  // freed blocks wait in quarantine
constexpr uint64_t kMappedGrowthBytesMax = uint64_t{64} << 30;
#else
constexpr uint64_t kGrowthBytesMax = uint64_t{2} << 20;
constexpr uint64_t kMappedGrowthBytesMax = uint64_t{96} << 20;  // stacks are kept for new threads
#endif

struct Held {
  uint64_t mapped = 0;
  uint64_t resident = 0;
};

Held bytes_held() {
  std::ifstream file("/proc/self/statm");
  Held pages;
  file >> pages.mapped >> pages.resident;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return {pages.mapped * page, pages.resident * page};
}

class UnloadTest : public CaseTest {
 protected:
  /// Loads, opens, copies some bytes through every role's queue, closes.
  void use(Library& library, WatchedHost& host);
  /// Uses the plugin while its calls are watched, then lets `judge` read what was seen.
  void watch(const std::function<void()>& judge);
  void work(const kvspan_plugin_t& plugin, kvspan_device_t* device);
};

void UnloadTest::work(const kvspan_plugin_t& plugin, kvspan_device_t* device) {
  const auto& memory = *table_of<kvspan_memory_table_t>(plugin, KVSPAN_TABLE_MEMORY);
  const auto& queue = *table_of<kvspan_queue_table_t>(plugin, KVSPAN_TABLE_QUEUE);
  const auto& fence = *table_of<kvspan_fence_table_t>(plugin, KVSPAN_TABLE_FENCE);
  const auto& copy = *table_of<kvspan_copy_table_t>(plugin, KVSPAN_TABLE_COPY);
  constexpr uint64_t kCopyBytes = uint64_t{256} << 10;
  kvspan_memory_t* host_side = nullptr;
  kvspan_memory_t* device_side = nullptr;
  kvspan_fence_t* done = nullptr;
  ASSERT_EQ(memory.alloc(device, KVSPAN_MEMORY_HOST, kCopyBytes, &host_side, nullptr), KVSPAN_OK);
  ASSERT_EQ(memory.alloc(device, KVSPAN_MEMORY_DEVICE, kCopyBytes, &device_side, nullptr),
            KVSPAN_OK);
  ASSERT_EQ(fence.create(device, 0, &done, nullptr), KVSPAN_OK);
  const kvspan_segment_t segment = {host_side, device_side, 0, 0, kCopyBytes, 1, 0, 0};
  for (uint64_t round = 1; round <= 3; ++round) {
    const kvspan_queue_options_t options = {sizeof options, uint32_t(round - 1), 0, 0};
    kvspan_queue_t* line = nullptr;
    ASSERT_EQ(queue.create(device, &options, &line, nullptr), KVSPAN_OK);
    const kvspan_point_t point = {done, round};
    kvspan_submit_t submit = {};
    submit.struct_size = sizeof submit;
    submit.signal_count = 1;
    submit.signals = &point;
    ASSERT_EQ(copy.copy(line, &segment, 1, &submit, nullptr), KVSPAN_OK);
    ASSERT_EQ(fence.wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr), KVSPAN_OK);
    EXPECT_EQ(queue.destroy(line, nullptr), KVSPAN_OK);
  }
  EXPECT_EQ(fence.destroy(done, nullptr), KVSPAN_OK);
  EXPECT_EQ(memory.release(device_side, nullptr), KVSPAN_OK);
  EXPECT_EQ(memory.release(host_side, nullptr), KVSPAN_OK);
}

void UnloadTest::use(Library& library, WatchedHost& host) {
  ASSERT_EQ(library.defect(), "");
  const kvspan_open_info_t info = host.open_info();
  kvspan_plugin_t plugin = {};
  plugin.struct_size = sizeof plugin;
  ASSERT_EQ(library.entry()(&info, &plugin, nullptr), KVSPAN_OK);
  const auto& table = *table_of<kvspan_device_table_t>(plugin, KVSPAN_TABLE_DEVICE);
  uint32_t count = 0;
  if (table.count(plugin.self, &count, nullptr) == KVSPAN_OK && count > settings().device) {
    kvspan_device_t* device = nullptr;
    ASSERT_EQ(table.open(plugin.self, settings().device, &device, nullptr), KVSPAN_OK);
    work(plugin, device);
    EXPECT_EQ(table.close(device, nullptr), KVSPAN_OK);
  }
  EXPECT_EQ(plugin.close(plugin.self, nullptr), KVSPAN_OK);
  host.shut();
  EXPECT_EQ(host.bad_line(), "") << "KV-HOST-1: not one line of text";
}

void UnloadTest::watch(const std::function<void()>& judge) {
  WatchedHost host(settings().options);
  Library library(settings().plugin_path);
  ASSERT_EQ(library.defect(), "");
  const CallWatch calls(library);
  ASSERT_TRUE(calls.found()) << "the plugin is not among the loaded files";
  use(library, host);
  judge();
}

KVSPAN_CASE(UnloadTest,
            NothingIsLeftBehind,
            "KV-CLOSE-1 KV-MANNERS-3 KV-MANNERS-4 KV-MANNERS-6 KV-HOST-2 KV-HOST-1") {
  const bool stays = stays_mapped(settings().plugin_path, settings().retained);
  if (!stays && !Library::mappings(settings().plugin_path).empty()) {
    return inconclusive("the file was mapped before the case began: run this suite alone");
  }
  const ProcessState before = ProcessState::now();
  WatchedHost host(settings().options);
  Library library(settings().plugin_path);
  ASSERT_FALSE(Library::mappings(settings().plugin_path).empty()) << "mappings are not found";
  use(library, host);
  const Remains left = settled_remains(before, settings().retained);
  for (const std::string& change : left.undeclared) {
    ADD_FAILURE() << change << ", after the plugin has closed";
  }
  RecordProperty("note", left.told());
  if (left.undeclared.empty()) {
    library.unload();  // as a host would: who keeps threads in the file has to keep it mapped
    for (const std::string& mapping : Library::mappings(settings().plugin_path)) {
      EXPECT_TRUE(stays) << "KV-MANNERS-6: still mapped after unloading: " << mapping;
    }
  } else {
    library.leave_loaded();  // a thread that is left would crash without its code
  }
  EXPECT_EQ(host.calls_after_shut(), 0u) << "KV-CLOSE-1: it called the host after close";
  EXPECT_EQ(host.blocks_left(), 0u) << "KV-HOST-2";
  EXPECT_EQ(host.wrong_frees(), 0u) << "KV-HOST-2";
}

KVSPAN_CASE(UnloadTest,
            AHundredRoundsHoldNoMoreMemoryThanTen,
            "KV-MANNERS-3 KV-MANNERS-6 KV-CLOSE-2",
            cost_ms(700)) {
  ProcessState before = ProcessState::now();
  const uint32_t rounds = cases(settings(), 100, 20);
  Held after_ten;
  for (uint32_t round = 1; round <= rounds && !HasFailure(); ++round) {
    WatchedHost host(settings().options);
    Library library(settings().plugin_path);
    use(library, host);
    library.unload();
    EXPECT_EQ(host.blocks_left(), 0u) << "KV-HOST-2, round " << round;
    if (round == 1) {  // what stays for the life of the process is there now, and no more comes
      for (const std::string& change : settled_remains(before, settings().retained).undeclared) {
        ADD_FAILURE() << change << ", after the first round";
      }
      before = ProcessState::now();
    }
    after_ten = round == 10 ? bytes_held() : after_ten;
  }
  const Held now = bytes_held();
  EXPECT_LE(now.mapped, after_ten.mapped + kMappedGrowthBytesMax)
      << "KV-MANNERS-6: mapped bytes after " << rounds << " rounds of open and close";
  EXPECT_LE(now.resident, after_ten.resident + kGrowthBytesMax)
      << "KV-MANNERS-6: resident bytes after " << rounds << " rounds of open and close";
  for (const std::string& change : before.settled_changes()) {
    ADD_FAILURE() << change << ", after " << rounds << " rounds";
  }
}

KVSPAN_CASE(UnloadTest, OptionsComeFromTheHostNotFromTheEnvironment, "KV-HOST-4") {
  watch([] {
    for (const std::string& name : CallWatch::variables_read()) {
      ADD_FAILURE() << "KV-HOST-4: it read the environment variable " << name
                    << ": ask the host for an option";
    }
  });
}

KVSPAN_CASE(UnloadTest, NoFunctionIsLeftForTheEndOfTheProcess, "KV-CLOSE-1") {
  watch([] {
    for (const std::string& how : CallWatch::exit_handlers()) {
      ADD_FAILURE() << "KV-CLOSE-1: it registered a function with " << how
                    << ", which runs after close: do that work in close";
    }
  });
}

}  // namespace
}  // namespace kvspan::conformance
