// SPDX-License-Identifier: Apache-2.0
// Faults of ownership: busy objects that go all the same, blocks of the host that do not balance.
// An object that was "destroyed" while busy is really destroyed when its device closes: what is
// under test is the answer, and a fault must not depend on luck.
#include "fault_list.hpp"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvspan::faults {
namespace {

/// Says OK where `slot` says BUSY, and ends the object when its device closes.
template <class Slot>
void never_busy(Layer& layer, Slot& slot) {
  struct Left {
    std::mutex mutex;
    std::vector<std::pair<kvspan_device_t*, std::function<void()>>> objects;
  };

  auto left = std::make_shared<Left>();
  slot = [&layer, left, next = slot](auto* handle, kvspan_error_t* error) {
    const kvspan_result_t result = next(handle, error);
    if (result != KVSPAN_E_BUSY) {
      return result;
    }
    layer.ran();
    const std::lock_guard lock(left->mutex);
    left->objects.emplace_back(owner_of(handle)->device, [next, handle] {
      while (next(handle, nullptr) == KVSPAN_E_BUSY) {
      }
    });
    return kvspan_result_t{KVSPAN_OK};
  };
  layer.calls.close = [left, next = layer.calls.close](kvspan_device_t* device,
                                                       kvspan_error_t* error) {
    const std::lock_guard lock(left->mutex);
    for (auto& [owner, end] : left->objects) {
      if (owner == device && end) {
        std::exchange(end, nullptr)();
      }
    }
    return next(device, error);
  };
}

void destroys_busy_fences(Layer& layer) {
  never_busy(layer, layer.calls.destroy_fence);
}

void destroys_busy_queues(Layer& layer) {
  never_busy(layer, layer.calls.destroy_queue);
}

void releases_busy_memory(Layer& layer) {
  never_busy(layer, layer.calls.release);
}

/// A device with objects closes, and they are gone for the host.
void closes_busy_devices(Layer& layer) {
  auto left = std::make_shared<std::vector<kvspan_device_t*>>();
  layer.calls.close = [&layer, left, next = layer.calls.close](kvspan_device_t* device,
                                                               kvspan_error_t* error) {
    const kvspan_result_t result = next(device, error);
    if (result != KVSPAN_E_BUSY) {
      std::erase(*left, device);
      return result;
    }
    layer.ran();
    left->push_back(device);
    return kvspan_result_t{KVSPAN_OK};
  };
  layer.calls.close_plugin =
      [left, next = layer.calls.close_plugin, &layer](kvspan_error_t* error) {
        for (kvspan_device_t* device : *left) {
          static_cast<void>(layer.base.device->close(device, nullptr));
        }
        left->clear();
        return next(error);
      };
}

/// BUSY does not say how many objects are alive.
void busy_device_does_not_count(Layer& layer) {
  layer.calls.close = [&layer, next = layer.calls.close](kvspan_device_t* device,
                                                         kvspan_error_t* error) {
    const kvspan_result_t result = next(device, error);
    if (result == KVSPAN_E_BUSY && error != nullptr) {
      error->provided = 0;
      layer.ran();
    }
    return result;
  };
}

/// On a lost device destroy fails, so that nothing can be cleaned up.
void lost_devices_keep_their_objects(Layer& layer) {
  auto lost = std::make_shared<bool>(false);
  layer.calls.wait = [lost, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const kvspan_result_t result = next(device, points, count, mode, ns, error);
    *lost = *lost || result == KVSPAN_E_DEVICE_LOST;
    return result;
  };
  layer.calls.release = [&layer, lost, next = layer.calls.release](kvspan_memory_t* memory,
                                                                   kvspan_error_t* error) {
    const kvspan_result_t result = next(memory, error);
    if (!*lost) {
      return result;
    }
    layer.ran();
    return kvspan_result_t{KVSPAN_E_DEVICE_LOST};
  };
}

/// A block of host memory for each open, never given back.
void leaks_a_block_per_open(Layer& layer) {
  if (layer.host->alloc(layer.host->self, 64, 16) != nullptr) {
    layer.ran();
  }
}

/// A block given back with the bytes that were used, not those that were asked for.
void frees_with_another_size(Layer& layer) {
  void* const block = layer.host->alloc(layer.host->self, 64, 16);
  layer.calls.close_plugin =
      [&layer, block, next = layer.calls.close_plugin](kvspan_error_t* error) {
        const kvspan_result_t result = next(error);
        if (result == KVSPAN_OK) {
          layer.host->free(layer.host->self, block, 48, 16);
          layer.ran();
        }
        return result;
      };
}

/// Eight mebibytes of its own for each open, which no counter sees.
void leaks_private_memory_per_open(Layer& layer) {
  auto* const block = new std::vector<char>(std::size_t{8} << 20, 'x');
  if (block->back() == 'x') {
    layer.ran();
  }
}

/// Closes with devices open.
void closes_with_open_devices(Layer& layer) {
  layer.calls.close_plugin = [&layer, next = layer.calls.close_plugin](kvspan_error_t* error) {
    const kvspan_result_t result = next(error);
    layer.outlives_close = result == KVSPAN_E_BUSY;
    if (result == KVSPAN_E_BUSY) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return result;
  };
}

constexpr Fault kFaults[] = {
    {"destroys_busy_fences", destroys_busy_fences},
    {"destroys_busy_queues", destroys_busy_queues},
    {"releases_busy_memory", releases_busy_memory},
    {"closes_busy_devices", closes_busy_devices},
    {"busy_device_does_not_count", busy_device_does_not_count},
    {"lost_devices_keep_their_objects", lost_devices_keep_their_objects},
    {"leaks_a_block_per_open", leaks_a_block_per_open},
    {"frees_with_another_size", frees_with_another_size},
    {"leaks_private_memory_per_open", leaks_private_memory_per_open},
    {"closes_with_open_devices", closes_with_open_devices},
};

}  // namespace

std::span<const Fault> ownership_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
