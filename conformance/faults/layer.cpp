// SPDX-License-Identifier: Apache-2.0
// A Layer without a fault: every slot straight through to the base, living handles followed, tables
// of its own, the witness. Read next: open.cpp, which plants the fault.
#include "layer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <type_traits>
#include <unistd.h>

namespace kvspan::faults {

Witness::~Witness() {
  if (counter_ != &nobody_) {
    munmap(counter_, sizeof(uint64_t));
  }
}

bool Witness::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return false;
  }
  void* address = MAP_FAILED;
  if (ftruncate(file, sizeof(uint64_t)) == 0) {
    address =
        mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  }
  ::close(file);
  if (address == MAP_FAILED) {
    return false;
  }
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  counter_ = static_cast<std::atomic<uint64_t>*>(address);  // zeroes, or what was counted before
  return true;
}

Layer::Layer(const kvspan_host_services_t* services, const kvspan_plugin_t& opened)
    : host(services), plugin(opened) {
  const auto find = [&](auto& table, uint32_t id) {
    table = static_cast<std::remove_reference_t<decltype(table)>>(plugin.table(plugin.self, id));
  };
  find(base.device, KVSPAN_TABLE_DEVICE);
  find(base.memory, KVSPAN_TABLE_MEMORY);
  find(base.queue, KVSPAN_TABLE_QUEUE);
  find(base.fence, KVSPAN_TABLE_FENCE);
  find(base.copy, KVSPAN_TABLE_COPY);
  find(base.codec, KVSPAN_TABLE_CODEC);
  find(base.attention, KVSPAN_TABLE_ATTENTION);
  find(base.debug, KVSPAN_TABLE_DEBUG);
  make_tables();  // first: it gives each call the base's slot
  pass_straight_through();
  follow_handles();
  remember(this, Owner{this});
}

std::string read_option(const kvspan_host_services_t* host, const char* key) {
  std::string text(host->option(host->self, key, nullptr, 0), '\0');
  host->option(host->self, key, text.data(), text.size() + 1);
  return text;
}

// What the base's slot alone does not do: slots that get `self`, which is ours, and the close.
void Layer::pass_straight_through() {
  // NULL stays NULL, for the base to refuse.
  const auto base_self = [this](void* self) { return self == this ? plugin.self : self; };
  calls.count = [this, base_self](void* self, uint32_t* out, kvspan_error_t* error) {
    return base.device->count(base_self(self), out, error);
  };
  calls.describe =
      [this, base_self](
          void* self, uint32_t index, kvspan_device_info_t* out, kvspan_error_t* error) {
        return base.device->describe(base_self(self), index, out, error);
      };
  calls.open = [this, base_self](
                   void* self, uint32_t index, kvspan_device_t** out, kvspan_error_t* error) {
    const kvspan_result_t result = base.device->open(base_self(self), index, out, error);
    if (result == KVSPAN_OK) {
      remember(*out, Owner{this, *out});
    }
    return result;
  };
  calls.close_plugin = [this](kvspan_error_t* error) { return plugin.close(plugin.self, error); };
}

namespace {

/// A slot that ends its first argument, with the handle forgotten first: its address may be in use
/// again before the slot is back.
template <class Slot>
auto ending(Slot slot) {
  return [slot](auto* handle, kvspan_error_t* error) {
    const std::optional<Owner> owner = owner_of(handle);
    if (owner.has_value()) {
      forget(handle);
    }
    const kvspan_result_t result = slot(handle, error);
    if (result != KVSPAN_OK && owner.has_value()) {
      remember(handle, *owner);
    }
    return result;
  };
}

}  // namespace

void Layer::follow_handles() {
  const auto made = [this](kvspan_result_t result, auto** out, Owner owner) {
    owner.layer = this;
    if (result == KVSPAN_OK) {
      remember(*out, owner);
    }
    return result;
  };
  calls.alloc = [this, made](kvspan_device_t* device,
                             uint32_t kind,
                             uint64_t bytes,
                             kvspan_memory_t** out,
                             kvspan_error_t* error) {
    const kvspan_result_t result = base.memory->alloc(device, kind, bytes, out, error);
    return made(result, out, Owner{this, device, bytes, kind});
  };
  calls.import_host = [this, made](kvspan_device_t* device,
                                   void* address,
                                   uint64_t bytes,
                                   kvspan_memory_t** out,
                                   kvspan_error_t* error) {
    const kvspan_result_t result = base.memory->import_host(device, address, bytes, out, error);
    return made(result, out, Owner{this, device, bytes, KVSPAN_MEMORY_IMPORTED});
  };
  calls.create_queue = [this, made](kvspan_device_t* device,
                                    const kvspan_queue_options_t* options,
                                    kvspan_queue_t** out,
                                    kvspan_error_t* error) {
    return made(base.queue->create(device, options, out, error), out, Owner{this, device});
  };
  calls.create_fence =
      [this, made](
          kvspan_device_t* device, uint64_t initial, kvspan_fence_t** out, kvspan_error_t* error) {
        return made(base.fence->create(device, initial, out, error), out, Owner{this, device});
      };
  calls.close = ending(base.device->close);
  calls.release = ending(base.memory->release);
  calls.destroy_queue = ending(base.queue->destroy);
  calls.destroy_fence = ending(base.fence->destroy);
}

void Layer::make_tables() {
  fill_doors(base, own, calls);
  calls.table = [this](uint32_t id) -> const void* {
    switch (id) {
      case KVSPAN_TABLE_DEVICE:
        return &own.device;
      case KVSPAN_TABLE_MEMORY:
        return &own.memory;
      case KVSPAN_TABLE_QUEUE:
        return &own.queue;
      case KVSPAN_TABLE_FENCE:
        return &own.fence;
      case KVSPAN_TABLE_COPY:
        return &own.copy;
      case KVSPAN_TABLE_CODEC:
        return &own.codec;
      case KVSPAN_TABLE_ATTENTION:
        return base.attention != nullptr ? &own.attention : nullptr;
      case KVSPAN_TABLE_DEBUG:
        return base.debug != nullptr ? &own.debug : nullptr;
      default:
        return nullptr;  // tables that the layer does not wrap are not offered
    }
  };
}

}  // namespace kvspan::faults
