// SPDX-License-Identifier: Apache-2.0
// The entry point called as no careful host would: other hashes, minors and sizes, NULL, tables by
// any id from many threads, every slot there, memory refused at each allocation, closed too early.
// Not here: what the file itself exports (exports_test.cpp), what close leaves (unload_test.cpp).
#include "kvspan/kvspan.h"
#include "kvspan/sdk/note.hpp"

#include "worker/case.hpp"
#include "worker/library.hpp"

#include <atomic>
#include <cstring>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class EntryTest : public CaseTest {
 protected:
  void SetUp() override {
    CaseTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    library_ = std::make_unique<Library>(settings().plugin_path);
    ASSERT_EQ(library_->defect(), "");
    host_ = std::make_unique<WatchedHost>(settings().options);
  }

  void TearDown() override {
    if (plugin_.close != nullptr && plugin_.self != nullptr) {
      EXPECT_EQ(plugin_.close(plugin_.self, nullptr), KVSPAN_OK);
    }
    if (host_ != nullptr) {
      EXPECT_EQ(host_->blocks_left(), 0u) << "KV-HOST-2: blocks of host memory were not given back";
      EXPECT_EQ(host_->wrong_frees(), 0u) << "KV-HOST-2: freed with another size or alignment";
    }
  }

  /// Opens with these facts; what is open is closed again. `filled` is the struct as it came back.
  kvspan_result_t attempt(const kvspan_open_info_t& info,
                          kvspan_plugin_t& filled,
                          kvspan_error_t* error) {
    filled = {};
    filled.struct_size = sizeof filled;
    const kvspan_result_t result = library_->entry()(&info, &filled, error);
    if (result == KVSPAN_OK) {
      EXPECT_EQ(filled.close(filled.self, nullptr), KVSPAN_OK);
    } else {
      EXPECT_EQ(host_->blocks_left(), 0u) << "KV-ENTRY-4: a refused open kept memory";
    }
    return result;
  }

  /// Opens as it should be; closed after the case.
  void open() {
    const kvspan_open_info_t info = host_->open_info();
    plugin_.struct_size = sizeof plugin_;
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = library_->entry()(&info, &plugin_, &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
    ASSERT_NE(plugin_.table, nullptr);
    ASSERT_NE(plugin_.close, nullptr);
  }

  std::unique_ptr<Library> library_;
  std::unique_ptr<WatchedHost> host_;
  kvspan_plugin_t plugin_ = {};
};

KVSPAN_CASE(EntryTest, AnotherHeaderHashIsRefused, "KV-ENTRY-2 KV-ENTRY-4") {
  constexpr uint64_t kOwn = KVSPAN_HEADER_HASH;
  for (const uint64_t hash : {kOwn ^ 1u, kOwn ^ (uint64_t{1} << 63), uint64_t{0}, ~kOwn}) {
    kvspan_open_info_t info = host_->open_info();
    info.header_hash = hash;
    kvspan_plugin_t filled = {};
    kvspan_error_t error = fresh_error();
    ASSERT_EQ(attempt(info, filled, &error), KVSPAN_E_VERSION) << "hash 0x" << std::hex << hash;
    EXPECT_EQ(error.code, KVSPAN_E_VERSION);
    EXPECT_NE(error.message[0], '\0');
    EXPECT_LE(filled.plugin_minor_min, KVSPAN_ABI_MINOR) << "the range is filled on failure too";
    EXPECT_GE(filled.plugin_minor_max, KVSPAN_ABI_MINOR) << "the range is filled on failure too";
    EXPECT_EQ(attempt(info, filled, nullptr), KVSPAN_E_VERSION) << "and without an error record";
  }
  kvspan_plugin_t filled = {};
  EXPECT_EQ(attempt(host_->open_info(), filled, nullptr), KVSPAN_OK) << "the right one still works";
}

KVSPAN_CASE(EntryTest, MinorsMeetOrAreRefused, "KV-ENTRY-3 KV-ENTRY-4") {
  kvspan_plugin_t own = {};
  ASSERT_EQ(attempt(host_->open_info(), own, nullptr), KVSPAN_OK);
  ASSERT_LE(own.plugin_minor_min, own.plugin_minor_max);
  const uint32_t most = own.plugin_minor_max + 3;
  for (uint32_t low = 0; low <= most; ++low) {
    for (uint32_t high = low; high <= most; ++high) {
      SCOPED_TRACE(testing::Message() << "host " << low << " to " << high << ", plugin "
                                      << own.plugin_minor_min << " to " << own.plugin_minor_max);
      kvspan_open_info_t info = host_->open_info();
      info.host_minor_min = low;
      info.host_minor_max = high;
      const uint32_t chosen = std::min(high, own.plugin_minor_max);
      const bool meets = chosen >= std::max(low, own.plugin_minor_min);
      for (int again = 0; again < 2; ++again) {
        kvspan_plugin_t filled = {};
        ASSERT_EQ(attempt(info, filled, nullptr), meets ? KVSPAN_OK : KVSPAN_E_VERSION);
        EXPECT_EQ(filled.plugin_minor_min, own.plugin_minor_min);
        EXPECT_EQ(filled.plugin_minor_max, own.plugin_minor_max);
        EXPECT_TRUE(!meets || filled.minor == chosen) << "chose minor " << filled.minor;
      }
    }
  }
}

KVSPAN_CASE(EntryTest, TheNoteSaysWhatOpenAnswers, "KV-ENTRY-2 KV-ENTRY-3") {
  sdk::Note note;
  std::string why;
  ASSERT_TRUE(sdk::read_note(settings().plugin_path, note, why)) << "the file " << why;
  EXPECT_EQ(note.header_hash, KVSPAN_HEADER_HASH) << "built from other headers";
  EXPECT_EQ(note.abi_major, KVSPAN_ABI_MAJOR);
  kvspan_plugin_t own = {};
  ASSERT_EQ(attempt(host_->open_info(), own, nullptr), KVSPAN_OK);
  EXPECT_EQ(own.plugin_minor_min, note.minors.min) << "a host chooses by the note";
  EXPECT_EQ(own.plugin_minor_max, note.minors.max) << "a host chooses by the note";
}

KVSPAN_CASE(EntryTest, NullAndStructsOfAnotherSizeAreRefused, "KV-STRUCT-1 KV-STRUCT-3") {
  const kvspan_open_info_t right = host_->open_info();
  kvspan_plugin_t filled = {};
  filled.struct_size = sizeof filled;
  EXPECT_EQ(library_->entry()(nullptr, &filled, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(library_->entry()(&right, nullptr, nullptr), KVSPAN_E_INVALID_ARG);
  kvspan_open_info_t without = right;
  without.host = nullptr;
  EXPECT_EQ(library_->entry()(&without, &filled, nullptr), KVSPAN_E_INVALID_ARG);
  for (const uint32_t size : {0u, 4u, uint32_t{sizeof right} - 8, uint32_t{sizeof right} + 8}) {
    kvspan_open_info_t info = right;
    info.struct_size = size;
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(attempt(info, filled, &error), KVSPAN_E_BAD_STRUCT_SIZE) << "info of " << size;
    EXPECT_EQ(error.code, KVSPAN_E_BAD_STRUCT_SIZE);
  }
  for (const uint32_t size : {0u, 4u, uint32_t{sizeof filled} - 8, uint32_t{sizeof filled} + 8}) {
    kvspan_plugin_t other = {};
    other.struct_size = size;
    EXPECT_EQ(library_->entry()(&right, &other, nullptr), KVSPAN_E_BAD_STRUCT_SIZE)
        << "plugin of " << size;
    EXPECT_EQ(other.self, nullptr);
  }
}

KVSPAN_CASE(EntryTest, EverySlotOfATableIsThere, "KV-TABLE-1") {
  open();
  if (HasFatalFailure()) {
    return;
  }

  struct Wanted {
    const char* name;
    uint32_t id;
    uint32_t bytes;
    bool mandatory;
  };

  const Wanted all[] = {
      {"device", KVSPAN_TABLE_DEVICE, sizeof(kvspan_device_table_t), true},
      {"memory", KVSPAN_TABLE_MEMORY, sizeof(kvspan_memory_table_t), true},
      {"queue", KVSPAN_TABLE_QUEUE, sizeof(kvspan_queue_table_t), true},
      {"fence", KVSPAN_TABLE_FENCE, sizeof(kvspan_fence_table_t), true},
      {"copy", KVSPAN_TABLE_COPY, sizeof(kvspan_copy_table_t), true},
      {"codec", KVSPAN_TABLE_CODEC, sizeof(kvspan_codec_table_t), true},
      {"attention", KVSPAN_TABLE_ATTENTION, sizeof(kvspan_attention_table_t), false},
      {"native", KVSPAN_TABLE_NATIVE, sizeof(kvspan_native_table_t), false},
      {"debug", KVSPAN_TABLE_DEBUG, sizeof(kvspan_debug_table_t), false}};
  for (const Wanted& wanted : all) {
    const auto* bytes = table_of<uint8_t>(plugin_, wanted.id);
    EXPECT_TRUE(bytes != nullptr || !wanted.mandatory) << "no " << wanted.name << " table";
    if (bytes == nullptr) {
      continue;
    }
    uint32_t head[2] = {};  // struct_size, reserved
    std::memcpy(head, bytes, sizeof head);
    ASSERT_EQ(head[0], wanted.bytes) << wanted.name;
    EXPECT_EQ(head[1], 0u) << wanted.name;
    for (uint32_t at = sizeof head; at < head[0]; at += sizeof(void*)) {
      void* slot = nullptr;
      std::memcpy(&slot, bytes + at, sizeof slot);
      EXPECT_NE(slot, nullptr) << "slot at byte " << at << " of the " << wanted.name << " table";
    }
  }
}

KVSPAN_CASE(EntryTest, TablesAreTheSameEachTimeAndOtherIdsGiveNone, "KV-TABLE-2 KV-TABLE-3") {
  open();
  if (HasFatalFailure()) {
    return;
  }
  const void* first[KVSPAN_TABLE_DEBUG + 1] = {};
  for (uint32_t id = 0; id <= KVSPAN_TABLE_DEBUG; ++id) {
    first[id] = table_of<void>(plugin_, id);
  }
  EXPECT_EQ(first[0], nullptr);
  for (uint32_t id = 1; id <= KVSPAN_TABLE_DEBUG; ++id) {
    for (uint32_t other = 1; other < id; ++other) {
      EXPECT_TRUE(first[id] == nullptr || first[id] != first[other]) << id << " and " << other;
    }
  }
  Dice dice(settings(), 1);
  std::vector<uint32_t> unknown = {10, 11, UINT32_MAX, KVSPAN_TABLE_DRAFT, KVSPAN_TABLE_DRAFT | 2u};
  for (int i = 0; i < 64; ++i) {
    const auto id = static_cast<uint32_t>(dice.next());
    if (id > KVSPAN_TABLE_DEBUG && id != KVSPAN_TABLE_GRAPH) {
      unknown.push_back(id);
    }
  }
  std::atomic<uint32_t> changed = 0;
  std::atomic<uint32_t> invented = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 125; ++round) {
        for (uint32_t id = 0; id <= KVSPAN_TABLE_DEBUG; ++id) {
          changed += table_of<void>(plugin_, id) != first[id] ? 1u : 0u;
        }
        for (const uint32_t id : unknown) {
          invented += table_of<void>(plugin_, id) != nullptr ? 1u : 0u;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(changed, 0u) << "another pointer for the same id";
  EXPECT_EQ(invented, 0u) << "a table for an id that does not exist";
}

KVSPAN_CASE(EntryTest, ClosingWithAnOpenDeviceIsBusyAndChangesNothing, "KV-CLOSE-3") {
  open();
  if (HasFatalFailure()) {
    return;
  }
  const auto* device = table_of<kvspan_device_table_t>(plugin_, KVSPAN_TABLE_DEVICE);
  const auto* fence = table_of<kvspan_fence_table_t>(plugin_, KVSPAN_TABLE_FENCE);
  uint32_t count = 0;
  if (device->count(plugin_.self, &count, nullptr) != KVSPAN_OK || count <= settings().device) {
    return inconclusive("there is no device to leave open");
  }
  kvspan_device_t* opened[2] = {};
  for (kvspan_device_t*& one : opened) {
    ASSERT_EQ(device->open(plugin_.self, settings().device, &one, nullptr), KVSPAN_OK);
  }
  EXPECT_NE(opened[0], opened[1]);
  for (uint64_t left = 2; left != 0; --left) {
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(plugin_.close(plugin_.self, &error), KVSPAN_E_BUSY);
    EXPECT_EQ(error.provided, left) << "devices still open";
    kvspan_fence_t* made = nullptr;
    EXPECT_EQ(fence->create(opened[left - 1], 3, &made, nullptr), KVSPAN_OK) << "it works on";
    EXPECT_EQ(fence->destroy(made, nullptr), KVSPAN_OK);
    EXPECT_EQ(device->close(opened[left - 1], nullptr), KVSPAN_OK);
  }
}

/// Opens, makes one of everything and ends it again. Every call fails with HOST_MEMORY or works.
KVSPAN_CASE(EntryTest, AnyRefusedAllocationIsAResult, "KV-MANNERS-2 KV-HOST-2", cost_ms(100)) {
  const auto once = [&](bool& failed) {
    const auto fine = [&](kvspan_result_t result) {
      failed = failed || result != KVSPAN_OK;
      EXPECT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_HOST_MEMORY) << "result " << result;
      return result == KVSPAN_OK;
    };
    plugin_ = {};
    plugin_.struct_size = sizeof plugin_;
    const kvspan_open_info_t info = host_->open_info();
    if (!fine(library_->entry()(&info, &plugin_, nullptr))) {
      plugin_ = {};
      return;
    }
    const auto* device = table_of<kvspan_device_table_t>(plugin_, KVSPAN_TABLE_DEVICE);
    const auto* memory = table_of<kvspan_memory_table_t>(plugin_, KVSPAN_TABLE_MEMORY);
    const auto* queue = table_of<kvspan_queue_table_t>(plugin_, KVSPAN_TABLE_QUEUE);
    const auto* fence = table_of<kvspan_fence_table_t>(plugin_, KVSPAN_TABLE_FENCE);
    kvspan_device_t* opened = nullptr;
    uint32_t count = 0;
    if (device->count(plugin_.self, &count, nullptr) == KVSPAN_OK && count > settings().device &&
        fine(device->open(plugin_.self, settings().device, &opened, nullptr))) {
      kvspan_memory_t* bytes = nullptr;
      kvspan_queue_t* line = nullptr;
      kvspan_fence_t* point = nullptr;
      const kvspan_queue_options_t options = {sizeof options, KVSPAN_ROLE_COMPUTE, 0, 0};
      fine(memory->alloc(opened, KVSPAN_MEMORY_HOST, 4096, &bytes, nullptr));
      fine(queue->create(opened, &options, &line, nullptr));
      fine(fence->create(opened, 0, &point, nullptr));
      EXPECT_EQ(bytes == nullptr ? KVSPAN_OK : memory->release(bytes, nullptr), KVSPAN_OK);
      EXPECT_EQ(line == nullptr ? KVSPAN_OK : queue->destroy(line, nullptr), KVSPAN_OK);
      EXPECT_EQ(point == nullptr ? KVSPAN_OK : fence->destroy(point, nullptr), KVSPAN_OK);
      EXPECT_EQ(device->close(opened, nullptr), KVSPAN_OK);
    }
    EXPECT_EQ(plugin_.close(plugin_.self, nullptr), KVSPAN_OK);
    plugin_ = {};
    EXPECT_EQ(host_->blocks_left(), 0u);
  };
  bool failed = false;
  once(failed);
  EXPECT_FALSE(failed) << "without a refusal nothing fails";
  const uint64_t wanted = host_->allocations();
  for (uint64_t nth = 1; nth <= wanted && !HasFailure(); ++nth) {
    SCOPED_TRACE(testing::Message() << "allocation " << nth << " of " << wanted);
    failed = false;
    host_->fail_allocation(nth);
    once(failed);
    host_->fail_allocation(0);
    EXPECT_TRUE(failed) << "the refused allocation was not noticed";
  }
}

}  // namespace
}  // namespace kvspan::conformance
