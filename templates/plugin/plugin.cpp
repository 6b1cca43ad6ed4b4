// SPDX-License-Identifier: Apache-2.0
// Where a host meets the plugin: the note in the file, the entry point, the look-up of tables.
// Replace: name, vendor and version in the note, and the libraries that you open at run time
// ("libmine.so.1"). Read options with host->option here, and open your vendor's library here.
#include "plugin.hpp"

#include "kvspan/sdk/entry.hpp"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

// 1u: loads on any x86-64. Raise it if you compile for more (-march=x86-64-v3 is 3u).
KVSPAN_PLUGIN_NOTE("mine", "you", "0.1.0", 1u, "");

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

const void* KVSPAN_CALL find_table(void*, uint32_t table_id) noexcept {
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
    default:  // no attention yet: legal, the table is optional as a whole
      return nullptr;
  }
}

kvspan_result_t KVSPAN_CALL close_plugin(void* self, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "plugin.close";
  if (self == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "self is NULL: pass the plugin's");
  }
  Plugin* const plugin = static_cast<Plugin*>(self);
  if (const uint32_t open = plugin->devices_open) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, open},
                            "%u devices are open: close them first",
                            open);
  }
  delete plugin;
  return KVSPAN_OK;
}

}  // namespace
}  // namespace mine

extern "C" kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error) noexcept {
  using namespace kvspan;
  return sdk::guard(error, KVSPAN_PLUGIN_OPEN_SYMBOL, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = sdk::accept_open(info, plugin, error)) {
      return bad;
    }
    plugin->self = new mine::Plugin{info->host};
    plugin->table = mine::find_table;
    plugin->close = mine::close_plugin;
    return KVSPAN_OK;
  });
}
