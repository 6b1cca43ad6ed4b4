// SPDX-License-Identifier: Apache-2.0
// The components of each phase, by name, become requirements of exactly their bytes.
#include "kvspan/core/memory/phase_stages.hpp"

#include "memory/budget/phases.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {
namespace {

std::uint64_t id_of(PlanResource resource) {
  return static_cast<std::uint64_t>(resource);
}

// The next component behind `from` that is called so.
const PlanComponent* find_component(const PhaseBudget& phase,
                                    const std::string& name,
                                    std::size_t from) {
  for (std::size_t at = from; at < phase.components.size(); ++at) {
    if (phase.components[at].name == name) {
      return &phase.components[at];
    }
  }
  return nullptr;
}

Error lacks(const PhaseBudget& phase, const std::string& component) {
  return error_of(
      Errc::invalid_argument,
      "phase " + phase.name + " has no component " + component + "; give the plan's own demands",
      component);
}

// A stage that needs these bytes and no others; nothing where there are none.
void add_need(MemoryStage& stage,
              std::uint64_t resource,
              std::uint64_t bytes,
              std::uint64_t alignment) {
  if (bytes != 0) {
    stage.requirements.push_back({resource, bytes, bytes, alignment, MemoryAccess::read_write});
  }
}

Result<MemoryStage> stage_of(const Plan& plan,
                             const PhaseBudget& phase,
                             std::uint64_t id,
                             std::span<const Demand> demands) {
  MemoryStage stage{id, {}, {}};
  for (std::size_t own = 0; own < kOwnComponents.size(); ++own) {
    const PlanComponent* component = find_component(phase, kOwnComponents[own], 0);
    if (component == nullptr) {
      return tl::unexpected(lacks(phase, kOwnComponents[own]));
    }
    add_need(stage, own + 1, component->size_bytes, plan.alignment);
  }
  std::size_t from = kOwnComponents.size();  // demands follow in their order, names may repeat
  for (std::size_t index = 0; index < demands.size(); ++index) {
    if (!demands[index].phase.empty() && demands[index].phase != phase.name) {
      continue;
    }
    const PlanComponent* component = find_component(phase, demands[index].component, from);
    if (component == nullptr) {
      return tl::unexpected(lacks(phase, demands[index].component));
    }
    from = static_cast<std::size_t>(component - phase.components.data()) + 1;
    if (!demands[index].phase.empty()) {
      add_need(stage, kFirstDemandResource + index, component->size_bytes, plan.alignment);
    }
  }
  return stage;
}

}  // namespace

Result<StageRequest> phase_stages(const Plan& plan,
                                  std::span<const Demand> demands,
                                  std::uint64_t domain) {
  if (plan.phases.empty()) {
    return tl::unexpected(
        Error{Errc::invalid_argument, "a plan without phases has no stages; make it by plan()"});
  }
  StageRequest request;
  request.domains = {{domain, bit(MemoryKind::device), 0}};
  for (std::uint64_t id = 1; id < kFirstDemandResource + demands.size(); ++id) {
    const bool is_kept = id == id_of(PlanResource::resident_pages);
    request.resources.push_back(
        {id, domain, MemoryKind::device, is_kept ? Contents::kept : Contents::discarded});
  }
  for (std::size_t phase = 0; phase < plan.phases.size(); ++phase) {
    auto stage = stage_of(plan, plan.phases[phase], phase + 1, demands);
    if (!stage) {
      return tl::unexpected(std::move(stage).error());
    }
    request.stages.push_back(std::move(*stage));
  }
  if (plan.regions.resident_bytes != 0) {
    request.inputs = {id_of(PlanResource::resident_pages)};
    request.outputs = request.inputs;
  }
  return request;
}

}  // namespace kvspan
