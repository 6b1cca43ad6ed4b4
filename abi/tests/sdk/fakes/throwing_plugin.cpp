// SPDX-License-Identifier: Apache-2.0
// A plugin whose entry throws, which its declaration in the ABI's header forbids: it is hidden
// here.
#define kvspan_plugin_open_0 kvspan_declared_open
#include "kvspan/entry.h"
#undef kvspan_plugin_open_0

KVSPAN_PLUGIN_NOTE("throwing", "kvspan tests", "1.2.3", 1u, "");

extern "C" KVSPAN_EXPORT kvspan_result_t kvspan_plugin_open_0(const kvspan_open_info_t*,
                                                              kvspan_plugin_t*,
                                                              kvspan_error_t*);

kvspan_result_t kvspan_plugin_open_0(const kvspan_open_info_t*, kvspan_plugin_t*, kvspan_error_t*) {
  throw 1;
}
