// SPDX-License-Identifier: Apache-2.0
// An open device of the plugin under test, with one queue a role, memories whose whole contents the
// test knows, and submits that can be waited for. A test writes the image of a buffer, uploads it,
// lets the plugin work, downloads, and compares every byte with what it expects: what nothing named
// must still be there. Not here: histories and attention (history.hpp, scene.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_RIG_H
#define KVSPAN_CONFORMANCE_WORKER_RIG_H

#include "kvspan/kvspan.h"

#include "worker/calls.hpp"
#include "worker/process_state.hpp"
#include "worker/settings.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvspan::conformance {

using Bytes = std::vector<uint8_t>;

/// An error to pass to a slot: struct_size set, the rest 0.
kvspan_error_t fresh_error();

/// "OK", or code, where and sentence of a failure, for messages of tests.
std::string told(kvspan_result_t result, const kvspan_error_t& error);

/// Memory of the device and what the test thinks is in it.
struct Buffer {
  kvspan_memory_t* memory = nullptr;
  uint32_t kind = KVSPAN_MEMORY_DEVICE;
  uint8_t* mapped = nullptr;  // NULL where the kind cannot be mapped
  Bytes image;                // of the whole memory

  uint64_t bytes() const { return image.size(); }

  /// Sets the image to canary bytes, none of them 0, that differ from place to place.
  void fill_canary(uint64_t seed);
};

/// Waits and signals of one submit. Keep it alive until the slot has returned.
class Submit {
 public:
  Submit& wait(kvspan_point_t point);
  Submit& signal(kvspan_point_t point);
  /// The word that cancels it.
  Submit& cancel(const Buffer& word, uint64_t offset);
  const kvspan_submit_t* raw();

  kvspan_submit_t fields = {};

 private:
  std::vector<kvspan_point_t> waits_;
  std::vector<kvspan_point_t> signals_;
};

/// A queue with a fence that only this queue signals.
struct Lane {
  kvspan_queue_t* queue = nullptr;
  kvspan_fence_t* fence = nullptr;
  uint64_t value = 0;

  kvspan_point_t next() { return {fence, ++value}; }

  kvspan_point_t last() const { return {fence, value}; }
};

class Rig {
 public:
  /// Opens the plugin and the device of the settings; NULL after a recorded test failure.
  static std::unique_ptr<Rig> open(const Settings& settings);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  Rig(Rig&&) = delete;
  Rig& operator=(Rig&&) = delete;

  /// Releases everything, closes, and checks that nothing is left: each failure is recorded.
  void close();

  const Calls& calls() const { return *calls_; }

  const Tables& tables() const { return calls_->tables(); }

  const kvspan_device_info_t& info() const { return info_; }

  kvspan_device_t* device() const { return device_; }

  void* plugin_self() const;

  /// How many blocks the plugin has asked its host for since it was opened.
  uint64_t host_allocations() const;

  bool has(uint32_t device_flag) const { return (info_.flags & device_flag) != 0; }

  /// A buffer of at least `bytes`, its image full of canaries, not yet uploaded; NULL after a
  /// recorded failure. Lives until release() or the rig's end.
  Buffer* allocate(uint32_t kind, uint64_t bytes);
  void release(Buffer* buffer);
  /// The test has released the memory itself.
  void forget(Buffer* buffer);
  /// Whether allocate works for the kind here (imports may not be offered).
  bool offers(uint32_t kind) const;

  /// Image to memory, waited for: the first `bytes`, rounded up to a page.
  void upload(const Buffer& buffer, uint64_t bytes = UINT64_MAX);
  /// The first `bytes` of the memory, rounded up to a page.
  Bytes download(const Buffer& buffer, uint64_t bytes = UINT64_MAX);
  /// Expects that memory and image are the same byte for byte.
  ::testing::AssertionResult unchanged(const Buffer& buffer);

  /// The lane of a role; roles share one where the device has fewer queues than roles.
  Lane& lane(uint32_t role) { return lanes_[role % lane_count_]; }

  /// Submits through `work` on the role's queue, signals, waits. Returns what the slot returned, or
  /// the settled failure.
  kvspan_result_t settle(
      uint32_t role,
      const std::function<kvspan_result_t(
          kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error)>& work,
      kvspan_error_t* error = nullptr);
  /// Waits for one point without end.
  kvspan_result_t wait(kvspan_point_t point, kvspan_error_t* error = nullptr) const;

  /// Submits a fill of the whole buffer with a byte.
  kvspan_result_t fill(const Lane& on, const Buffer& buffer, uint8_t byte, Submit& submit) const;
  /// Submits a copy of the whole of one buffer to another of the same size.
  kvspan_result_t copy(const Lane& on,
                       const Buffer& source,
                       const Buffer& target,
                       Submit& submit,
                       kvspan_error_t* error = nullptr) const;

  kvspan_fence_t* fence(uint64_t initial = 0);  // lives until the rig's end
  void destroy(kvspan_fence_t* fence);          // one of fence(); before that
  Lane extra_lane(uint32_t role, uint32_t depth = 0);

 private:
  struct Opened;  // what the loader owns
  Rig();
  bool start(const Settings& settings);
  void move_bytes(const Buffer& buffer, uint8_t* host, uint64_t bytes, bool up);

  std::unique_ptr<Opened> opened_;
  std::unique_ptr<Calls> calls_;
  kvspan_device_info_t info_ = {};
  kvspan_device_t* device_ = nullptr;
  Lane lanes_[KVSPAN_ROLE_COUNT];
  uint32_t lane_count_ = KVSPAN_ROLE_COUNT;
  std::vector<Lane> extra_lanes_;
  std::vector<kvspan_fence_t*> fences_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<void*> pages_;  // host pages behind imported buffers
  Buffer* staging_ = nullptr;
};

/// The base of every fixture: knows the settings, and skips what the worker has planned to skip
/// (only where no parent plans: plan.hpp).
class CaseTest : public ::testing::Test {
 protected:
  void SetUp() override;

  const Settings& settings() const { return settings_; }

  Settings settings_ = worker_settings();
};

/// Opens a rig for each case, closes it with checks, and checks that the process is then as it was
/// before.
class PluginTest : public CaseTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  Rig& rig() { return *rig_; }

  /// The process before the plugin was opened for this case.
  const ProcessState& before() const { return *before_; }

  /// Closes the rig and opens another with one option of the plugin changed (none where the
  /// name is empty).
  void reopen(const std::string& option, const std::string& value);

 private:
  /// Where the author declares what stays for the life of the process: opens, works and closes
  /// once in a process before anything is compared, and fails for what stays undeclared.
  void open_for_the_first_time();

  std::unique_ptr<ProcessState> before_;
  std::unique_ptr<Rig> rig_;
};

}  // namespace kvspan::conformance

#endif
