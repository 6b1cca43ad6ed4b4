// SPDX-License-Identifier: Apache-2.0
// Submits: hands around them, work that is done before the slot returns, memory read and written.
// Read next: edits_attention.cpp.
#include "edits.hpp"

#include "kvspan/sdk/reference/half.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace kvspan::faults {
namespace {

bool can_be_read(const kvspan_submit_t* submit) {
  return submit != nullptr && submit->struct_size == sizeof *submit &&
         (submit->waits != nullptr || submit->wait_count == 0) &&
         (submit->signals != nullptr || submit->signal_count == 0);
}

/// A slot inside `around`; submit and error are its last two arguments.
template <class... Front>
auto surrounded(std::type_identity_t<std::function<kvspan_result_t(
                    kvspan_queue_t*, Front..., const kvspan_submit_t*, kvspan_error_t*)>> next,
                const Around& around) {
  return [next, around](kvspan_queue_t* queue,
                        Front... front,
                        const kvspan_submit_t* submit,
                        kvspan_error_t* error) -> kvspan_result_t {
    const auto go = [&](const kvspan_submit_t* changed, kvspan_error_t* out) {
      return next(queue, front..., changed, out);
    };
    return queue != nullptr && can_be_read(submit) ? around(queue, submit, error, go)
                                                   : go(submit, error);
  };
}

/// A fence of the layer's own for one wait.
class OwnFence {
 public:
  OwnFence(Layer& layer, kvspan_device_t* device) : layer_(layer), device_(device) {
    static_cast<void>(layer_.base.fence->create(device_, 0, &fence_, nullptr));
  }

  OwnFence(const OwnFence&) = delete;
  OwnFence& operator=(const OwnFence&) = delete;
  OwnFence(OwnFence&&) = delete;
  OwnFence& operator=(OwnFence&&) = delete;

  ~OwnFence() {
    if (fence_ != nullptr) {
      static_cast<void>(layer_.base.fence->destroy(fence_, nullptr));
    }
  }

  kvspan_point_t point() const { return {fence_, 1}; }

  bool made() const { return fence_ != nullptr; }

  kvspan_result_t wait() const {
    const kvspan_point_t end = point();
    return layer_.base.fence->wait(device_, &end, 1, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr);
  }

 private:
  Layer& layer_;
  kvspan_device_t* device_;
  kvspan_fence_t* fence_ = nullptr;
};

/// Copies between a memory and host memory of the layer, waited for.
bool move_bytes(Layer& layer, kvspan_queue_t* queue, const kvspan_segment_t& segment) {
  const std::optional<Owner> owner = owner_of(queue);
  const OwnFence done(layer, owner->device);
  if (!done.made()) {
    return false;
  }
  const kvspan_point_t end = done.point();
  kvspan_submit_t submit = {};
  submit.struct_size = sizeof submit;
  submit.signal_count = 1;
  submit.signals = &end;
  return layer.base.copy->copy(queue, &segment, 1, &submit, nullptr) == KVSPAN_OK &&
         done.wait() == KVSPAN_OK;
}

}  // namespace

void around_submits(Layer& layer, uint32_t slots, const Around& around) {
  Calls& calls = layer.calls;
  if ((slots & kCopy) != 0) {
    calls.copy = surrounded<const kvspan_segment_t*, uint32_t>(calls.copy, around);
  }
  if ((slots & kFill) != 0) {
    calls.fill = surrounded<const kvspan_range_t*, uint64_t, uint32_t>(calls.fill, around);
  }
  if ((slots & kEncode) != 0) {
    calls.encode = surrounded<const kvspan_codec_item_t*, uint32_t>(calls.encode, around);
  }
  if ((slots & kDecode) != 0) {
    calls.decode = surrounded<const kvspan_codec_item_t*, uint32_t>(calls.decode, around);
  }
  using Args = const kvspan_attention_args_t*;
  if ((slots & kRun) != 0) {
    calls.run = surrounded<Args>(calls.run, around);
  }
  if ((slots & kAdvance) != 0) {
    calls.advance = surrounded<Args, const kvspan_advance_item_t*, uint32_t>(calls.advance, around);
  }
  if ((slots & kFold) != 0) {
    calls.fold = surrounded<Args, const kvspan_fold_item_t*, uint32_t>(calls.fold, around);
  }
  if ((slots & kFinish) != 0) {
    calls.finish = surrounded<Args, const kvspan_state_t*>(calls.finish, around);
  }
}

void edit_submits(Layer& layer,
                  uint32_t slots,
                  const std::function<bool(kvspan_queue_t*, kvspan_submit_t&)>& edit) {
  around_submits(layer,
                 slots,
                 [&layer, edit](kvspan_queue_t* queue,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error,
                                const Go& go) {
                   kvspan_submit_t changed = *submit;
                   if (edit(queue, changed)) {
                     layer.ran();
                   }
                   return go(&changed, error);
                 });
}

kvspan_result_t signal_only(Layer& layer,
                            kvspan_queue_t* queue,
                            const kvspan_submit_t& submit,
                            kvspan_error_t* error) {
  kvspan_submit_t signals = submit;
  signals.wait_count = 0;
  signals.waits = nullptr;
  signals.cancel_memory = nullptr;
  signals.flags = 0;
  return layer.base.copy->copy(queue, nullptr, 0, &signals, error);
}

bool can_do_now(Layer& layer, kvspan_queue_t* queue, const kvspan_submit_t* submit) {
  constexpr uint64_t kPatience_ns = 100'000'000;
  const std::optional<Owner> owner = owner_of(queue);
  return owner.has_value() && can_be_read(submit) &&
         layer.base.fence->wait(owner->device,
                                submit->waits,
                                submit->wait_count,
                                KVSPAN_WAIT_ALL,
                                kPatience_ns,
                                nullptr) == KVSPAN_OK;
}

kvspan_result_t spoil(Layer& layer,
                      kvspan_queue_t* queue,
                      const kvspan_submit_t* submit,
                      kvspan_error_t* error,
                      const Go& go,
                      const std::function<void()>& after) {
  if (!can_do_now(layer, queue, submit)) {
    return go(submit, error);
  }
  const OwnFence done(layer, owner_of(queue)->device);
  if (!done.made()) {
    return go(submit, error);
  }
  const kvspan_point_t end = done.point();
  kvspan_submit_t changed = *submit;
  changed.signal_count = 1;
  changed.signals = &end;
  const kvspan_result_t sent = go(&changed, error);
  if (sent != KVSPAN_OK) {
    return sent;
  }
  const kvspan_result_t worked = done.wait();
  if (worked == KVSPAN_OK) {
    after();
    return signal_only(layer, queue, *submit, error);
  }
  for (uint32_t i = 0; i < submit->signal_count; ++i) {
    static_cast<void>(layer.base.fence->fail(submit->signals[i].fence, worked, nullptr));
  }
  return KVSPAN_OK;
}

void fill_silently(Layer& layer,
                   kvspan_queue_t* queue,
                   const kvspan_range_t& range,
                   uint64_t pattern,
                   uint32_t pattern_bytes) {
  kvspan_submit_t silent = {};
  silent.struct_size = sizeof silent;
  if (inside(range.memory, range.offset, range.bytes) &&
      layer.base.copy->fill(queue, &range, pattern, pattern_bytes, &silent, nullptr) == KVSPAN_OK) {
    layer.ran();
  }
}

bool inside(kvspan_memory_t* memory, uint64_t offset, uint64_t bytes) {
  const std::optional<Owner> owner = owner_of(memory);
  return owner.has_value() && offset <= owner->bytes && bytes <= owner->bytes - offset;
}

kvspan_memory_t* make_memory(Layer& layer, kvspan_device_t* device, const Bytes& bytes) {
  kvspan_memory_t* made = nullptr;
  void* address = nullptr;
  if (layer.base.memory->alloc(device, KVSPAN_MEMORY_HOST, bytes.size(), &made, nullptr) !=
      KVSPAN_OK) {
    return nullptr;
  }
  if (layer.base.memory->map(made, &address, nullptr) == KVSPAN_OK && !bytes.empty()) {
    std::memcpy(address, bytes.data(), bytes.size());
  }
  return made;
}

void release_memory(Layer& layer, kvspan_memory_t* memory) {
  if (memory != nullptr) {
    static_cast<void>(layer.base.memory->release(memory, nullptr));
  }
}

Bytes read_memory(
    Layer& layer, kvspan_queue_t* queue, kvspan_memory_t* memory, uint64_t offset, uint64_t bytes) {
  const std::optional<Owner> owner = owner_of(queue);
  if (!owner.has_value() || bytes == 0 || !inside(memory, offset, bytes)) {
    return {};
  }
  Bytes found(bytes);
  kvspan_memory_t* const staging = make_memory(layer, owner->device, found);
  const kvspan_segment_t segment = {memory, staging, offset, 0, bytes, 1, 0, 0};
  void* address = nullptr;
  if (staging != nullptr && move_bytes(layer, queue, segment) &&
      layer.base.memory->map(staging, &address, nullptr) == KVSPAN_OK) {
    std::memcpy(found.data(), address, bytes);
  } else {
    found.clear();
  }
  release_memory(layer, staging);
  return found;
}

void write_memory(Layer& layer,
                  kvspan_queue_t* queue,
                  kvspan_memory_t* memory,
                  uint64_t offset,
                  const Bytes& bytes) {
  const std::optional<Owner> owner = owner_of(queue);
  if (!owner.has_value() || bytes.empty() || !inside(memory, offset, bytes.size())) {
    return;
  }
  kvspan_memory_t* const staging = make_memory(layer, owner->device, bytes);
  const kvspan_segment_t segment = {staging, memory, 0, offset, bytes.size(), 1, 0, 0};
  if (staging != nullptr) {
    static_cast<void>(move_bytes(layer, queue, segment));
  }
  release_memory(layer, staging);
}

float load_float(const Bytes& bytes, uint64_t index) {
  float value = 0.0F;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

void store_float(Bytes& bytes, uint64_t index, float value) {
  std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

void round_to_half(Bytes& floats) {
  for (uint64_t i = 0; i < floats.size() / sizeof(float); ++i) {
    const float value = load_float(floats, i);
    store_float(floats, i, kvspan_ref_f32_from_f16(kvspan_ref_f16_from_f32(value)));
  }
}

}  // namespace kvspan::faults
