// SPDX-License-Identifier: Apache-2.0
// `kvspan plan` asks the device that it plans for: the minimum that it says opens there, however
// much memory the backend takes for itself, and an automatic arena is one that can be allocated.
#include "plan_case.hpp"

#include "kvspan/core/session/session.hpp"

#include "core/tests/taking_rig.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvspan::host {
namespace {

using test::TakingRig;

std::uint64_t by_lists(const kvspan_prepare_t& request) {
  return 3000ULL * request.page_list_max + 100ULL * request.segments_max;
}

PlanOptions small_case() {
  PlanOptions options;
  options.layers = 2;
  options.q_heads = 4;
  options.kv_heads = 2;
  options.head_size_k = 32;
  options.page_tokens = 16;
  options.context_tokens = 4000;
  options.prefill_rows = 16;
  options.link = "1GB";
  options.gap_ns = 500000;
  return options;
}

SessionOptions session_of(const PlanOptions& options) {
  auto session = session_options(options);
  EXPECT_TRUE(session.has_value());
  session->stream.link_bytes_s = 1'000'000'000;
  session->stream.gap_ns = options.gap_ns;
  return *session;
}

TEST(PlanCase, TheMinimumOpensOnTheDeviceThatWasAsked) {
  const TakingRig rig(by_lists);
  PlanOptions options = small_case();
  SessionOptions session = session_of(options);
  const auto report = make_report(options, session, rig.backend());
  ASSERT_TRUE(report.has_value()) << report.error().message;
  const std::uint64_t least = report->plan.minimum_arena_bytes;
  EXPECT_EQ(least, report->plan.regions.total_bytes() + rig.taken());
  options.arena = std::to_string(least - 1);
  const auto refused = make_report(options, session, rig.backend());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().required, least);
  options.arena = std::to_string(least);
  EXPECT_TRUE(make_report(options, session, rig.backend()).has_value());
  session.arena_bytes = least;
  EXPECT_TRUE(Session::open(rig.backend(), session).has_value());
  --session.arena_bytes;
  EXPECT_EQ(Session::open(rig.backend(), session).error().required, least);
}

TEST(PlanCase, AnAutomaticArenaIsOneAllocation) {
  const TakingRig rig([](const kvspan_prepare_t&) { return 0U; });
  PlanOptions options = small_case();
  const SessionOptions session = session_of(options);
  options.arena = "auto";
  options.free = "1GiB";
  const auto whole = make_report(options, session, rig.backend());
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->plan.mode, PlanMode::resident);
  kvspan_device_info_t info = rig.backend().info();
  info.allocation_bytes_max = info.binding_bytes_max = whole->plan.total_bytes() / 2;
  const Backend limited(rig.backend().tables(), rig.backend().device(), info);
  const auto half = make_report(options, session, limited);
  ASSERT_TRUE(half.has_value()) << half.error().message;
  EXPECT_LE(half->plan.total_bytes(), info.allocation_bytes_max);
  EXPECT_GT(half->plan.total_bytes(), info.allocation_bytes_max / 2);
  EXPECT_NE(half->arena_rule.find("allocates at once"), std::string::npos) << half->arena_rule;
  options.arena = "1GiB";
  const auto refused = make_report(options, session, limited);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::too_large);
  EXPECT_EQ(refused.error().provided, info.allocation_bytes_max);
}

}  // namespace
}  // namespace kvspan::host
