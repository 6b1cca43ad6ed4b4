// SPDX-License-Identifier: Apache-2.0
// The minimum runs, and one byte less is refused: sessions really opened and stepped, with each
// phase in turn deciding, on the stub and on the cpu backend, over unlike layers.
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <cstring>

namespace kvspan::test {
namespace {

struct Case {
  const char* name;
  const char* phase;  // that decides the minimum
  SessionOptions options;
};

// Full and windowed layers, several types and head sizes, and one whose V lies in K's row.
SessionOptions mixed_options() {
  SessionOptions options;
  options.geometry.layers = {
      {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64, 64, 2, 4},
      {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 64, 64, 1, 4, 100},
      {KVSPAN_TYPE_F32, KVSPAN_TYPE_Q8_0, 64, 96, 1, 2},
  };
  LayerGeometry latent{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 96, 64, 1, 4};
  latent.v_in_k = true;
  options.geometry.layers.push_back(latent);
  options.geometry.page_tokens = 64;
  options.geometry.alignment = 256;
  options.context_tokens = 700;
  options.error_class = KVSPAN_ERROR_E0;
  return options;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  out.push_back({"wide chunks", "prefill", mixed_options()});
  out.back().options.prefill_rows_fixed = 300;
  out.push_back({"many decode rows", "decode", mixed_options()});
  out.back().options.prefill_rows_fixed = 1;
  out.back().options.decode_rows = 24;
  out.push_back({"three sequences", "decode", mixed_options()});
  out.back().options.prefill_rows_fixed = 1;
  out.back().options.sequences = 3;
  return out;
}

// Prefill, decode, and a loaded sequence: every phase that a session has.
Result<void> run_every_phase(const Backend& backend, const SessionOptions& options) {
  auto session = Session::open(backend, options);
  if (!session) {
    return tl::unexpected(session.error());
  }
  const std::uint32_t chunk = session->plan().prefill_rows;
  Engine engine(backend, *session, options, std::max(chunk, options.decode_rows));
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    const SequenceId sequence = *session->add_sequence();
    const std::uint64_t prompt = options.sequences == 1 ? 500 : 130;
    if (auto done = engine.prefill(sequence, index, 0, prompt, chunk, nullptr); !done) {
      return done;
    }
    for (std::uint64_t at = prompt; at + options.decode_rows <= prompt + 72;
         at += options.decode_rows) {
      if (auto done =
              engine.step({{sequence, index, at, options.decode_rows}}, Phase::decode, nullptr);
          !done) {
        return done;
      }
    }
  }
  if (auto removed = session->remove_sequence(0); !removed) {
    return removed;
  }
  const SequenceId loaded = *session->add_sequence();
  const auto zeros = [](std::uint32_t, std::uint64_t, std::span<std::byte> page) -> Result<void> {
    std::memset(page.data(), 0, page.size());
    return {};
  };
  if (auto done = session->load(loaded, 640, zeros); !done) {
    return done;
  }
  auto stepped = engine.step({{loaded, 9, 640, 1}}, Phase::decode, nullptr);
  EXPECT_LE(session->counters().device_bytes_high_water, options.arena_bytes);
  return stepped;
}

class BudgetOn : public ::testing::TestWithParam<const char*> {};

TEST_P(BudgetOn, TheMinimumRunsAndOneByteLessIsRefused) {
  for (Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const StubRig rig(StubRig::Plugin{GetParam()});
    const PlanRequest request = plan_request(rig.backend(), each.options);
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    each.options.arena_bytes = least->minimum_arena_bytes;
    const auto done = run_every_phase(rig.backend(), each.options);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    --each.options.arena_bytes;
    const auto refused = Session::open(rig.backend(), each.options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::device_memory);
    EXPECT_EQ(refused.error().required, least->minimum_arena_bytes);
    EXPECT_EQ(refused.error().missing, 1U);
    const std::string phase = std::string("phase ") + each.phase;
    EXPECT_NE(refused.error().message.find(phase), std::string::npos) << refused.error().message;
  }
}

// One host byte short of full sequences is refused before anything is taken; exactly enough opens
// and takes them all to the context.
TEST_P(BudgetOn, ExactlyEnoughHostBytesFillTheContext) {
  const StubRig rig(StubRig::Plugin{GetParam()});
  SessionOptions options = mixed_options();
  options.prefill_rows_fixed = 48;
  options.sequences = 2;
  options.rewind_tokens = 10;  // a window of 100 tokens holds less than the context
  options.arena_bytes = plan(plan_request(rig.backend(), options))->minimum_arena_bytes + 100000;
  options.host_bytes_max = 0;
  const std::uint64_t enough = Session::open(rig.backend(), options).error().required;
  ASSERT_GT(enough, 0U);
  options.host_bytes_max = enough - 1;
  const auto refused = Session::open(rig.backend(), options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::host_memory);
  EXPECT_EQ(refused.error().required, enough);
  EXPECT_EQ(refused.error().provided, enough - 1);
  EXPECT_EQ(refused.error().missing, 1U);
  EXPECT_EQ(refused.error().component, "history");
  EXPECT_NE(refused.error().message.find("every phase"), std::string::npos);
  options.host_bytes_max = enough;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  EXPECT_EQ(session->plan().pinned_bytes, enough);
  Engine engine(rig.backend(), *session, options, 2 * 48);
  std::vector<EngineRows> parts;
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    parts.push_back({*session->add_sequence(), index, 0, 48});
  }
  for (std::uint64_t at = 0; at < options.context_tokens;) {
    const bool decodes = at + 48 > options.context_tokens;
    for (EngineRows& part : parts) {
      part.first_token = at;
      part.rows = decodes ? 1 : 48;
    }
    const auto done = engine.step(parts, decodes ? Phase::decode : Phase::prefill, nullptr);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    at += parts.front().rows;
    ASSERT_LE(session->counters().host_bytes, enough);
  }
  EXPECT_EQ(session->counters().host_bytes, enough);
}

// What a session takes from the device and pins on the host is what the plan says.
TEST_P(BudgetOn, ThePlanSaysWhatIsTaken) {
  const StubRig rig(StubRig::Plugin{GetParam()});
  SessionOptions options = mixed_options();
  options.context_tokens = 640;
  options.arena_bytes = plan(plan_request(rig.backend(), options))->minimum_arena_bytes + 200000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const Plan& plan = session->plan();
  EXPECT_EQ(session->counters().device_bytes_high_water, plan.total_bytes());
  const SequenceId sequence = *session->add_sequence();
  const auto zeros = [](std::uint32_t, std::uint64_t, std::span<std::byte> page) -> Result<void> {
    std::memset(page.data(), 0, page.size());
    return {};
  };
  ASSERT_TRUE(session->load(sequence, 1, zeros).has_value());
  EXPECT_EQ(session->counters().host_bytes, plan.pinned_chunk_bytes);
  ASSERT_TRUE(session->truncate(sequence, 0).has_value());
  ASSERT_TRUE(session->load(sequence, 640, zeros).has_value());
  EXPECT_EQ(session->counters().host_bytes, plan.pinned_bytes);
}

INSTANTIATE_TEST_SUITE_P(Plugins, BudgetOn, ::testing::Values("stub", "cpu"));

}  // namespace
}  // namespace kvspan::test
