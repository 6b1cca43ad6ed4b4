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

template <auto Member, class Slot>
void hang(Slot& slot) {
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

void fill_doors(const BaseTables& base, OwnTables& own) {
  own.device = *base.device;
  hang<&Calls::count>(own.device.count);
  hang<&Calls::describe>(own.device.describe);
  hang<&Calls::open>(own.device.open);
  hang<&Calls::close>(own.device.close);
  hang<&Calls::free_bytes>(own.device.free_bytes);
  hang<&Calls::prepare>(own.device.prepare);
  own.memory = *base.memory;
  hang<&Calls::alloc>(own.memory.alloc);
  hang<&Calls::import_host>(own.memory.import_host);
  hang<&Calls::map>(own.memory.map);
  hang<&Calls::release>(own.memory.release);
  own.queue = *base.queue;
  hang<&Calls::create_queue>(own.queue.create);
  hang<&Calls::destroy_queue>(own.queue.destroy);
  own.fence = *base.fence;
  hang<&Calls::create_fence>(own.fence.create);
  hang<&Calls::query>(own.fence.query);
  hang<&Calls::wait>(own.fence.wait);
  hang<&Calls::signal>(own.fence.signal);
  hang<&Calls::fail>(own.fence.fail);
  hang<&Calls::destroy_fence>(own.fence.destroy);
  own.copy = *base.copy;
  hang<&Calls::copy>(own.copy.copy);
  hang<&Calls::fill>(own.copy.fill);
  hang<&Calls::limits>(own.copy.limits);
  hang<&Calls::feedback>(own.copy.feedback);
  own.codec = *base.codec;
  hang<&Calls::codec_query>(own.codec.query);
  hang<&Calls::encode>(own.codec.encode);
  hang<&Calls::decode>(own.codec.decode);
  if (base.attention != nullptr) {
    own.attention = *base.attention;
    hang<&Calls::ask>(own.attention.query);
    hang<&Calls::rules>(own.attention.rules);
    hang<&Calls::run>(own.attention.run);
    hang<&Calls::advance>(own.attention.advance);
    hang<&Calls::fold>(own.attention.fold);
    hang<&Calls::finish>(own.attention.finish);
  }
  if (base.debug != nullptr) {
    own.debug = *base.debug;
    hang<&Calls::plant>(own.debug.fault);
    hang<&Calls::counters>(own.debug.counters);
  }
}

}  // namespace kvspan::faults
