// SPDX-License-Identifier: Apache-2.0
// Faults of device memory and of what a device says: mapping, importing, amounts, prepare,
// counters.
#include "fault_list.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

namespace kvspan::faults {
namespace {

/// A header lies in front of each allocation. Only where a page has room for the shift, so that the
/// fault breaks the rule and not the process.
void map_is_not_aligned(Layer& layer) {
  layer.calls.map = [&layer, next = layer.calls.map](
                        kvspan_memory_t* memory, void** out, kvspan_error_t* error) {
    const kvspan_result_t result = next(memory, out, error);
    const uint64_t last =
        owner_of(memory).value_or(Owner{}).bytes % 4096;  // bytes of the last page
    if (result == KVSPAN_OK && last != 0 && last <= 4092) {
      *out = static_cast<uint8_t*>(*out) + 4;
      layer.ran();
    }
    return result;
  };
}

/// Each map is a mapping of its own.
void map_moves(Layer& layer) {
  auto maps = std::make_shared<std::atomic<uint32_t>>(0);
  layer.calls.map = [&layer, maps, next = layer.calls.map](
                        kvspan_memory_t* memory, void** out, kvspan_error_t* error) {
    const kvspan_result_t result = next(memory, out, error);
    if (result == KVSPAN_OK && ++*maps % 2 == 0 && owner_of(memory).has_value() &&
        owner_of(memory)->kind == KVSPAN_MEMORY_HOST && owner_of(memory)->bytes > 4096) {
      *out = static_cast<uint8_t*>(*out) + 256;
      layer.ran();
    }
    return result;
  };
}

/// An import that is a copy: what the caller writes later is not seen.
void import_copies(Layer& layer) {
  layer.calls.import_host = [&layer, next = layer.calls.import_host](kvspan_device_t* device,
                                                                     void* address,
                                                                     uint64_t bytes,
                                                                     kvspan_memory_t** out,
                                                                     kvspan_error_t* error) {
    kvspan_memory_t* checked = nullptr;
    const kvspan_result_t result = next(device, address, bytes, &checked, error);
    if (result != KVSPAN_OK || out == nullptr) {
      return result;
    }
    static_cast<void>(layer.calls.release(checked, nullptr));
    layer.ran();
    const kvspan_result_t made = layer.calls.alloc(device, KVSPAN_MEMORY_HOST, bytes, out, error);
    void* own = nullptr;
    if (made == KVSPAN_OK && layer.base.memory->map(*out, &own, nullptr) == KVSPAN_OK) {
      std::memcpy(own, address, bytes);
    }
    return made;
  };
}

/// The page behind an import is wiped when the import is released.
void release_wipes_imported_pages(Layer& layer) {
  layer.calls.release = [&layer, next = layer.calls.release](kvspan_memory_t* memory,
                                                             kvspan_error_t* error) {
    const std::optional<Owner> owner = owner_of(memory);
    void* address = nullptr;
    const bool imported = owner.has_value() && owner->kind == KVSPAN_MEMORY_IMPORTED &&
                          layer.base.memory->map(memory, &address, nullptr) == KVSPAN_OK;
    const kvspan_result_t result = next(memory, error);
    if (imported && result == KVSPAN_OK && owner->bytes != 0) {
      std::memset(address, 0, owner->bytes);
      layer.ran();
    }
    return result;
  };
}

void free_bytes_grow(Layer& layer) {
  auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  layer.calls.free_bytes = [&layer, calls, next = layer.calls.free_bytes](
                               kvspan_device_t* device, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && *out != KVSPAN_UNKNOWN_AMOUNT) {
      *out += ++*calls << 30;
      layer.ran();
    }
    return result;
  };
}

void zero_bytes_are_refused(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, uint64_t bytes, auto** out, auto* error) {
    if (bytes != 0 || device == nullptr || kind > KVSPAN_MEMORY_HOST) {
      return next(device, kind, bytes, out, error);
    }
    layer.ran();
    return next(device, 99, 0, out, error);  // the base's own refusal
  };
}

/// Kinds that do not exist are taken for host memory.
void unknown_kinds_are_host_memory(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, uint32_t kind, uint64_t bytes, auto** out, auto* error) {
    if (kind > KVSPAN_MEMORY_IMPORTED) {
      layer.ran();
      kind = KVSPAN_MEMORY_HOST;
    }
    return next(device, kind, bytes, out, error);
  };
}

/// One failure, and every later allocation fails as well.
void shortage_is_for_good(Layer& layer) {
  auto short_of = std::make_shared<std::atomic<kvspan_result_t>>(KVSPAN_OK);
  layer.calls.alloc = [&layer, short_of, next = layer.calls.alloc](
                          auto* device, auto kind, uint64_t bytes, auto** out, auto* error) {
    if (*short_of != KVSPAN_OK) {
      layer.ran();
      return kvspan_result_t{*short_of};
    }
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result == KVSPAN_E_DEVICE_MEMORY || result == KVSPAN_E_HOST_MEMORY) {
      *short_of = result;
    }
    return result;
  };
}

/// A shortage is told in whole mebibytes.
void shortage_rounds_required_up(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, uint64_t bytes, auto** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result == KVSPAN_E_DEVICE_MEMORY && error != nullptr) {
      error->required = (error->required | 0xFFFFF) + 1;
      layer.ran();
    }
    return result;
  };
}

void counters_forget_the_peak(Layer& layer) {
  layer.calls.counters = [&layer, next = layer.calls.counters](
                             auto* device, kvspan_debug_counters_t* out, auto* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out &&
        out->device_bytes_max != out->device_bytes) {
      out->device_bytes_max = out->device_bytes;
      layer.ran();
    }
    return result;
  };
}

/// The id of a device is made up anew for each look.
void device_id_changes(Layer& layer) {
  auto looks = std::make_shared<std::atomic<uint8_t>>(0);
  layer.calls.describe = [&layer, looks, next = layer.calls.describe](
                             void* self, uint32_t index, kvspan_device_info_t* out, auto* error) {
    const kvspan_result_t result = next(self, index, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->id[15] = ++*looks;
      layer.ran();
    }
    return result;
  };
}

/// Says that nothing was reserved, and reserves during submits.
void prepare_reserves_later(Layer& layer) {
  auto submits = std::make_shared<std::atomic<uint64_t>>(0);
  layer.calls.prepare = [&layer, next = layer.calls.prepare](
                            auto* device, auto* request, kvspan_prepared_t* out, auto* error) {
    const kvspan_result_t result = next(device, request, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->device_bytes = out->host_bytes = out->locked_bytes = 0;
      layer.ran();
    }
    return result;
  };
  layer.calls.copy = [submits, next = layer.calls.copy](
                         auto* queue, auto* segments, auto count, auto* submit, auto* error) {
    ++*submits;
    return next(queue, segments, count, submit, error);
  };
  layer.calls.counters = [submits, next = layer.calls.counters](
                             auto* device, kvspan_debug_counters_t* out, auto* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->device_allocations += *submits;
      out->device_bytes += *submits * 4096;
      out->device_bytes_max = std::max(out->device_bytes_max, out->device_bytes);
    }
    return result;
  };
}

/// Limits that prepare was told of are grown silently.
void prepared_limits_do_not_hold(Layer& layer) {
  layer.calls.prepare = [&layer, next = layer.calls.prepare](
                            auto* device, const kvspan_prepare_t* request, auto* out, auto* error) {
    if (request == nullptr || request->struct_size != sizeof *request) {
      return next(device, request, out, error);
    }
    kvspan_prepare_t wider = *request;
    wider.segments_max = wider.codec_items_max = wider.attention_items_max = 4096;
    wider.spans_max = wider.page_list_max = 1u << 20;
    wider.depth = 0;
    layer.ran();
    return next(device, &wider, out, error);
  };
}

/// Sticky is not said, and no way out of a lost device.
void lost_device_says_no_way_out(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const kvspan_result_t result = next(device, points, count, mode, ns, error);
    if (result == KVSPAN_E_DEVICE_LOST && error != nullptr) {
      error->flags &= ~(KVSPAN_ERROR_REOPEN_DEVICE | KVSPAN_ERROR_RESTART_PROCESS);
      layer.ran();
    }
    return result;
  };
}

constexpr Fault kFaults[] = {
    {"map_is_not_aligned", map_is_not_aligned},
    {"map_moves", map_moves},
    {"import_copies", import_copies},
    {"release_wipes_imported_pages", release_wipes_imported_pages},
    {"free_bytes_grow", free_bytes_grow},
    {"zero_bytes_are_refused", zero_bytes_are_refused},
    {"unknown_kinds_are_host_memory", unknown_kinds_are_host_memory},
    {"shortage_is_for_good", shortage_is_for_good},
    {"shortage_rounds_required_up", shortage_rounds_required_up},
    {"counters_forget_the_peak", counters_forget_the_peak},
    {"device_id_changes", device_id_changes},
    {"prepare_reserves_later", prepare_reserves_later},
    {"prepared_limits_do_not_hold", prepared_limits_do_not_hold},
    {"lost_device_says_no_way_out", lost_device_says_no_way_out},
};

}  // namespace

std::span<const Fault> memory_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
