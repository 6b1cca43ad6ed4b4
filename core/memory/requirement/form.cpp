// SPDX-License-Identifier: Apache-2.0
// The form of a request, part by part, each in the order in which it is written down.
#include "memory/requirement/form.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <set>
#include <utility>

namespace kvspan {
namespace {

constexpr std::uint32_t kAllKinds = (1U << kMemoryKindCount) - 1;

std::string named(const char* what, std::uint64_t id) {
  return std::string(what) + " " + std::to_string(id);
}

Error malformed(const std::string& thing, const std::string& why) {
  return stage_error(Errc::invalid_argument, thing, why);
}

Result<void> index_domains(const StageRequest& request, RequestIndex& index) {
  for (const MemoryDomain& domain : request.domains) {
    const std::string thing = named("domain", domain.id);
    if (!index.domains.emplace(domain.id, &domain).second) {
      return tl::unexpected(malformed(thing, "is listed twice; give each an id of its own"));
    }
    if (domain.kinds == 0 || (domain.kinds & ~kAllKinds) != 0) {
      return tl::unexpected(malformed(thing, "has no kind of memory, or bits that name none"));
    }
    if ((domain.capabilities & ~kMemoryCapabilities) != 0) {
      return tl::unexpected(malformed(thing, "has capability bits that mean nothing"));
    }
  }
  return {};
}

Result<void> index_resources(const StageRequest& request, RequestIndex& index) {
  for (const MemoryResource& resource : request.resources) {
    const std::string thing = named("resource", resource.id);
    if (!index.resources.emplace(resource.id, &resource).second) {
      return tl::unexpected(malformed(thing, "is listed twice; give each an id of its own"));
    }
    if (!index.domains.contains(resource.domain)) {
      return tl::unexpected(
          malformed(thing, "lies in domain " + std::to_string(resource.domain) + ", not listed"));
    }
    if (static_cast<std::uint32_t>(resource.kind) >= kMemoryKindCount ||
        resource.contents > Contents::rebuilt) {
      return tl::unexpected(malformed(thing, "has a kind or contents that mean nothing"));
    }
  }
  return {};
}

Result<void> check_requirement(const std::string& stage,
                               const Requirement& requirement,
                               const RequestIndex& index) {
  const std::string thing = stage + ", " + named("resource", requirement.resource);
  if (!index.resources.contains(requirement.resource)) {
    return tl::unexpected(malformed(thing, "is not listed"));
  }
  if (requirement.minimum_bytes > requirement.preferred_bytes) {
    return tl::unexpected(malformed(
        thing,
        "needs " + std::to_string(requirement.minimum_bytes) + " bytes, more than the " +
            std::to_string(requirement.preferred_bytes) + " it prefers; raise what it prefers"));
  }
  if (!is_power_of_two(requirement.alignment)) {
    return tl::unexpected(malformed(thing,
                                    "alignment " + std::to_string(requirement.alignment) +
                                        " is not a power of two; 1 asks for none"));
  }
  if (!checked_align_up(requirement.preferred_bytes, requirement.alignment)) {
    return tl::unexpected(malformed(thing, "is larger than 64 bits can count when aligned"));
  }
  if (requirement.access > MemoryAccess::read_write) {
    return tl::unexpected(malformed(thing, "has an access that means nothing"));
  }
  if ((requirement.capabilities & ~kMemoryCapabilities) != 0) {
    return tl::unexpected(malformed(thing, "has capability bits that mean nothing"));
  }
  return {};
}

Result<void> check_after(const MemoryStage& stage, const std::set<std::uint64_t>& earlier) {
  const std::string thing = named("stage", stage.id);
  std::set<std::uint64_t> named_already;
  for (const std::uint64_t before : stage.after) {
    const std::string dependency = "dependency on stage " + std::to_string(before);
    if (before == stage.id) {
      return tl::unexpected(malformed(thing, "has a " + dependency + ", itself"));
    }
    if (!named_already.insert(before).second) {
      return tl::unexpected(malformed(thing, "has its " + dependency + " twice"));
    }
    if (!earlier.contains(before)) {
      return tl::unexpected(malformed(
          thing,
          "has a " + dependency + ", which is no earlier one; list stages in the order they run"));
    }
  }
  return {};
}

Result<void> check_stages(const StageRequest& request, const RequestIndex& index) {
  std::set<std::uint64_t> earlier;
  for (const MemoryStage& stage : request.stages) {
    const std::string thing = named("stage", stage.id);
    if (earlier.contains(stage.id)) {
      return tl::unexpected(malformed(thing, "is listed twice; give each an id of its own"));
    }
    if (auto after = check_after(stage, earlier); !after) {
      return after;
    }
    std::set<std::uint64_t> declared;
    for (const Requirement& requirement : stage.requirements) {
      if (auto right = check_requirement(thing, requirement, index); !right) {
        return right;
      }
      if (!declared.insert(requirement.resource).second) {
        return tl::unexpected(malformed(thing + ", " + named("resource", requirement.resource),
                                        "is declared twice; a stage has one need of a resource"));
      }
    }
    earlier.insert(stage.id);
  }
  return {};
}

Result<void> check_ends(const std::vector<std::uint64_t>& ids,
                        const char* list,
                        const RequestIndex& index) {
  std::set<std::uint64_t> seen;
  for (const std::uint64_t id : ids) {
    const std::string thing = std::string(list) + ", " + named("resource", id);
    const auto resource = index.resources.find(id);
    if (resource == index.resources.end()) {
      return tl::unexpected(malformed(thing, "is not listed"));
    }
    if (!seen.insert(id).second) {
      return tl::unexpected(malformed(thing, "is named twice"));
    }
    if (resource->second->contents == Contents::discarded) {
      return tl::unexpected(malformed(thing, "discards its contents; keep or rebuild them"));
    }
  }
  return {};
}

}  // namespace

const char* name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::host:
      return "host";
    case MemoryKind::pinned:
      return "pinned";
    case MemoryKind::device:
      return "device";
    case MemoryKind::managed:
      return "managed";
  }
  return "unknown";
}

Error stage_error(Errc code, const std::string& thing, const std::string& why) {
  return error_of(code, thing + " " + why, thing);
}

Result<RequestIndex> check_form(const StageRequest& request) {
  RequestIndex index;
  Result<void> right = index_domains(request, index);
  if (right) {
    right = index_resources(request, index);
  }
  if (right) {
    right = check_stages(request, index);
  }
  if (right) {
    right = check_ends(request.inputs, "inputs", index);
  }
  if (right) {
    right = check_ends(request.outputs, "outputs", index);
  }
  if (!right) {
    return tl::unexpected(std::move(right).error());
  }
  return index;
}

Result<void> check_support(const StageRequest& request, const RequestIndex& index) {
  for (const MemoryStage& stage : request.stages) {
    for (const Requirement& requirement : stage.requirements) {
      const MemoryResource& resource = *index.resources.at(requirement.resource);
      const MemoryDomain& domain = *index.domains.at(resource.domain);
      const std::string thing = named("stage", stage.id) + ", " + named("resource", resource.id);
      if ((domain.kinds & bit(resource.kind)) == 0) {
        return tl::unexpected(stage_error(Errc::unsupported,
                                          thing,
                                          std::string("wants ") + name(resource.kind) +
                                              " memory, which " + named("domain", domain.id) +
                                              " does not have; no other kind takes its place"));
      }
      if (const std::uint32_t lacks = requirement.capabilities & ~domain.capabilities; lacks != 0) {
        return tl::unexpected(stage_error(Errc::unsupported,
                                          thing,
                                          "wants capability bits " + std::to_string(lacks) +
                                              " that " + named("domain", domain.id) +
                                              " does not have"));
      }
    }
  }
  return {};
}

}  // namespace kvspan
