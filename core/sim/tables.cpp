// SPDX-License-Identifier: Apache-2.0
// The ABI's face of the simulated device. Slots that core does not call stay empty.
#include "device.hpp"
#include "tag.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace kvspan::sim {

namespace {

Device& device_of(kvspan_device_t* handle) {
  return *reinterpret_cast<Device*>(handle);
}

template <class T>
void drop(std::vector<std::unique_ptr<T>>& all, const T* one) {
  all.erase(
      std::find_if(all.begin(), all.end(), [one](const auto& own) { return own.get() == one; }));
}

kvspan_result_t short_of(Device& device, kvspan_error_t* error) {
  (void)device;
  return refuse(error, KVSPAN_E_HOST_MEMORY, "a planted shortage");
}

kvspan_result_t prepare(kvspan_device_t* handle,
                        const kvspan_prepare_t* request,
                        kvspan_prepared_t* out,
                        kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  if (device.refuses_object()) {
    return short_of(device, error);
  }
  for (const auto& queue : device.queues) {
    if (!queue->works.empty() && !queue->engine) {
      device.kill("lifetime", "the device was prepared while work was in flight");
    }
  }
  device.prepared = *request;
  device.prepared.shapes = nullptr;
  out->device_bytes = device.traits().prepared_bytes;
  return KVSPAN_OK;
}

kvspan_result_t add_memory(Device& device,
                           std::byte* address,
                           std::uint32_t kind,
                           std::uint64_t bytes,
                           kvspan_memory_t** out) {
  auto memory = std::make_unique<Memory>();
  memory->device = &device;
  memory->bytes = bytes;
  memory->kind = kind;
  if (address == nullptr) {
    memory->owned = std::make_unique<std::byte[]>(bytes + 1);
    memory->data = memory->owned.get();
    std::memset(memory->data, kPoison, bytes);
  } else {
    memory->data = address;
  }
  *out = reinterpret_cast<kvspan_memory_t*>(memory.get());
  device.memories.push_back(std::move(memory));
  if (kind == KVSPAN_MEMORY_DEVICE && !device.engine_now()) {
    device.count_device_bytes(static_cast<std::int64_t>(bytes));
  }
  return KVSPAN_OK;
}

kvspan_result_t alloc(kvspan_device_t* handle,
                      std::uint32_t kind,
                      std::uint64_t bytes,
                      kvspan_memory_t** out,
                      kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  return device.refuses_object() ? short_of(device, error)
                                 : add_memory(device, nullptr, kind, bytes, out);
}

kvspan_result_t import_host(kvspan_device_t* handle,
                            void* address,
                            std::uint64_t bytes,
                            kvspan_memory_t** out,
                            kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  return device.refuses_object()
             ? short_of(device, error)
             : add_memory(
                   device, static_cast<std::byte*>(address), KVSPAN_MEMORY_IMPORTED, bytes, out);
}

kvspan_result_t map(kvspan_memory_t* handle, void** out, kvspan_error_t*) noexcept {
  *out = memory_of(handle)->data;
  return KVSPAN_OK;
}

kvspan_result_t release(kvspan_memory_t* handle, kvspan_error_t* error) noexcept {
  Memory* const memory = memory_of(handle);
  Device& device = *memory->device;
  device.host_call();
  if (memory->named != 0) {
    device.kill("lifetime", "memory was given back while pending work names it");
    return refuse(error, KVSPAN_E_BUSY, "pending work names it");
  }
  if (device.filter() != nullptr && !device.filter()->on_release()) {
    return KVSPAN_OK;
  }
  if (memory->kind == KVSPAN_MEMORY_DEVICE && !device.engine_now()) {
    device.count_device_bytes(-static_cast<std::int64_t>(memory->bytes));
  }
  drop(device.memories, memory);
  return KVSPAN_OK;
}

kvspan_result_t queue_create(kvspan_device_t* handle,
                             const kvspan_queue_options_t* options,
                             kvspan_queue_t** out,
                             kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  if (device.refuses_object()) {
    return short_of(device, error);
  }
  const std::uint32_t place = device.free_place();
  if (place == kQueuesMax) {
    return refuse(error, KVSPAN_E_UNSUPPORTED, "too many queues");
  }
  auto queue = std::make_unique<Queue>();
  queue->device = &device;
  queue->place = place;
  queue->role = options->role;
  queue->depth = options->depth == 0 ? device.traits().depth : options->depth;
  queue->engine = device.engine_now();
  *out = reinterpret_cast<kvspan_queue_t*>(queue.get());
  device.queues.push_back(std::move(queue));
  return KVSPAN_OK;
}

kvspan_result_t queue_destroy(kvspan_queue_t* handle, kvspan_error_t* error) noexcept {
  Queue* const queue = queue_of(handle);
  Device& device = *queue->device;
  device.host_call();
  if (!queue->works.empty()) {
    device.kill("lifetime", "a queue was given back with work in flight");
    return refuse(error, KVSPAN_E_BUSY, "work is in flight");
  }
  if (!device.host().covers(queue->last)) {
    device.kill("lifetime", "a queue was given back before the host knew its work to be over");
  }
  if (device.filter() != nullptr && !device.filter()->on_release()) {
    return KVSPAN_OK;
  }
  drop(device.queues, queue);
  return KVSPAN_OK;
}

kvspan_result_t fence_create(kvspan_device_t* handle,
                             std::uint64_t initial,
                             kvspan_fence_t** out,
                             kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  if (device.refuses_object()) {
    return short_of(device, error);
  }
  auto fence = std::make_unique<Fence>();
  fence->device = &device;
  fence->value = fence->promised = initial;
  *out = reinterpret_cast<kvspan_fence_t*>(fence.get());
  device.fences.push_back(std::move(fence));
  return KVSPAN_OK;
}

kvspan_result_t fence_query(kvspan_fence_t* handle,
                            std::uint64_t* out,
                            kvspan_error_t* error) noexcept {
  Fence& fence = *fence_of(handle);
  fence.device->host_call();
  *out = fence.value;
  if (fence.value != 0) {
    fence.device->seen(fence, fence.value);
  }
  return fence.failed == KVSPAN_OK
             ? KVSPAN_OK
             : refuse(error,
                      fence.failed,
                      "submit " + std::to_string(fence.failed_submit) + " failed");
}

kvspan_result_t fence_wait(kvspan_device_t* handle,
                           const kvspan_point_t* points,
                           std::uint32_t count,
                           std::uint32_t mode,
                           std::uint64_t timeout_ns,
                           kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  device.host_call();
  if (mode != KVSPAN_WAIT_ALL) {
    return refuse(error, KVSPAN_E_UNSUPPORTED, "core waits for all points");
  }
  for (std::uint32_t index = 0; index < count; ++index) {
    const bool alive =
        std::any_of(device.fences.begin(), device.fences.end(), [&](const auto& fence) {
          return fence.get() == fence_of(points[index].fence);
        });
    if (!alive) {
      device.kill("lifetime", "a fence is waited for that was given back");
      return refuse(error, KVSPAN_E_INVALID_ARG, "no such fence");
    }
  }
  if (count == 1 && device.filter() != nullptr && !device.filter()->on_wait(points[0])) {
    return KVSPAN_OK;
  }
  return device.wait({points, count}, timeout_ns, error);
}

kvspan_result_t fence_destroy(kvspan_fence_t* handle, kvspan_error_t* error) noexcept {
  Fence* const fence = fence_of(handle);
  Device& device = *fence->device;
  device.host_call();
  if (fence->named != 0) {
    device.kill("lifetime", "a fence was given back while pending work names it");
    return refuse(error, KVSPAN_E_BUSY, "pending work names it");
  }
  if (device.filter() != nullptr && !device.filter()->on_release()) {
    return KVSPAN_OK;
  }
  drop(device.fences, fence);
  return KVSPAN_OK;
}

Call call_of(CallKind kind, const kvspan_submit_t* submit) {
  Call call;
  call.kind = kind;
  call.waits.assign(submit->waits, submit->waits + submit->wait_count);
  call.signals.assign(submit->signals, submit->signals + submit->signal_count);
  call.cancel_memory = submit->cancel_memory;
  call.cancel_offset = submit->cancel_offset;
  call.submit_id = submit->submit_id;
  return call;
}

kvspan_result_t copy(kvspan_queue_t* handle,
                     const kvspan_segment_t* segments,
                     std::uint32_t count,
                     const kvspan_submit_t* submit,
                     kvspan_error_t* error) noexcept {
  Queue& queue = *queue_of(handle);
  queue.device->host_call();
  Call call = call_of(CallKind::copy, submit);
  call.segments.assign(segments, segments + count);
  return queue.device->submit(queue, std::move(call), error);
}

kvspan_result_t limits(kvspan_device_t* handle,
                       kvspan_copy_limits_t* out,
                       kvspan_error_t*) noexcept {
  const std::uint64_t alignment = device_of(handle).traits().copy_alignment;
  *out = {sizeof *out, 4096, alignment, alignment, alignment, alignment, alignment, 1ULL << 40};
  return KVSPAN_OK;
}

kvspan_result_t encode(kvspan_queue_t* handle,
                       const kvspan_codec_item_t* items,
                       std::uint32_t count,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) noexcept {
  Queue& queue = *queue_of(handle);
  queue.device->host_call();
  Call call = call_of(CallKind::encode, submit);
  call.codec_items.assign(items, items + count);
  return queue.device->submit(queue, std::move(call), error);
}

kvspan_result_t query(kvspan_device_t* handle,
                      const kvspan_attention_shape_t* shape,
                      kvspan_attention_caps_t* out,
                      kvspan_error_t*) noexcept {
  const DeviceTraits& traits = device_of(handle).traits();
  const std::uint64_t pairs = std::uint64_t{shape->rows_max} * shape->q_heads;
  *out = {};
  out->struct_size = sizeof *out;
  out->level = KVSPAN_LEVEL_NATIVE;
  out->error_class = KVSPAN_ERROR_E0;
  out->span_granule = traits.granule;
  out->split_count =
      shape->row_class == KVSPAN_ROWS_DECODE ? traits.decode_splits : traits.prefill_splits;
  out->spans_max = 4096;
  out->span_pages_max = 65536;
  out->workspace_alignment = out->state_alignment = traits.state_alignment;
  out->run_workspace_bytes = out->advance_workspace_bytes = traits.workspace_bytes;
  out->state_u_bytes = pairs * shape->head_size_v * sizeof(float);
  out->state_ml_bytes = pairs * 2 * sizeof(float);
  return KVSPAN_OK;
}

EntryCopy entry_of(const kvspan_entry_t& entry) {
  EntryCopy copy;
  copy.entry = entry;
  copy.visible_end.assign(entry.visible_end, entry.visible_end + entry.row_count);
  if (entry.window_begin != nullptr) {
    copy.window_begin.assign(entry.window_begin, entry.window_begin + entry.row_count);
  }
  copy.spans.assign(entry.spans, entry.spans + entry.span_count);
  for (const kvspan_span_t& span : copy.spans) {
    std::vector<std::uint32_t>& list = copy.lists.emplace_back();
    if (span.k.page_list != nullptr) {
      list.assign(span.k.page_list, span.k.page_list + span.k.page_count);
    }
  }
  copy.bind();
  return copy;
}

Call attention_call(CallKind kind,
                    const kvspan_attention_args_t* args,
                    const kvspan_submit_t* submit) {
  Call call = call_of(kind, submit);
  call.shape = *args->shape;
  call.scale = args->scale;
  call.workspace = args->workspace;
  for (std::uint32_t index = 0; index < args->entry_count; ++index) {
    call.entries.push_back(entry_of(args->entries[index]));
  }
  return call;
}

kvspan_result_t submit_attention(kvspan_queue_t* handle, Call call, kvspan_error_t* error) {
  Queue& queue = *queue_of(handle);
  Device& device = *queue.device;
  device.host_call();
  const bool works = call.kind == CallKind::run || call.kind == CallKind::advance;
  if (works && call.workspace.bytes < device.traits().workspace_bytes) {
    device.trouble().report("workspace", "attention was given too little workspace");
    return refuse(error, KVSPAN_E_WORKSPACE, "too little workspace");
  }
  return device.submit(queue, std::move(call), error);
}

kvspan_result_t run(kvspan_queue_t* handle,
                    const kvspan_attention_args_t* args,
                    const kvspan_submit_t* submit,
                    kvspan_error_t* error) noexcept {
  return submit_attention(handle, attention_call(CallKind::run, args, submit), error);
}

kvspan_result_t advance(kvspan_queue_t* handle,
                        const kvspan_attention_args_t* args,
                        const kvspan_advance_item_t* items,
                        std::uint32_t count,
                        const kvspan_submit_t* submit,
                        kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::advance, args, submit);
  call.advance_items.assign(items, items + count);
  return submit_attention(handle, std::move(call), error);
}

kvspan_result_t fold(kvspan_queue_t* handle,
                     const kvspan_attention_args_t* args,
                     const kvspan_fold_item_t* items,
                     std::uint32_t count,
                     const kvspan_submit_t* submit,
                     kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::fold, args, submit);
  call.fold_items.assign(items, items + count);
  return submit_attention(handle, std::move(call), error);
}

kvspan_result_t finish(kvspan_queue_t* handle,
                       const kvspan_attention_args_t* args,
                       const kvspan_state_t* accumulators,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::finish, args, submit);
  call.accumulators.assign(accumulators, accumulators + args->entry_count);
  return submit_attention(handle, std::move(call), error);
}

template <class Table, class Fill>
Table made(const Fill& fill) {
  Table table{};
  table.struct_size = sizeof table;
  fill(table);
  return table;
}

const auto kDevice =
    made<kvspan_device_table_t>([](kvspan_device_table_t& table) { table.prepare = prepare; });
const auto kMemory = made<kvspan_memory_table_t>([](kvspan_memory_table_t& table) {
  table.alloc = alloc;
  table.import_host = import_host;
  table.map = map;
  table.release = release;
});
const auto kQueue = made<kvspan_queue_table_t>([](kvspan_queue_table_t& table) {
  table.create = queue_create;
  table.destroy = queue_destroy;
});
const auto kFence = made<kvspan_fence_table_t>([](kvspan_fence_table_t& table) {
  table.create = fence_create;
  table.query = fence_query;
  table.wait = fence_wait;
  table.destroy = fence_destroy;
});
const auto kCopy = made<kvspan_copy_table_t>([](kvspan_copy_table_t& table) {
  table.copy = copy;
  table.limits = limits;
});
const auto kCodec =
    made<kvspan_codec_table_t>([](kvspan_codec_table_t& table) { table.encode = encode; });
const auto kAttention = made<kvspan_attention_table_t>([](kvspan_attention_table_t& table) {
  table.query = query;
  table.run = run;
  table.advance = advance;
  table.fold = fold;
  table.finish = finish;
});

}  // namespace

Backend Device::backend() {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  info.lanes[1] = 1;
  info.lanes[2] = 2;
  info.queues_max = kQueuesMax;
  info.depth_max = traits().depth;
  info.cancel = KVSPAN_CANCEL_ITEM;
  info.allocation_bytes_max = info.binding_bytes_max = 1ULL << 40;
  info.memory_alignment = traits().memory_alignment;
  info.import_alignment = traits().imports ? 4096 : 0;
  info.import_bytes_max = 1ULL << 40;
  info.fence_delta_max = UINT64_MAX;
  return Backend({&kDevice, &kMemory, &kQueue, &kFence, &kCopy, &kCodec, &kAttention, nullptr},
                 reinterpret_cast<kvspan_device_t*>(this),
                 info);
}

}  // namespace kvspan::sim
