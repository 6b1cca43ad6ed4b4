// SPDX-License-Identifier: Apache-2.0
// An entry whose look-up of tables goes through change_table(), which a structural fault defines.
// The base's look-up is kept in one global: there is one open of such an object at a time.
#pragma once

#include "../base.hpp"

#include <cstdint>

/// The table that is handed out in the place of `table`, the base's with that id.
const void* change_table(const void* table, uint32_t table_id) noexcept;

namespace {

decltype(kvspan_plugin_t::table) base_table = nullptr;

const void* KVSPAN_CALL find_table(void* self, uint32_t table_id) noexcept {
  return change_table(base_table(self, table_id), table_id);
}

}  // namespace

extern "C" kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error) noexcept {
  const kvspan_result_t result = kvspan_base_open(info, plugin, error);
  if (result == KVSPAN_OK) {
    base_table = plugin->table;
    plugin->table = find_table;
  }
  return result;
}
