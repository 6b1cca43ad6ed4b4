// SPDX-License-Identifier: Apache-2.0
// A plugin whose copies are seen before it gets them, and whose attention may have somebody in
// front. One at a time: slots have no place for whose they are. Read first: stub_rig.hpp.
#pragma once

#include "stub_rig.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace kvspan::test {

class WatchedRig {
 public:
  // The segments of a submit.
  using Seen = std::function<void(std::span<const kvspan_segment_t> segments)>;

  WatchedRig(const std::string& plugin, Seen seen) : rig_(StubRig::Plugin{plugin}) {
    state() = {};
    state().inner = rig_.backend().tables();
    state().seen = std::move(seen);
    copy_ = *state().inner.copy;
    copy_.copy = copy;
    memory_ = *state().inner.memory;
    memory_.alloc = alloc;
    memory_.import_host = import_host;
    attention_ = *state().inner.attention;
    BackendTables tables = state().inner;
    tables.copy = &copy_;
    tables.memory = &memory_;
    tables.attention = &attention_;
    backend_.emplace(tables, rig_.backend().device(), rig_.backend().info());
  }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  // The same device with nobody in front.
  [[nodiscard]] const Backend& unwatched() const { return rig_.backend(); }

  [[nodiscard]] kvspan_result_t close(kvspan_error_t* error) { return rig_.close(error); }

  // The plugin's own tables.
  [[nodiscard]] static const BackendTables& inner() { return state().inner; }

  // The session's arena: the one device memory that it allocates, and so the last one that anybody
  // did, until an engine's buffers are; who makes some says again which it is.
  [[nodiscard]] static const kvspan_memory_t* arena() { return state().arena; }

  static void set_arena(const kvspan_memory_t* arena) { state().arena = arena; }

  [[nodiscard]] static bool goes_up(const kvspan_segment_t& segment) {
    return segment.target == state().arena;
  }

  // Memories that were allocated or imported, whoever asked.
  [[nodiscard]] static std::uint64_t taken() { return state().taken; }

  // So many of them are refused, behind the next `spared`.
  static void refuse(std::uint64_t count, std::uint64_t spared = 0) {
    state().refuses = count;
    state().spared = spared;
  }

  [[nodiscard]] static std::uint64_t refused_left() { return state().refuses; }

  // What core calls: the plugin's slots until others are put here.
  [[nodiscard]] kvspan_attention_table_t& attention() { return attention_; }

  // Of these, `copy` tells who watches.
  [[nodiscard]] kvspan_copy_table_t& copies() { return copy_; }

 private:
  static kvspan_result_t copy(kvspan_queue_t* queue,
                              const kvspan_segment_t* segments,
                              std::uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) noexcept {
    state().seen({segments, count});
    return state().inner.copy->copy(queue, segments, count, submit, error);
  }

  static kvspan_result_t alloc(kvspan_device_t* device,
                               std::uint32_t kind,
                               std::uint64_t bytes,
                               kvspan_memory_t** out,
                               kvspan_error_t* error) noexcept {
    if (is_refused()) {
      return KVSPAN_E_HOST_MEMORY;
    }
    const kvspan_result_t result = state().inner.memory->alloc(device, kind, bytes, out, error);
    state().arena = kind == KVSPAN_MEMORY_DEVICE ? *out : state().arena;
    return result;
  }

  static kvspan_result_t import_host(kvspan_device_t* device,
                                     void* address,
                                     std::uint64_t bytes,
                                     kvspan_memory_t** out,
                                     kvspan_error_t* error) noexcept {
    return is_refused() ? KVSPAN_E_HOST_MEMORY
                        : state().inner.memory->import_host(device, address, bytes, out, error);
  }

  static bool is_refused() {
    const bool refused = state().refuses != 0 && state().spared == 0;
    state().spared -= state().spared != 0 ? 1U : 0U;
    state().refuses -= refused ? 1U : 0U;
    state().taken += refused ? 0U : 1U;
    return refused;
  }

  // Of the one rig that there is: slots have no place for whose they are.
  struct State {
    BackendTables inner{};
    std::uint64_t taken = 0;
    std::uint64_t refuses = 0;
    std::uint64_t spared = 0;
    const kvspan_memory_t* arena = nullptr;
    Seen seen;
  };

  static State& state() {
    static State all;
    return all;
  }

  StubRig rig_;
  kvspan_copy_table_t copy_{};
  kvspan_memory_table_t memory_{};
  kvspan_attention_table_t attention_{};
  std::optional<Backend> backend_;
};

}  // namespace kvspan::test
