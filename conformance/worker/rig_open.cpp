// SPDX-License-Identifier: Apache-2.0
// Opens the plugin under test through the SDK and closes it again, checking on the way out that the
// plugin gave back everything it took: handles, and each block of host memory with its own size.
#include "kvspan/sdk/loader.hpp"

#include "worker/library.hpp"
#include "worker/plan.hpp"
#include "worker/retained.hpp"
#include "worker/rig.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace kvspan::conformance {

struct Rig::Opened {
  HostBlocks blocks;
  sdk::Plugin plugin;
};

Rig::Rig() : opened_(std::make_unique<Opened>()) {}

Rig::~Rig() {
  if (opened_ != nullptr) {
    close();
  }
}

void* Rig::plugin_self() const {
  return opened_->plugin.self();
}

uint64_t Rig::host_allocations() const {
  return opened_->blocks.taken();
}

std::unique_ptr<Rig> Rig::open(const Settings& settings) {
  std::unique_ptr<Rig> rig(new Rig);
  if (!rig->start(settings)) {
    rig->opened_.reset();
    return nullptr;
  }
  return rig;
}

bool Rig::start(const Settings& settings) {
  Mutation mutation = Mutation::none;
  static_cast<void>(find_mutation(settings.mutation, mutation));  // the command line has checked it
  sdk::LoadOptions options;
  options.options = settings.options;
  HostBlocks& blocks = opened_->blocks;
  options.alloc = [&blocks](uint64_t bytes, uint64_t align) { return blocks.take(bytes, align); };
  options.free = [&blocks](void* block, uint64_t bytes, uint64_t align) {
    blocks.give(block, bytes, align);
  };
  kvspan_error_t error = fresh_error();
  sdk::Plugin& plugin = opened_->plugin;
  kvspan_result_t result = sdk::Plugin::load(settings.plugin_path, options, plugin, &error);
  if (result != KVSPAN_OK) {
    ADD_FAILURE() << settings.plugin_path << ": " << told(result, error);
    return false;
  }
  const Tables tables = tables_of(plugin);
  calls_ = std::make_unique<Calls>(tables, mutation);
  info_.struct_size = sizeof info_;
  result = tables.device->describe(plugin.self(), settings.device, &info_, &error);
  if (result == KVSPAN_OK) {
    result = tables.device->open(plugin.self(), settings.device, &device_, &error);
  }
  if (result != KVSPAN_OK) {
    ADD_FAILURE() << told(result, error);
    return false;
  }
  lane_count_ = std::clamp(info_.queues_max, 1u, KVSPAN_ROLE_COUNT);
  for (uint32_t role = 0; role < lane_count_; ++role) {
    lanes_[role] = extra_lane(role);
  }
  return !::testing::Test::HasFailure();
}

void Rig::close() {
  const auto done = [](const char* what, kvspan_result_t result, const kvspan_error_t& error) {
    EXPECT_EQ(result, KVSPAN_OK) << what << ": " << told(result, error);
  };
  kvspan_error_t error = fresh_error();
  for (const Lane& lane : extra_lanes_) {
    done("queue.destroy", tables().queue->destroy(lane.queue, &error), error);
  }
  for (kvspan_fence_t* fence : fences_) {
    done("fence.destroy", tables().fence->destroy(fence, &error), error);
  }
  for (const auto& buffer : buffers_) {
    done("memory.release", calls_->release(buffer->memory, &error), error);
  }
  if (device_ != nullptr) {
    done("device.close", tables().device->close(device_, &error), error);
  }
  const kvspan_result_t result = opened_->plugin.close(&error);
  done("plugin.close", result, error);
  if (result == KVSPAN_OK) {
    EXPECT_EQ(opened_->blocks.left(), 0u) << "blocks of host memory were not given back";
    EXPECT_EQ(opened_->blocks.wrong(), 0u)
        << "blocks were freed with another size or alignment, or were not the host's";
    for (void* pages : pages_) {
      std::free(pages);
    }
    opened_.reset();
  } else {
    static_cast<void>(opened_.release());  // it lives on, and so must what it may touch
  }
}

void CaseTest::SetUp() {
  const ::testing::TestInfo* current = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string id = std::string(current->test_suite_name()) + "." + current->name();
  const std::string reason = planned_skip(id);
  if (!reason.empty()) {
    GTEST_SKIP() << reason;
  }
}

void PluginTest::SetUp() {
  CaseTest::SetUp();
  if (IsSkipped()) {
    return;
  }
  open_for_the_first_time();
  if (HasFatalFailure()) {
    return;
  }
  before_ = std::make_unique<ProcessState>(ProcessState::now());
  rig_ = Rig::open(settings_);
  ASSERT_NE(rig_, nullptr);
}

void PluginTest::open_for_the_first_time() {
  static bool opened = false;  // a process has one first time
  if (settings_.retained.empty() || std::exchange(opened, true)) {
    return;
  }
  constexpr uint64_t kBytes = 65536;
  const std::unique_ptr<Rig> first = Rig::open(settings_);
  ASSERT_NE(first, nullptr);
  if (Buffer* buffer = first->allocate(KVSPAN_MEMORY_DEVICE, kBytes)) {
    first->upload(*buffer);
    EXPECT_TRUE(first->unchanged(*buffer));
  }
  first->close();
  // Against the process before anything was loaded: what a probe in it left is judged, too.
  const Remains left = settled_remains(remembered_process(), settings_.retained);
  for (const std::string& change : left.undeclared) {
    ADD_FAILURE() << change << ", after the first close, and no entry of --retained covers it";
  }
  if (const std::string kept = left.told(); !kept.empty()) {
    RecordProperty("note", kept);
  }
}

void PluginTest::reopen(const std::string& option, const std::string& value) {
  rig_->close();
  if (!option.empty()) {
    settings_.options[option] = value;
  }
  rig_ = Rig::open(settings_);
  ASSERT_NE(rig_, nullptr);
}

void PluginTest::TearDown() {
  if (rig_ != nullptr) {
    rig_->close();
    rig_.reset();
  }
  if (before_ != nullptr) {
    for (const std::string& change : before_->settled_changes()) {
      ADD_FAILURE() << change << ", after the plugin has closed";
    }
  }
}

}  // namespace kvspan::conformance
