// SPDX-License-Identifier: Apache-2.0
// Must not compile: two owners of one count, or of one parent. Built as ignored_result.cpp says.
#include "kvspan/core/memory/arena.hpp"

#include <utility>

void misuse(const kvspan::Arena& arena, kvspan::Lease& lease);

void misuse(const kvspan::Arena& arena, kvspan::Lease& lease) {
  const kvspan::Lease moved = std::move(lease);
  static_cast<void>(arena.generation());
#if KVSPAN_MISUSE
  const kvspan::Lease copy = moved;          // expect: deleted
  lease = moved;                             // expect: deleted
  const kvspan::Arena second_owner = arena;  // expect: deleted
#endif
}
