// SPDX-License-Identifier: Apache-2.0
// Whether a request of stages says something at all: ids, sizes, flags, references. What it needs
// of its domains and whether its contents flow is contents.hpp's. Private to core/memory.
#pragma once

#include "kvspan/core/memory/requirement.hpp"

#include <map>
#include <string>

namespace kvspan {

// A refusal that names one thing, "stage 3", and the rest of the sentence.
[[nodiscard]] Error stage_error(Errc code, const std::string& thing, const std::string& why);

// A request's parts by id. Points into the request.
struct RequestIndex {
  std::map<std::uint64_t, const MemoryDomain*> domains;
  std::map<std::uint64_t, const MemoryResource*> resources;
};

// Errors: plan_stages()'s invalid_argument, all but those of contents.
[[nodiscard]] Result<RequestIndex> check_form(const StageRequest& request);

// Errors: plan_stages()'s unsupported.
[[nodiscard]] Result<void> check_support(const StageRequest& request, const RequestIndex& index);

}  // namespace kvspan
