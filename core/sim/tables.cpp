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

template <class T>
void drop(std::vector<std::unique_ptr<T>>& all, const T* one) {
  all.erase(
      std::find_if(all.begin(), all.end(), [one](const auto& own) { return own.get() == one; }));
}

// A call that makes an object; OK unless the scenario refuses it.
kvspan_result_t refused_object(Device& device, kvspan_error_t* error) {
  device.host_call();
  const kvspan_result_t code = device.refuses_object();
  return code == KVSPAN_OK ? code : refuse(error, code, "a planted shortage, or a lost device");
}

kvspan_result_t prepare(kvspan_device_t* handle,
                        const kvspan_prepare_t* request,
                        kvspan_prepared_t* out,
                        kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  if (const kvspan_result_t code = refused_object(device, error); code != KVSPAN_OK) {
    return code;
  }
  for (const auto& queue : device.queues) {
    if (!queue->works.empty() && !queue->engine) {
      device.kill("lifetime", "the device was prepared while work was in flight");
    }
  }
  device.prepared = *request;
  device.prepared.shapes = nullptr;
  const std::uint64_t entries =
      std::uint64_t{request->page_list_max} + request->segments_max + request->spans_max;
  device.prepared_bytes =
      device.traits().prepared_bytes + entries * device.traits().prepared_entry_bytes;
  out->device_bytes = device.prepared_bytes;
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
  if (kind == KVSPAN_MEMORY_DEVICE && !device.engine_now()) {
    device.arena = memory.get();
    device.count_device_bytes(static_cast<std::int64_t>(bytes));
  } else if (!device.engine_now()) {
    device.count_host_bytes(static_cast<std::int64_t>(bytes));
  }
  device.memories.push_back(std::move(memory));
  return KVSPAN_OK;
}

kvspan_result_t refused_memory(Device& device,
                               std::uint32_t kind,
                               std::uint64_t bytes,
                               kvspan_error_t* error) {
  const kvspan_result_t code = refused_object(device, error);
  return code != KVSPAN_OK || kind == KVSPAN_MEMORY_DEVICE || device.has_host_bytes(bytes)
             ? code
             : refuse(error, KVSPAN_E_HOST_MEMORY, "the machine has no memory for this");
}

kvspan_result_t alloc(kvspan_device_t* handle,
                      std::uint32_t kind,
                      std::uint64_t bytes,
                      kvspan_memory_t** out,
                      kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  if (const kvspan_result_t code = refused_memory(device, kind, bytes, error); code != KVSPAN_OK) {
    return code;
  }
  return add_memory(device, nullptr, kind, bytes, out);
}

kvspan_result_t import_host(kvspan_device_t* handle,
                            void* address,
                            std::uint64_t bytes,
                            kvspan_memory_t** out,
                            kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  if (const kvspan_result_t code = refused_memory(device, KVSPAN_MEMORY_IMPORTED, bytes, error);
      code != KVSPAN_OK) {
    return code;
  }
  return add_memory(device, static_cast<std::byte*>(address), KVSPAN_MEMORY_IMPORTED, bytes, out);
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
  } else if (!device.engine_now()) {
    device.count_host_bytes(-static_cast<std::int64_t>(memory->bytes));
  }
  device.arena = device.arena == memory ? nullptr : device.arena;
  drop(device.memories, memory);
  return KVSPAN_OK;
}

kvspan_result_t queue_create(kvspan_device_t* handle,
                             const kvspan_queue_options_t* options,
                             kvspan_queue_t** out,
                             kvspan_error_t* error) noexcept {
  Device& device = device_of(handle);
  if (const kvspan_result_t code = refused_object(device, error); code != KVSPAN_OK) {
    return code;
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
  if (const kvspan_result_t code = refused_object(device, error); code != KVSPAN_OK) {
    return code;
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
  if (fence.device->lost()) {
    return refuse(error, KVSPAN_E_DEVICE_LOST, "the device is lost");
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
  if (fence->named != 0 && fence->named == fence->named_by_engine) {
    return refuse(error, KVSPAN_E_BUSY, "work of the engine names it");
  }
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

const auto kDevice = table_with<kvspan_device_table_t>(
    [](kvspan_device_table_t& table) { table.prepare = prepare; });
const auto kMemory = table_with<kvspan_memory_table_t>([](kvspan_memory_table_t& table) {
  table.alloc = alloc;
  table.import_host = import_host;
  table.map = map;
  table.release = release;
});
const auto kQueue = table_with<kvspan_queue_table_t>([](kvspan_queue_table_t& table) {
  table.create = queue_create;
  table.destroy = queue_destroy;
});
const auto kFence = table_with<kvspan_fence_table_t>([](kvspan_fence_table_t& table) {
  table.create = fence_create;
  table.query = fence_query;
  table.wait = fence_wait;
  table.destroy = fence_destroy;
});
}  // namespace

Backend Device::backend() {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  info.lanes[1] = traits().aliased == 1 ? 0 : 1;
  info.lanes[2] = traits().aliased == 1 ? 0 : traits().aliased == 2 ? 1 : 2;
  info.queues_max = kQueuesMax;
  info.depth_max = traits().depth;
  info.cancel = KVSPAN_CANCEL_ITEM;
  info.allocation_bytes_max = info.binding_bytes_max = 1ULL << 40;
  info.memory_alignment = traits().memory_alignment;
  info.import_alignment = traits().imports ? 4096 : 0;
  info.import_bytes_max = 1ULL << 40;
  info.fence_delta_max = UINT64_MAX;
  return Backend({&kDevice,
                  &kMemory,
                  &kQueue,
                  &kFence,
                  &copy_table(),
                  &codec_table(),
                  &attention_table(),
                  nullptr},
                 reinterpret_cast<kvspan_device_t*>(this),
                 info);
}

}  // namespace kvspan::sim
