// SPDX-License-Identifier: Apache-2.0
// Phases are serial: each has the whole arena to itself but for what stays where it is (resident
// pages, the ring) and what others hold in every phase.
#include "memory/budget/phases.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>

namespace kvspan {

namespace {

constexpr const char* kLoad = "load";

bool attends(const std::string& phase) {
  return phase == name(Phase::prefill) || phase == name(Phase::decode);
}

bool streams(const Plan& plan) {
  return plan.mode == PlanMode::streaming;
}

// Phases of the demands, each once, in the order in which they first appear.
std::vector<std::string> demanded_phases(const std::vector<Demand>& demands) {
  std::vector<std::string> phases;
  for (const Demand& demand : demands) {
    if (!demand.phase.empty() &&
        std::find(phases.begin(), phases.end(), demand.phase) == phases.end()) {
      phases.push_back(demand.phase);
    }
  }
  return phases;
}

std::uint64_t demanded_bytes(const std::vector<Demand>& demands, const std::string& phase) {
  std::uint64_t total_bytes = 0;
  for (const Demand& demand : demands) {
    total_bytes += demand.phase == phase ? align_up(demand.size_bytes, kRegionAlignment) : 0;
  }
  return total_bytes;
}

// The plan's own components of a phase: `scratch` and `tails` as far as the phase attends.
PhaseBudget phase_budget(const Basis& basis,
                         const std::string& phase_name,
                         const Scratch& scratch,
                         std::uint64_t tails,
                         const Plan& out) {
  PhaseBudget phase{phase_name, {}};
  const std::uint64_t own[kOwnComponents.size()] = {out.regions.resident_bytes,
                                                    out.ring_slots * basis.slot_bytes,
                                                    tails * basis.slot_bytes,
                                                    scratch.states_bytes,
                                                    scratch.accumulators_bytes,
                                                    scratch.workspace_bytes};
  for (std::size_t index = 0; index < kOwnComponents.size(); ++index) {
    phase.components.push_back({kOwnComponents[index], own[index]});
  }
  for (const Demand& demand : basis.request.demands) {
    if (demand.phase == phase_name) {
      phase.components.push_back({demand.component, align_up(demand.size_bytes, kRegionAlignment)});
    } else if (demand.phase.empty()) {
      phase.components.push_back({demand.component, demand.size_bytes});
    }
  }
  phase.components.push_back({kIdle, out.total_bytes() - phase.needed_bytes()});
  return phase;
}

}  // namespace

std::uint64_t PhaseBudget::needed_bytes() const {
  std::uint64_t total_bytes = 0;
  for (const PlanComponent& component : components) {
    total_bytes += component.name == kIdle ? 0 : component.size_bytes;
  }
  return total_bytes;
}

std::uint64_t lent_bytes(const std::vector<Demand>& demands,
                         std::uint64_t scratch_bytes,
                         std::optional<Phase> alone) {
  std::uint64_t lent = 0;
  for (const std::string& phase : demanded_phases(demands)) {
    if (alone && attends(phase) && phase != name(*alone)) {
      continue;
    }
    const std::uint64_t bytes = demanded_bytes(demands, phase);
    lent = std::max(lent, attends(phase) ? bytes : bytes - std::min(bytes, scratch_bytes));
  }
  return lent;
}

void set_phases(const Basis& basis, const Candidate& rows, Plan& out) {
  const Plan prefill = entered(out, Phase::prefill);
  const Scratch none;
  out.phases.clear();
  out.phases.push_back(phase_budget(basis, kLoad, none, 0, out));
  out.phases.push_back(phase_budget(basis,
                                    name(Phase::prefill),
                                    rows.prefill,
                                    streams(prefill) ? rows.prefill_tails : 0,
                                    prefill));
  out.phases.push_back(phase_budget(
      basis, name(Phase::decode), rows.decode, streams(out) ? rows.decode_tails : 0, out));
  for (const std::string& phase : demanded_phases(basis.request.demands)) {
    if (!attends(phase) && phase != kLoad) {
      out.phases.push_back(phase_budget(basis, phase, none, 0, out));
    }
  }
}

const PhaseBudget& largest_phase(const Plan& plan) {
  return *std::max_element(
      plan.phases.begin(), plan.phases.end(), [](const PhaseBudget& a, const PhaseBudget& b) {
        return a.needed_bytes() < b.needed_bytes();
      });
}

}  // namespace kvspan
