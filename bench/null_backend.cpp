// SPDX-License-Identifier: Apache-2.0
// Slots that succeed. A fence is reached as soon as work that signals it was submitted.
#include "kvspan/bench/null_backend.hpp"

#include <cstdlib>

namespace kvspan::bench {

namespace {

struct Memory {
  void* address;
  bool owned;
};

struct Fence {
  std::uint64_t value;
};

constexpr std::uint32_t kSplits = 32;  // of a decode row, as on a large card

Memory* memory_of(kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(handle);
}

kvspan_result_t settle(const kvspan_submit_t* submit) {
  for (std::uint32_t i = 0; i < submit->signal_count; ++i) {
    reinterpret_cast<Fence*>(submit->signals[i].fence)->value = submit->signals[i].value;
  }
  return KVSPAN_OK;
}

kvspan_result_t prepare(kvspan_device_t*,
                        const kvspan_prepare_t*,
                        kvspan_prepared_t* out,
                        kvspan_error_t*) noexcept {
  out->device_bytes = 0;
  return KVSPAN_OK;
}

kvspan_result_t alloc(kvspan_device_t*,
                      std::uint32_t,
                      std::uint64_t bytes,
                      kvspan_memory_t** out,
                      kvspan_error_t*) noexcept {
  *out = reinterpret_cast<kvspan_memory_t*>(new Memory{std::malloc(bytes), true});
  return KVSPAN_OK;
}

kvspan_result_t import_host(kvspan_device_t*,
                            void* address,
                            std::uint64_t,
                            kvspan_memory_t** out,
                            kvspan_error_t*) noexcept {
  *out = reinterpret_cast<kvspan_memory_t*>(new Memory{address, false});
  return KVSPAN_OK;
}

kvspan_result_t map(kvspan_memory_t* memory, void** out, kvspan_error_t*) noexcept {
  *out = memory_of(memory)->address;
  return KVSPAN_OK;
}

kvspan_result_t release(kvspan_memory_t* memory, kvspan_error_t*) noexcept {
  if (memory_of(memory)->owned) {
    std::free(memory_of(memory)->address);
  }
  delete memory_of(memory);
  return KVSPAN_OK;
}

kvspan_result_t queue_create(kvspan_device_t*,
                             const kvspan_queue_options_t*,
                             kvspan_queue_t** out,
                             kvspan_error_t*) noexcept {
  *out = reinterpret_cast<kvspan_queue_t*>(new char);
  return KVSPAN_OK;
}

kvspan_result_t queue_destroy(kvspan_queue_t* queue, kvspan_error_t*) noexcept {
  delete reinterpret_cast<char*>(queue);
  return KVSPAN_OK;
}

kvspan_result_t fence_create(kvspan_device_t*,
                             std::uint64_t initial,
                             kvspan_fence_t** out,
                             kvspan_error_t*) noexcept {
  *out = reinterpret_cast<kvspan_fence_t*>(new Fence{initial});
  return KVSPAN_OK;
}

kvspan_result_t fence_query(kvspan_fence_t* fence, std::uint64_t* out, kvspan_error_t*) noexcept {
  *out = reinterpret_cast<Fence*>(fence)->value;
  return KVSPAN_OK;
}

kvspan_result_t fence_wait(kvspan_device_t*,
                           const kvspan_point_t*,
                           std::uint32_t,
                           std::uint32_t,
                           std::uint64_t,
                           kvspan_error_t*) noexcept {
  return KVSPAN_OK;
}

kvspan_result_t fence_destroy(kvspan_fence_t* fence, kvspan_error_t*) noexcept {
  delete reinterpret_cast<Fence*>(fence);
  return KVSPAN_OK;
}

kvspan_result_t copy(kvspan_queue_t*,
                     const kvspan_segment_t*,
                     std::uint32_t,
                     const kvspan_submit_t* submit,
                     kvspan_error_t*) noexcept {
  return settle(submit);
}

kvspan_result_t limits(kvspan_device_t*, kvspan_copy_limits_t* out, kvspan_error_t*) noexcept {
  *out = {sizeof *out, 4096, 1, 1, 1, 1, 1, 1ULL << 46};
  return KVSPAN_OK;
}

kvspan_result_t encode(kvspan_queue_t*,
                       const kvspan_codec_item_t*,
                       std::uint32_t,
                       const kvspan_submit_t* submit,
                       kvspan_error_t*) noexcept {
  return settle(submit);
}

kvspan_result_t query(kvspan_device_t*,
                      const kvspan_attention_shape_t* shape,
                      kvspan_attention_caps_t* out,
                      kvspan_error_t*) noexcept {
  const std::uint64_t pairs = std::uint64_t{shape->rows_max} * shape->q_heads;
  *out = {};
  out->struct_size = sizeof *out;
  out->level = KVSPAN_LEVEL_NATIVE;
  out->span_granule = 64;
  out->split_count = shape->row_class == KVSPAN_ROWS_DECODE ? kSplits : 8;
  out->spans_max = 4096;
  out->span_pages_max = 65536;
  out->workspace_alignment = out->state_alignment = 64;
  out->state_u_bytes = pairs * shape->head_size_v * 4;
  out->state_ml_bytes = pairs * 8;
  return KVSPAN_OK;
}

kvspan_result_t run(kvspan_queue_t*,
                    const kvspan_attention_args_t*,
                    const kvspan_submit_t* submit,
                    kvspan_error_t*) noexcept {
  return settle(submit);
}

kvspan_result_t advance(kvspan_queue_t*,
                        const kvspan_attention_args_t*,
                        const kvspan_advance_item_t*,
                        std::uint32_t,
                        const kvspan_submit_t* submit,
                        kvspan_error_t*) noexcept {
  return settle(submit);
}

kvspan_result_t fold(kvspan_queue_t*,
                     const kvspan_attention_args_t*,
                     const kvspan_fold_item_t*,
                     std::uint32_t,
                     const kvspan_submit_t* submit,
                     kvspan_error_t*) noexcept {
  return settle(submit);
}

kvspan_result_t finish(kvspan_queue_t*,
                       const kvspan_attention_args_t*,
                       const kvspan_state_t*,
                       const kvspan_submit_t* submit,
                       kvspan_error_t*) noexcept {
  return settle(submit);
}

// Slots that core does not call stay empty.
const kvspan_device_table_t kDevice = [] {
  kvspan_device_table_t table{};
  table.struct_size = sizeof table;
  table.prepare = prepare;
  return table;
}();
const kvspan_memory_table_t kMemory = {
    sizeof(kvspan_memory_table_t), 0, alloc, import_host, map, release};
const kvspan_queue_table_t kQueue = {sizeof(kvspan_queue_table_t), 0, queue_create, queue_destroy};
const kvspan_fence_table_t kFence = [] {
  kvspan_fence_table_t table{};
  table.struct_size = sizeof table;
  table.create = fence_create;
  table.query = fence_query;
  table.wait = fence_wait;
  table.destroy = fence_destroy;
  return table;
}();
const kvspan_copy_table_t kCopy = [] {
  kvspan_copy_table_t table{};
  table.struct_size = sizeof table;
  table.copy = copy;
  table.limits = limits;
  return table;
}();
const kvspan_codec_table_t kCodec = [] {
  kvspan_codec_table_t table{};
  table.struct_size = sizeof table;
  table.encode = encode;
  return table;
}();
const kvspan_attention_table_t kAttention = [] {
  kvspan_attention_table_t table{};
  table.struct_size = sizeof table;
  table.query = query;
  table.run = run;
  table.advance = advance;
  table.fold = fold;
  table.finish = finish;
  return table;
}();

}  // namespace

Backend null_backend() {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  info.lanes[1] = 1;
  info.lanes[2] = 2;
  info.queues_max = 32;
  info.depth_max = 128;
  info.allocation_bytes_max = info.binding_bytes_max = 1ULL << 46;
  info.memory_alignment = 64;
  info.import_alignment = 4096;
  info.import_bytes_max = 1ULL << 46;
  return Backend(
      {&kDevice, &kMemory, &kQueue, &kFence, &kCopy, &kCodec, &kAttention, nullptr}, nullptr, info);
}

}  // namespace kvspan::bench
