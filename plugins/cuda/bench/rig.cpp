// SPDX-License-Identifier: Apache-2.0
// Read first: rig.hpp.
#include "rig.hpp"

#include <utility>

namespace kvspan::cuda_bench {

Rig::Rig(const std::string& file) {
  sdk::LoadOptions load;
  kvspan_error_t error = empty_error();
  check(sdk::Plugin::load(file, load, plugin_, &error), error, "loading the plugin");
  error = empty_error();
  check(sdk::Device::open(plugin_, 0, device_, &error), error, "opening the device");
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  check(plugin_.device()->describe(plugin_.self(), 0, &info, &error), error, "describing it");
  BackendTables tables;
  tables.device = plugin_.device();
  tables.memory = plugin_.memory();
  tables.queue = plugin_.queue();
  tables.fence = plugin_.fence();
  tables.copy = plugin_.copy();
  tables.codec = plugin_.codec();
  tables.attention = plugin_.attention();
  tables.debug = plugin_.debug();
  backend_ = std::make_unique<Backend>(tables, device_.get(), info);
}

HostMemory host_memory(const Rig& rig, std::uint64_t bytes) {
  return take(bench::host_memory(rig.backend(), bytes), "host memory");
}

DeviceMemory device_memory(const Rig& rig, std::uint64_t bytes) {
  return take(rig.backend().allocate(KVSPAN_MEMORY_DEVICE, bytes), "device memory");
}

Plug::Plug(const Rig& rig)
    : source(host_memory(rig, kPlugBytes)), target(device_memory(rig, kPlugBytes)) {}

}  // namespace kvspan::cuda_bench
