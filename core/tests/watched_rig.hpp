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
    inner_ = rig_.backend().tables();
    arena_ = nullptr;
    taken_ = refuses_ = spared_ = 0;
    seen_ = std::move(seen);
    copy_ = *inner_.copy;
    copy_.copy = copy;
    memory_ = *inner_.memory;
    memory_.alloc = alloc;
    memory_.import_host = import_host;
    attention_ = *inner_.attention;
    BackendTables tables = inner_;
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
  [[nodiscard]] static const BackendTables& inner() { return inner_; }

  // The session's arena: the one device memory that it allocates, and so the last one that anybody
  // did, until an engine's buffers are; who makes some says again which it is.
  [[nodiscard]] static const kvspan_memory_t* arena() { return arena_; }

  static void set_arena(const kvspan_memory_t* arena) { arena_ = arena; }

  [[nodiscard]] static bool goes_up(const kvspan_segment_t& segment) {
    return segment.target == arena_;
  }

  // Memories that were allocated or imported, whoever asked.
  [[nodiscard]] static std::uint64_t taken() { return taken_; }

  // So many of them are refused, behind the next `spared`.
  static void refuse(std::uint64_t count, std::uint64_t spared = 0) {
    refuses_ = count;
    spared_ = spared;
  }

  [[nodiscard]] static std::uint64_t refused_left() { return refuses_; }

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
    seen_({segments, count});
    return inner_.copy->copy(queue, segments, count, submit, error);
  }

  static kvspan_result_t alloc(kvspan_device_t* device,
                               std::uint32_t kind,
                               std::uint64_t bytes,
                               kvspan_memory_t** out,
                               kvspan_error_t* error) noexcept {
    if (is_refused()) {
      return KVSPAN_E_HOST_MEMORY;
    }
    const kvspan_result_t result = inner_.memory->alloc(device, kind, bytes, out, error);
    arena_ = kind == KVSPAN_MEMORY_DEVICE ? *out : arena_;
    return result;
  }

  static kvspan_result_t import_host(kvspan_device_t* device,
                                     void* address,
                                     std::uint64_t bytes,
                                     kvspan_memory_t** out,
                                     kvspan_error_t* error) noexcept {
    return is_refused() ? KVSPAN_E_HOST_MEMORY
                        : inner_.memory->import_host(device, address, bytes, out, error);
  }

  static bool is_refused() {
    const bool refused = refuses_ != 0 && spared_ == 0;
    spared_ -= spared_ != 0 ? 1 : 0;
    refuses_ -= refused ? 1 : 0;
    taken_ += refused ? 0 : 1;
    return refused;
  }

  inline static BackendTables inner_;
  inline static std::uint64_t taken_ = 0;
  inline static std::uint64_t refuses_ = 0;
  inline static std::uint64_t spared_ = 0;
  inline static const kvspan_memory_t* arena_ = nullptr;
  inline static Seen seen_;

  StubRig rig_;
  kvspan_copy_table_t copy_{};
  kvspan_memory_table_t memory_{};
  kvspan_attention_table_t attention_{};
  std::optional<Backend> backend_;
};

}  // namespace kvspan::test
