// SPDX-License-Identifier: Apache-2.0
// A note that promises a minor which the code does not have.
#include "kvspan/entry.h"

#undef KVSPAN_ABI_MINOR
#define KVSPAN_ABI_MINOR 7u

KVSPAN_PLUGIN_NOTE("stub", "kvspan", "0.1.0", 2u, "");
