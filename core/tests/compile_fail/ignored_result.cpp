// SPDX-License-Identifier: Apache-2.0
// Must not compile: failures that nobody looks at. compile_fail.cmake builds this file without its
// misuse, which must work (a typing error must not pass as a refusal), and with it: then each line
// that says what to expect must be refused, for that reason.
#include "kvspan/core/layout/geometry.hpp"
#include "kvspan/core/layout/kv_type.hpp"
#include "kvspan/core/memory/arena.hpp"
#include "kvspan/core/memory/region.hpp"

void misuse(kvspan::Arena& arena, kvspan::RegionPlanner& planner, const kvspan::Geometry& model);

void misuse(kvspan::Arena& arena, kvspan::RegionPlanner& planner, const kvspan::Geometry& model) {
  static_cast<void>(arena.begin().has_value());
  static_cast<void>(planner.begin().has_value());
  static_cast<void>(model.layers.size());
#if KVSPAN_MISUSE
  kvspan::kv_type(KVSPAN_TYPE_F16);  // expect: nodiscard
  kvspan::page_layouts(model);       // expect: nodiscard
  planner.commit();                  // expect: nodiscard
  arena.reserve(1, 64, 64);          // expect: nodiscard
  arena.acquire(1);                  // expect: nodiscard
#endif
}
