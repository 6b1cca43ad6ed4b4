// SPDX-License-Identifier: Apache-2.0
// How often this process has called operator new: counted_new.cpp replaces it. A file of its own,
// so that no compiler inlines one half of a new/delete pair into a test.
#pragma once

#include <cstdint>

namespace kvspan::cpu {

uint64_t news_so_far();

}  // namespace kvspan::cpu
