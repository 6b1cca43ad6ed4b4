// SPDX-License-Identifier: Apache-2.0
// A shared object with a sound kvspan note that tells when it is loaded: its constructor writes the
// file that KVSPAN_WITNESS_FILE names. No plugin otherwise: it exports no entry.
// Read next: ../cli_plugin_test.py, which proves with it that `kvspan inspect` loads nothing.
#include "kvspan/entry.h"

#include <stdio.h>
#include <stdlib.h>

KVSPAN_PLUGIN_NOTE("witness", "kvspan tests", "0.1.0", 1u, "");

__attribute__((constructor)) static void tell(void) {
  const char* path = getenv("KVSPAN_WITNESS_FILE");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file != NULL) {
    fclose(file);
  }
}
