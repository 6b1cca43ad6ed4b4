// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out in a change of phase or placement, at any allocation, for a moment or
// for all of the change: what is answered leaves the session in the old layout or the new
// one, with the bits of a run in which there was enough; or closed, and it says so.
#include "failing_new.hpp"
#include "moving_rig.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace kvspan::test {
namespace {

using Change = std::function<Result<void>(Session&)>;

struct Behind {
  Outputs outputs;      // of steps behind the change
  bool closed = false;  // instead of outputs
  bool fired = false;   // the allocation was reached
};

Behind run_with(const SessionOptions& options,
                const Change& change,
                std::uint64_t nth,
                NewFails how) {
  StubRig rig;
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  EXPECT_TRUE(engine.prefill(sequence, 7, 0, 160, 16, nullptr).has_value());
  const Placement before = placement_of(session->plan());
  fail_new(nth, how);
  const auto changed = change(*session);
  Behind out;
  out.fired = new_has_failed();
  fail_new(0);
  EXPECT_TRUE(changed || changed.error().code == Errc::host_memory) << changed.error().message;
  if (!changed) {
    EXPECT_EQ(placement_of(session->plan()), before);
    EXPECT_EQ(session->plan().phase, Phase::prefill);
  }
  const auto next = session->enter(Phase::prefill);
  if (!next) {
    EXPECT_EQ(next.error().code, Errc::internal) << next.error().message;
    EXPECT_EQ(engine.prefill(sequence, 7, 160, 165, 5, nullptr).error().code, Errc::internal);
    EXPECT_EQ(*session->tokens(sequence), 160U);
    out.closed = true;
    return out;
  }
  EXPECT_TRUE(engine.prefill(sequence, 7, 160, 165, 5, &out.outputs).has_value());
  EXPECT_TRUE(engine.decode(sequence, 7, 165, 180, &out.outputs).has_value());
  return out;
}

class SessionMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(SessionMemory, AnyAllocationOfAChangeMayFail) {
  SessionOptions options = turning_options();
  {
    StubRig rig;
    options.arena_bytes = minimum_of(rig.backend(), options) + 20000;
  }
  Change change = [](Session& session) { return session.enter(Phase::decode); };
  if (std::string(GetParam()) == "place") {
    const Placement placed{4, 1, {3, 2, 0}};
    change = [placed](Session& session) { return session.place(placed); };
  }
  const Outputs expected = run_with(options, change, 0, NewFails::once).outputs;
  for (const NewFails how : {NewFails::once, NewFails::from_then_on}) {
    std::uint64_t nth = 1;
    const std::uint64_t stride =
        static_cast<std::uint64_t>(how == NewFails::once ? 1 : 7) *  // the way is the same, longer
        (KVSPAN_TEST_SANITIZED != 0 ? 10 : 1);
    for (;; nth += stride) {
      SCOPED_TRACE("allocation " + std::to_string(nth));
      const Behind run = run_with(options, change, nth, how);
      if (!run.fired) {
        break;
      }
      EXPECT_TRUE(how == NewFails::from_then_on || !run.closed) << "it can be taken back";
      if (!run.closed) {
        ASSERT_TRUE(same_bits(run.outputs, expected));
      }
    }
    EXPECT_GT(nth, 30U) << "a change allocates";
  }
}

INSTANTIATE_TEST_SUITE_P(Changes, SessionMemory, ::testing::Values("enter", "place"));

}  // namespace
}  // namespace kvspan::test
