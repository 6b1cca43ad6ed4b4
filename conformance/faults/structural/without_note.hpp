// SPDX-License-Identifier: Apache-2.0
// Included before the base's plugin.cpp by the compiler (-include): its identity note is left out,
// so that a structural fault has none, or one of its own.
#pragma once

#include "kvspan/entry.h"

#undef KVSPAN_PLUGIN_NOTE
#define KVSPAN_PLUGIN_NOTE(...) static_assert(true)
