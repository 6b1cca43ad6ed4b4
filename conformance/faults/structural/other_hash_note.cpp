// SPDX-License-Identifier: Apache-2.0
// A note whose header hash is of another build, while the code is of this one.
#include "kvspan/entry.h"

#undef KVSPAN_HEADER_HASH
#define KVSPAN_HEADER_HASH 0x0123456789abcdefull

KVSPAN_PLUGIN_NOTE("stub", "kvspan", "0.1.0", 2u, "");
