// SPDX-License-Identifier: Apache-2.0
// Runs in which one submit fails, accepted or refused, against the run in which none does.
#pragma once

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace kvspan::test {

// run(rig, nth) plants the failure of the nth submit, 0: of none, and returns the last outputs:
// those have the same bits whichever submit fails, on queues in any order. Of `rounds` submits
// every `stride`-th.
template <class Run>
void expect_same_whichever_submit_fails(int rounds, int stride, const Run& run) {
  StubRig calm;
  const Outputs expected = run(calm, 0);
  for (int nth = 1; nth <= seeds(rounds); nth += stride) {
    SCOPED_TRACE("submit " + std::to_string(nth));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(nth)}});
    ASSERT_TRUE(same_bits(run(rig, static_cast<std::uint64_t>(nth)), expected));
  }
}

}  // namespace kvspan::test
