// SPDX-License-Identifier: Apache-2.0
// The cpu backend: its identity note, its one exported function, its tables.
// Read next: device.hpp, then one file a table; attention/kernel.hpp for the arithmetic.
#include "kvspan/kvspan.h"
#include "kvspan/sdk/entry.hpp"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include "device.hpp"

#include <sched.h>

// isa_floor 2: everything outside Highway's run-time dispatch is compiled for x86-64-v2.
KVSPAN_PLUGIN_NOTE("cpu", "kvspan", "0.1.0", 2u, "");

namespace kvspan::cpu {
namespace {

constexpr uint64_t kLinkCopyNsMax = 1'000'000'000;

// Processors that this process may run on.
uint64_t usable_processors() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
    return 1;
  }
  const int count = CPU_COUNT(&usable);
  return count > 0 ? static_cast<uint64_t>(count) : 1;
}

kvspan_result_t read_options(const Host& host, Options& options, kvspan_error_t* error) {
  constexpr const char* kWhere = KVSPAN_PLUGIN_OPEN_SYMBOL;
  uint64_t threads = 0;
  const uint64_t usable = usable_processors();
  if (!host.option("threads", usable < kThreadsMax ? usable : kThreadsMax, threads) ||
      threads == 0 || threads > kThreadsMax) {
    return sdk::fail(error,
                     KVSPAN_E_INVALID_ARG,
                     kWhere,
                     "option threads must be a number from 1 to %u",
                     kThreadsMax);
  }
  options.threads = static_cast<uint32_t>(threads);
  if (!host.option("device_bytes", KVSPAN_UNKNOWN_AMOUNT, options.device_bytes)) {
    return sdk::fail(
        error, KVSPAN_E_INVALID_ARG, kWhere, "option device_bytes must be a number of bytes");
  }
  if (!host.option("link_bytes_s", 0, options.link.bytes_s)) {
    return sdk::fail(
        error, KVSPAN_E_INVALID_ARG, kWhere, "option link_bytes_s must be a number of bytes");
  }
  if (!host.option("link_copy_ns", 0, options.link.copy_ns) ||
      options.link.copy_ns > kLinkCopyNsMax) {
    return sdk::fail(error,
                     KVSPAN_E_INVALID_ARG,
                     kWhere,
                     "option link_copy_ns must be a number from 0 to %llu",
                     sdk::number(kLinkCopyNsMax));
  }
  return KVSPAN_OK;
}

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
    case KVSPAN_TABLE_DEBUG:
      return &kDebugTable;
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
}  // namespace kvspan::cpu

kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                 kvspan_plugin_t* plugin,
                                                 kvspan_error_t* error) noexcept {
  using namespace kvspan;
  return sdk::guard(error, KVSPAN_PLUGIN_OPEN_SYMBOL, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = sdk::accept_open(info, plugin, error)) {
      return bad;
    }
    const cpu::Host host(info->host);
    cpu::Options options{};
    if (const kvspan_result_t bad = cpu::read_options(host, options, error)) {
      return bad;
    }
    cpu::Plugin* const made = host.make<cpu::Plugin>(host, options);
    if (made == nullptr) {
      return cpu::report_no_host_memory(sizeof(cpu::Plugin), error, KVSPAN_PLUGIN_OPEN_SYMBOL);
    }
    plugin->self = made;
    plugin->table = cpu::plugin_table;
    plugin->close = cpu::plugin_close;
    return KVSPAN_OK;
  });
}
