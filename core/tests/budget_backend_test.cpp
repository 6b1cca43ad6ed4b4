// SPDX-License-Identifier: Apache-2.0
// What depends on the device that a plan is for: bytes that the backend takes for itself, however
// they follow from the plan, and the most that it allocates at once. Exactly enough opens, one byte
// less is refused.
#include "kvspan/core/session/session.hpp"

#include "engine_rig.hpp"
#include "taking_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

struct Taking {
  const char* name;
  TakingRig::Takes takes;
};

std::vector<Taking> takings() {
  const auto lists = [](const kvspan_prepare_t& request) {
    return std::uint64_t{request.page_list_max};
  };
  return {
      {"the same for every plan", [](const auto&) { return 5000U; }},
      {"by the page lists", [=](const auto& request) { return 40 * lists(request); }},
      {"more than pages", [=](const auto& request) { return 3000 * lists(request); }},
      {"squared", [=](const auto& request) { return lists(request) * lists(request); }},
      {"by copies and spans",
       [](const auto& request) {
         return 64ULL * request.segments_max + 48ULL * request.spans_max + 7;
       }},
      {"in steps", [=](const auto& request) { return lists(request) / 64 * 65536; }},
      {"only for long lists",
       [=](const auto& request) { return lists(request) < 100 ? 0 : 30000 + lists(request); }},
      {"less for larger plans",
       [=](const auto& request) {
         return 90000 - std::min<std::uint64_t>(89000, 100 * lists(request));
       }},
  };
}

SessionOptions options_of(bool turns) {
  SessionOptions options = small_options();
  options.context_tokens = 4000;
  options.stream.link_bytes_s = 1'000'000'000;  // rings of any size
  options.stream.gap_ns = 500'000;
  options.placement.phases_take_turns = turns;
  return options;
}

// What a session that has next to nothing is told it needs.
std::uint64_t told_minimum(const Backend& backend, SessionOptions options) {
  options.arena_bytes = 1;
  const auto refused = Session::open(backend, options);
  EXPECT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::device_memory) << refused.error().message;
  EXPECT_EQ(refused.error().missing, refused.error().required - 1);
  return refused.error().required;
}

void expect_exact(const Backend& backend, SessionOptions options, std::uint64_t least) {
  options.arena_bytes = least;
  {
    auto session = Session::open(backend, options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    EXPECT_EQ(session->plan().minimum_arena_bytes, least);
    EXPECT_LE(session->counters().device_bytes_high_water, least);
    const SequenceId sequence = *session->add_sequence();
    Engine engine(backend, *session, options, 16);
    EXPECT_TRUE(
        engine.prefill(sequence, 7, 0, 40, session->plan().prefill_rows, nullptr).has_value());
  }
  --options.arena_bytes;
  const auto refused = Session::open(backend, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::device_memory);
  EXPECT_EQ(refused.error().required, least) << refused.error().message;
  EXPECT_EQ(refused.error().missing, 1U);
  EXPECT_NE(refused.error().message.find("phase"), std::string::npos);
}

TEST(BudgetBackend, TheMinimumIsExactWhateverTheBackendTakes) {
  for (const Taking& each : takings()) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(std::string(each.name) + (turns ? ", in turns" : ""));
      const TakingRig rig(each.takes);
      const SessionOptions options = options_of(turns);
      ASSERT_NO_FATAL_FAILURE(
          expect_exact(rig.backend(), options, told_minimum(rig.backend(), options)));
    }
  }
}

// Who plans without opening is told the same.
TEST(BudgetBackend, APlanThatAsksTheDeviceSaysWhatASessionNeeds) {
  for (const Taking& each : takings()) {
    SCOPED_TRACE(each.name);
    const TakingRig rig(each.takes);
    const SessionOptions options = options_of(false);
    PlanRequest request = plan_request(rig.backend(), options);
    const std::uint64_t beside = plan(request)->minimum_arena_bytes;
    request.backend_bytes = prepared_bytes_of(rig.backend(), options);
    const std::uint64_t least = plan(request)->minimum_arena_bytes;
    EXPECT_EQ(least, told_minimum(rig.backend(), options));
    EXPECT_EQ(least, beside + rig.taken()) << "the last one asked about is the least";
    request.arena_bytes = least - 1;
    EXPECT_EQ(plan(request).error().required, least);
    request.arena_bytes = least;
    EXPECT_EQ(plan(request)->minimum_arena_bytes, least);
  }
}

// Above the minimum every arena opens, nobody has more than the arena, and the device was asked
// last for what the session has.
TEST(BudgetBackend, EveryArenaHoldsPlanAndBackend) {
  for (const Taking& each : takings()) {
    const TakingRig rig(each.takes);
    SessionOptions options = options_of(false);
    const std::uint64_t least = told_minimum(rig.backend(), options);
    for (const std::uint64_t more : {1U, 500U, 5000U, 50000U, 200000U, 500000U, 1U << 24}) {
      SCOPED_TRACE(std::string(each.name) + ", " + std::to_string(more) + " bytes above");
      options.arena_bytes = least + more;
      const std::uint64_t before = rig.calls();
      auto session = Session::open(rig.backend(), options);
      ASSERT_TRUE(session.has_value()) << session.error().message;
      const Plan& plan = session->plan();
      EXPECT_LE(rig.calls() - before, 12U);
      EXPECT_LE(plan.total_bytes(), options.arena_bytes);
      EXPECT_LE(rig.taken(), plan.reserved_bytes);
      EXPECT_EQ(session->counters().device_bytes_high_water,
                plan.regions.total_bytes() + rig.taken());
      EXPECT_EQ(plan.minimum_arena_bytes, least);
    }
  }
}

// What is reserved for it is as much as it takes: not a page is lost to a larger plan's needs.
TEST(BudgetBackend, NothingIsReservedThatItDoesNotTake) {
  for (const std::size_t index : {0U, 5U}) {
    const Taking each = takings()[index];
    SCOPED_TRACE(each.name);
    const TakingRig rig(each.takes);
    SessionOptions options = options_of(false);
    options.arena_bytes = told_minimum(rig.backend(), options) + 100000;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    EXPECT_EQ(session->plan().reserved_bytes, rig.taken());
    PlanRequest request = plan_request(rig.backend(), options);
    request.arena_bytes = options.arena_bytes;
    request.demands = {{"", "backend", rig.taken()}};
    EXPECT_EQ(plan(request)->ring_slots, session->plan().ring_slots);
    EXPECT_EQ(plan(request)->resident_pages, session->plan().resident_pages);
  }
}

// A second session of the device counts what the backend takes on its account.
TEST(BudgetBackend, TheMinimumBesideAnotherSessionIsExactToo) {
  for (const Taking& each : takings()) {
    SCOPED_TRACE(each.name);
    const TakingRig rig(each.takes);
    SessionOptions first = options_of(false);
    first.geometry.layers.pop_back();
    first.context_tokens = 100;
    first.arena_bytes = 1ULL << 24;
    auto other = Session::open(rig.backend(), first);
    ASSERT_TRUE(other.has_value()) << other.error().message;
    SessionOptions options = options_of(false);
    options.prefill_rows_fixed = 16;
    options.sequences = 3;
    const std::uint64_t least = told_minimum(rig.backend(), options);
    ASSERT_NO_FATAL_FAILURE(expect_exact(rig.backend(), options, least));
    // What one with a longer ring leaves on the device is not the next one's.
    SessionOptions large = options;
    large.arena_bytes = least + 150000;
    EXPECT_TRUE(Session::open(rig.backend(), large).has_value());
    EXPECT_EQ(told_minimum(rig.backend(), options), least);
    ASSERT_NO_FATAL_FAILURE(expect_exact(rig.backend(), options, least));
    PlanRequest request = plan_request(rig.backend(), options);
    request.backend_bytes = prepared_bytes_of(rig.backend(), options);
    request.arena_bytes = large.arena_bytes;
    EXPECT_EQ(plan(request)->minimum_arena_bytes, least);
    EXPECT_EQ(told_minimum(rig.backend(), options), least) << "nor what a plan asked about";
  }
}

TEST(BudgetBackend, ItsRefusalIsTold) {
  const TakingRig rig([](const auto&) { return 0U; });
  SessionOptions options = options_of(false);
  options.arena_bytes = 1ULL << 24;
  rig.refuse();
  EXPECT_EQ(Session::open(rig.backend(), options).error().code, Errc::unsupported);
  PlanRequest request = plan_request(rig.backend(), options);
  EXPECT_TRUE(plan(request).has_value());
  request.backend_bytes = prepared_bytes_of(rig.backend(), options);
  EXPECT_EQ(plan(request).error().code, Errc::unsupported);
}

// The stub, as if it allocated at most so many bytes at once.
Backend limited(const StubRig& rig, std::uint64_t allocation_bytes_max) {
  kvspan_device_info_t info = rig.backend().info();
  info.allocation_bytes_max = info.binding_bytes_max = allocation_bytes_max;
  return {rig.backend().tables(), rig.backend().device(), info};
}

TEST(BudgetAllocation, AnArenaThatIsNotOneAllocationIsRefused) {
  const StubRig rig;
  SessionOptions options = options_of(false);
  const std::uint64_t least = plan(plan_request(rig.backend(), options))->minimum_arena_bytes;
  const std::uint64_t most = least + 512 * 200;  // a multiple of every alignment
  const Backend backend = limited(rig, most);
  options.arena_bytes = most;
  EXPECT_TRUE(Session::open(backend, options).has_value());
  options.arena_bytes = most + 4096;
  const auto refused = Session::open(backend, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::too_large);
  EXPECT_EQ(refused.error().provided, most);
  EXPECT_EQ(refused.error().required, refused.error().provided + refused.error().missing);
  EXPECT_GT(refused.error().missing, 0U);
  EXPECT_LE(refused.error().required, options.arena_bytes);
  EXPECT_NE(refused.error().message.find("at most " + std::to_string(most)), std::string::npos)
      << refused.error().message;
  // An arena that is larger than what is laid out in it is no allocation.
  options.context_tokens = 16;
  options.arena_bytes = 1ULL << 40;
  EXPECT_TRUE(Session::open(backend, options).has_value());
}

TEST(BudgetAllocation, AMinimumThatIsNotOneAllocationIsRefused) {
  const StubRig rig;
  SessionOptions options = options_of(false);
  options.arena_bytes = plan(plan_request(rig.backend(), options))->minimum_arena_bytes;
  EXPECT_TRUE(Session::open(limited(rig, options.arena_bytes), options).has_value());
  const Backend backend = limited(rig, options.arena_bytes - 1);
  for (const std::uint64_t arena_bytes : {std::uint64_t{0}, options.arena_bytes}) {
    PlanRequest request = plan_request(backend, options);
    request.arena_bytes = arena_bytes;
    const auto refused = plan(request);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::too_large);
    EXPECT_EQ(refused.error().missing, 1U);
    EXPECT_NE(refused.error().message.find("smaller pages"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvspan::test
