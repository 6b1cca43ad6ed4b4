// SPDX-License-Identifier: Apache-2.0
// One submit as core made it, with copies of everything that the caller only lent; and the place
// where a test may change it before the simulated device sees it.
#pragma once

#include "kvspan/kvspan.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace kvspan::sim {

inline constexpr std::uint32_t kEngineRole = KVSPAN_ROLE_COUNT;

enum class CallKind : std::uint8_t { copy, encode, run, advance, fold, finish, engine };

[[nodiscard]] const char* name(CallKind kind);

// An entry whose arrays it owns; the pointers of `entry` and of its spans are set again by bind().
struct EntryCopy {
  kvspan_entry_t entry{};
  std::vector<std::uint64_t> visible_end;
  std::vector<std::uint64_t> window_begin;
  std::vector<kvspan_span_t> spans;
  std::vector<std::vector<std::uint32_t>> lists;  // [span] of K and V alike

  void bind();
};

struct Call {
  CallKind kind = CallKind::copy;
  std::uint32_t role = KVSPAN_ROLE_COMPUTE;  // of the queue
  std::vector<kvspan_point_t> waits;
  std::vector<std::uint32_t>
      wait_roles;  // [wait] of the signalling queue; kEngineRole: the engine's
  std::vector<kvspan_point_t> signals;
  kvspan_memory_t* cancel_memory = nullptr;
  std::uint64_t cancel_offset = 0;
  std::uint64_t submit_id = 0;
  std::vector<kvspan_segment_t> segments;
  std::vector<kvspan_codec_item_t> codec_items;
  kvspan_attention_shape_t shape{};
  float scale = 0.0F;
  kvspan_range_t workspace{};
  std::vector<EntryCopy> entries;
  std::vector<kvspan_advance_item_t> advance_items;
  std::vector<kvspan_fold_item_t> fold_items;
  std::vector<kvspan_state_t> accumulators;
  std::vector<kvspan_range_t> engine_writes;  // of the engine's own work
  std::vector<kvspan_range_t> engine_reads;
  std::function<void()> engine_work;
};

// A layer between core and the device, for tests that plant a bug: what core would do if it had it.
class CallFilter {
 public:
  CallFilter() = default;
  CallFilter(const CallFilter&) = delete;
  CallFilter& operator=(const CallFilter&) = delete;
  CallFilter(CallFilter&&) = delete;
  CallFilter& operator=(CallFilter&&) = delete;
  virtual ~CallFilter() = default;

  // Every submit of the session, before anything is checked. Work of the engine is not shown.
  virtual void on_submit(Call& call) { (void)call; }

  // A submit that the device refused.
  virtual void on_refused(const Call& call) { (void)call; }

  // Whether a wait of the session is done; false: it returns at once, as if nobody had waited.
  virtual bool on_wait(const kvspan_point_t& point) {
    (void)point;
    return true;
  }

  // Whether an object of the session is given back; false: it is forgotten.
  virtual bool on_release() { return true; }

  // The engine cut a sequence (after core was told).
  virtual void on_truncate() {}
};

}  // namespace kvspan::sim
