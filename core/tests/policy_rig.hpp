// SPDX-License-Identifier: Apache-2.0
// A policy in steps: what a link counts, and one step that must not be refused.
#pragma once

#include "kvspan/core/policy/policy.hpp"

#include "random_load.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvspan::test {

// What a link that is as fast as `part` of its calibration counts in a step of this placement.
inline void count_step(const StepLoad& load,
                       const Placement& placement,
                       double part,
                       double late_part,
                       LinkCounters& counters) {
  StepLoad real = load;
  real.link.bytes_s *= part;
  const StepTime time = predict(real, placement);
  const std::uint64_t bytes = streamed_bytes(load, placement);
  const std::uint64_t group_bytes = placement.group_pages * load.layers.front().page_bytes;
  const std::uint64_t groups = (bytes + group_bytes - 1) / group_bytes;
  counters.groups += groups;
  counters.late_groups += static_cast<std::uint64_t>(static_cast<double>(groups) * late_part);
  counters.bytes += bytes;
  counters.busy_ns += time.link_ns;
  counters.elapsed_ns += time.step_ns;
}

inline PolicyConfig config_of(const LoadCase& drawn) {
  PolicyConfig config;
  config.decode_pool = drawn.pool;
  config.prefill_pool = drawn.pool;
  return config;
}

// Advances a policy by one step; a refusal fails the test.
inline Decision advance(const PolicyConfig& config, PolicyState& state, const Observation& seen) {
  auto out = policy_step(config, state, seen);
  EXPECT_TRUE(out.has_value()) << out.error().message;
  if (!out) {
    return {};
  }
  state = out->state;
  return out->decision;
}

}  // namespace kvspan::test
