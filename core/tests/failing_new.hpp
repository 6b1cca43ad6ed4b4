// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out: failing_new.cpp replaces operator new of the whole process. A file of
// its own, so that no compiler inlines one half of a new/delete pair into a test.
#pragma once

#include <cstdint>

namespace kvspan::test {

enum class NewFails : std::uint8_t { once, from_then_on };

// The nth operator new from now on fails, alone or with all behind it; 0: none does any more.
void fail_new(std::uint64_t nth, NewFails how = NewFails::once);

// Whether it has.
bool new_has_failed();

}  // namespace kvspan::test
