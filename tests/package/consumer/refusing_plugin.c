// SPDX-License-Identifier: Apache-2.0
// A plugin built by somebody else with the installed kvspan_add_plugin(): it refuses every host.
// Only its file is looked at: one exported symbol. A real one begins as a copy of the stub.

#include <kvspan/kvspan.h>

kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t *info, kvspan_plugin_t *plugin,
                                                 kvspan_error_t *error) {
  (void)info;
  (void)plugin;
  (void)error;
  return KVSPAN_E_VERSION;
}

// Not exported: the version script keeps everything but the entry inside.
__attribute__((visibility("default"))) int kvspan_consumer_secret(void);

int kvspan_consumer_secret(void) { return 1; }
