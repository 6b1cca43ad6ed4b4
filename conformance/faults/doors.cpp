// SPDX-License-Identifier: Apache-2.0
// From a C slot to its Layer: one short function a slot, and the table of living handles.
// That table is the only global here. A slot gets a handle of the base and nothing of ours, and the
// same slots serve every open of this object, so the C ABI leaves no other place for it. It is made
// with the first layer and freed with the last: nothing is left for the end of the process.
#include "layer.hpp"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace kvspan::faults {
namespace {

struct Living {
  std::unordered_map<const void*, Owner> handles;
  std::vector<Layer*> layers;
};

constinit std::mutex living_mutex;
constinit Living* living = nullptr;

template <auto Member, class Slot>
struct Door;

template <auto Member, class R, class Handle, class... A>
struct Door<Member, R (*)(Handle, A...) noexcept> {
  static R KVSPAN_CALL enter(Handle handle, A... rest) noexcept {
    return (layer_of(handle).calls.*Member)(handle, rest...);
  }
};

/// Puts a door into a slot of ours; the call behind it gets the base's slot.
template <auto Member, class Slot>
void hang(Calls& calls, Slot& slot) {
  calls.*Member = slot;
  slot = Door<Member, Slot>::enter;
}

}  // namespace

std::optional<Owner> owner_of(const void* handle) {
  const std::lock_guard lock(living_mutex);
  if (living == nullptr) {
    return std::nullopt;
  }
  const auto found = living->handles.find(handle);
  return found == living->handles.end() ? std::nullopt : std::optional<Owner>(found->second);
}

Layer& layer_of(const void* handle) {
  const std::lock_guard lock(living_mutex);
  const auto found = living->handles.find(handle);
  return found == living->handles.end() ? *living->layers.back() : *found->second.layer;
}

void remember(const void* handle, const Owner& owner) {
  const std::lock_guard lock(living_mutex);
  if (living == nullptr) {
    living = std::make_unique<Living>().release();
  }
  living->handles[handle] = owner;
  if (handle == owner.layer) {
    living->layers.push_back(owner.layer);
  }
}

void forget(const void* handle) {
  const std::lock_guard lock(living_mutex);
  living->handles.erase(handle);
}

void forget_layer(const Layer& layer) {
  const std::lock_guard lock(living_mutex);
  std::erase_if(living->handles, [&](const auto& entry) { return entry.second.layer == &layer; });
  std::erase(living->layers, &layer);
  if (living->layers.empty()) {
    delete living;
    living = nullptr;
  }
}

void fill_doors(const BaseTables& base, OwnTables& own, Calls& calls) {
  own.device = *base.device;
  hang<&Calls::count>(calls, own.device.count);
  hang<&Calls::describe>(calls, own.device.describe);
  hang<&Calls::open>(calls, own.device.open);
  hang<&Calls::close>(calls, own.device.close);
  hang<&Calls::free_bytes>(calls, own.device.free_bytes);
  hang<&Calls::prepare>(calls, own.device.prepare);
  own.memory = *base.memory;
  hang<&Calls::alloc>(calls, own.memory.alloc);
  hang<&Calls::import_host>(calls, own.memory.import_host);
  hang<&Calls::map>(calls, own.memory.map);
  hang<&Calls::release>(calls, own.memory.release);
  own.queue = *base.queue;
  hang<&Calls::create_queue>(calls, own.queue.create);
  hang<&Calls::destroy_queue>(calls, own.queue.destroy);
  own.fence = *base.fence;
  hang<&Calls::create_fence>(calls, own.fence.create);
  hang<&Calls::query>(calls, own.fence.query);
  hang<&Calls::wait>(calls, own.fence.wait);
  hang<&Calls::signal>(calls, own.fence.signal);
  hang<&Calls::fail>(calls, own.fence.fail);
  hang<&Calls::destroy_fence>(calls, own.fence.destroy);
  own.copy = *base.copy;
  hang<&Calls::copy>(calls, own.copy.copy);
  hang<&Calls::fill>(calls, own.copy.fill);
  hang<&Calls::limits>(calls, own.copy.limits);
  hang<&Calls::feedback>(calls, own.copy.feedback);
  own.codec = *base.codec;
  hang<&Calls::codec_query>(calls, own.codec.query);
  hang<&Calls::encode>(calls, own.codec.encode);
  hang<&Calls::decode>(calls, own.codec.decode);
  if (base.attention != nullptr) {
    own.attention = *base.attention;
    hang<&Calls::ask>(calls, own.attention.query);
    hang<&Calls::rules>(calls, own.attention.rules);
    hang<&Calls::run>(calls, own.attention.run);
    hang<&Calls::advance>(calls, own.attention.advance);
    hang<&Calls::fold>(calls, own.attention.fold);
    hang<&Calls::finish>(calls, own.attention.finish);
  }
  if (base.debug != nullptr) {
    own.debug = *base.debug;
    hang<&Calls::plant>(calls, own.debug.fault);
    hang<&Calls::counters>(calls, own.debug.counters);
  }
}

}  // namespace kvspan::faults
