// SPDX-License-Identifier: Apache-2.0
// The entry of structural faults whose bug is in the file, not in what runs: straight to the base.
#include "../base.hpp"

extern "C" kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error) noexcept {
  return kvspan_base_open(info, plugin, error);
}
