// SPDX-License-Identifier: Apache-2.0
// Runs a plan: groups in workers, a fresh worker after each death, the crashed case once more
// alone, a probe of the machine's health after each hang. A plugin can end its worker in any way;
// every case still gets its result. Not here: what is selected (plan.hpp), what it all means
// (verdict.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_CAMPAIGN_H
#define KVSPAN_CONFORMANCE_RUNNER_CAMPAIGN_H

#include "case_result.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "waivers.hpp"
#include "worker_process.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvspan::runner {

struct CampaignOrder {
  const WorkerCommand& command;
  const Options& options;
  const Plan& plan;
  const std::vector<Waiver>& waivers;
  std::uint64_t seed;
  std::function<bool()> interrupted;  // asked between cases, on any thread
  // Each case once, as soon as its result stands; from one thread at a time.
  std::function<void(std::size_t index, const CaseResult& result)> on_result;
};

// Results beside plan.cases; [0], the probe's, is the given one. Blocks until all workers are gone.
[[nodiscard]] std::vector<CaseResult> run_campaign(const CampaignOrder& order,
                                                   const CaseResult& probe);

}  // namespace kvspan::runner

#endif
