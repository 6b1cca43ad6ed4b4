// SPDX-License-Identifier: Apache-2.0
// The cuda backend: its identity note, its one exported function, its tables. Opening the plugin
// asks nothing of CUDA: a machine without a driver is told so by device.count.
// Read next: device.hpp, then one file a table; attention/kernel.hpp for the arithmetic.
#include "kvspan/kvspan.h"
#include "kvspan/sdk/entry.hpp"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include "device.hpp"

KVSPAN_PLUGIN_NOTE("cuda", "kvspan", "0.1.0", 2u, "libcuda.so.1");

#if defined(KVSPAN_CUDA_STATIC_LIBSTDCXX)
// The C++ runtime inside this file keeps 71 KiB for exceptions in times of need and would leave
// them behind at every unload. A shared one belongs to the process: never there.
// NOLINTBEGIN(bugprone-*,cert-*,readability-identifier-naming)
namespace __gnu_cxx {
void __freeres();
}

// NOLINTEND(bugprone-*,cert-*,readability-identifier-naming)

namespace {

[[gnu::destructor]] void return_emergency_memory() {
  __gnu_cxx::__freeres();
}

}  // namespace
#endif

// The runtime inside this file would read variables of the environment (linked with --wrap=getenv).
// A plugin's options come from the host; those that the driver itself reads stay the operator's.
// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-*,readability-identifier-naming)
extern "C" char* __wrap_getenv(const char*) {
  return nullptr;
}

namespace kvspan::cuda {
namespace {

const void* KVSPAN_CALL plugin_table(void*, uint32_t table_id) noexcept {
  switch (table_id) {
    case KVSPAN_TABLE_DEVICE:
      return &kDeviceTable;
    case KVSPAN_TABLE_MEMORY:
      return &kMemoryTable;
    case KVSPAN_TABLE_QUEUE:
      return &kQueueTable;
    case KVSPAN_TABLE_FENCE:
      return &kFenceTable;
    case KVSPAN_TABLE_COPY:
      return &kCopyTable;
    case KVSPAN_TABLE_CODEC:
      return &kCodecTable;
    case KVSPAN_TABLE_ATTENTION:
      return &kAttentionTable;
    case KVSPAN_TABLE_NATIVE:
      return &kNativeTable;
    case KVSPAN_TABLE_DEBUG:
      return &kDebugTable;
    case KVSPAN_TABLE_GRAPH:
      return &kGraphTable;
    default:
      return nullptr;
  }
}

kvspan_result_t KVSPAN_CALL plugin_close(void* self, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "plugin.close";
  if (self == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "self is NULL: pass plugin.self");
  }
  auto* const plugin = static_cast<Plugin*>(self);
  if (const uint32_t open = plugin->devices_open.load()) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, open},
                            "%u devices are open: close them first",
                            open);
  }
  const Host host = plugin->host;  // outlives the plugin that it frees
  host.unmake(plugin);
  return KVSPAN_OK;
}

}  // namespace
}  // namespace kvspan::cuda

kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                 kvspan_plugin_t* plugin,
                                                 kvspan_error_t* error) noexcept {
  using namespace kvspan;
  return sdk::guard(error, KVSPAN_PLUGIN_OPEN_SYMBOL, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = sdk::accept_open(info, plugin, error)) {
      return bad;
    }
    const cuda::Host host(info->host);
    cuda::Plugin* const made = host.make<cuda::Plugin>(host);
    if (made == nullptr) {
      return cuda::report_no_host_memory(sizeof(cuda::Plugin), error, KVSPAN_PLUGIN_OPEN_SYMBOL);
    }
    plugin->self = made;
    plugin->table = cuda::plugin_table;
    plugin->close = cuda::plugin_close;
    return KVSPAN_OK;
  });
}
