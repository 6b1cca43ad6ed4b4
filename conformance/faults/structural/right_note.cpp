// SPDX-License-Identifier: Apache-2.0
// The note that the stub has: for structural faults whose bug is elsewhere.
#include "kvspan/entry.h"

KVSPAN_PLUGIN_NOTE("stub", "kvspan", "0.1.0", 2u, "");
