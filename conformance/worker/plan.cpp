// SPDX-License-Identifier: Apache-2.0
// Keeps the planned skips of this process.
#include "worker/plan.hpp"

#include <utility>

namespace kvspan::conformance {
namespace {

std::map<std::string, std::string>& planned() {
  static std::map<std::string, std::string> skips;
  return skips;
}

}  // namespace

void plan_skips(std::map<std::string, std::string> skips) {
  planned() = std::move(skips);
}

std::string planned_skip(const std::string& id) {
  const auto found = planned().find(id);
  return found == planned().end() ? "" : found->second;
}

}  // namespace kvspan::conformance
