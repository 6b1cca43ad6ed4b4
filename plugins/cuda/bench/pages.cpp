// SPDX-License-Identifier: Apache-2.0
// Read first: pages.hpp.
#include "pages.hpp"

#include "failure.hpp"

namespace kvspan::cuda_bench {

namespace {

LayerGeometry geometry_named(const std::string& name) {
  if (name == "A") {
    return {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24};
  }
  if (name == "B") {
    return {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 128, 128, 8, 32};
  }
  throw Failure("there is no geometry " + name);
}

}  // namespace

const bench::RandomPages& PagePool::of(const std::string& geometry) {
  const auto found = made_.find(geometry);
  if (found != made_.end()) {
    return found->second;
  }
  auto pages = take(bench::RandomPages::create(geometry_named(geometry), kPageTokens, 256),
                    "the page's layout");
  return made_.emplace(geometry, std::move(pages)).first->second;
}

}  // namespace kvspan::cuda_bench
