// SPDX-License-Identifier: Apache-2.0
// Streaming end to end: sessions of core over the plugin under test. Whatever the arena, the
// neighbours, the truncations and the cancellations, outputs have the bytes of the resident run on
// the same plugin. The ring alone, with waits by hand: needle_test.cpp.
#include "stream_engine.hpp"
#include "worker/call_tables.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <optional>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(stream);

using kvspan::Phase;

constexpr uint64_t kRoomy = uint64_t{64} << 20;  // an arena that everything fits into
constexpr uint32_t kDecodeTokens = 6;
constexpr uint64_t kTag = 7;  // the content that runs are compared by

class StreamTest : public PluginTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::optional<kvspan::LayerGeometry> layer_of(kvspan_type_t k, kvspan_type_t v, uint32_t size);
  void choose_layers();

  uint64_t prompt_tokens() const { return 9 * uint64_t{options_.geometry.page_tokens} + 3; }

  uint32_t chunk() const { return options_.prefill_rows_fixed; }

  /// The smallest arena for the options.
  uint64_t least() const;

  /// Rows [from, to) in chunks; false after a recorded failure.
  bool append(StreamEngine& engine,
              kvspan::SequenceId sequence,
              uint64_t tag,
              uint64_t from,
              uint64_t to,
              StreamOutputs* outputs) const;

  /// Prompt and some single tokens in an arena of that size.
  StreamOutputs run(uint64_t arena_bytes, bool waits, kvspan::Counters* counters = nullptr);

  const kvspan::Backend& backend() const { return *backend_; }

  kvspan::SessionOptions options_;

 private:
  std::unique_ptr<CallTables> tables_;
  std::unique_ptr<kvspan::Backend> backend_;
};

void StreamTest::SetUp() {
  PluginTest::SetUp();
  if (HasFatalFailure() || IsSkipped()) {
    return;
  }
  tables_ = std::make_unique<CallTables>(rig().calls());
  const Tables& t = tables_->tables();
  const kvspan::BackendTables tables = {
      t.device, t.memory, t.queue, t.fence, t.copy, t.codec, t.attention, t.debug};
  backend_ = std::make_unique<kvspan::Backend>(tables, rig().device(), rig().info());
  choose_layers();
}

void StreamTest::TearDown() {
  backend_.reset();
  tables_.reset();
  PluginTest::TearDown();
}

std::optional<kvspan::LayerGeometry> StreamTest::layer_of(kvspan_type_t k,
                                                          kvspan_type_t v,
                                                          uint32_t size) {
  kvspan::SessionOptions one;
  one.geometry.layers = {{k, v, size, size, 2, 4}};
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const auto caps = backend_->query(kvspan::attention_shape(one, 0, phase, 16));
    if (!caps) {
      return std::nullopt;
    }
    options_.geometry.page_tokens = std::max(options_.geometry.page_tokens, caps->span_granule);
  }
  return one.geometry.layers[0];
}

/// Two unlike layers that the plugin offers natively, of the tuples where there are some.
void StreamTest::choose_layers() {
  std::vector<Tuple> tuples = settings().tuples;
  if (tuples.empty()) {
    const auto plain = [](kvspan_type_t k, kvspan_type_t v) {
      return Tuple{"", k, v, std::nullopt};
    };
    tuples = {plain(KVSPAN_TYPE_F16, KVSPAN_TYPE_F16),
              plain(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0),
              plain(KVSPAN_TYPE_F32, KVSPAN_TYPE_F32),
              plain(KVSPAN_TYPE_BF16, KVSPAN_TYPE_BF16),
              Tuple()};
  }
  options_.geometry.page_tokens = 8;
  auto aligned = kvspan::aligned_for(*backend_, {});
  ASSERT_TRUE(aligned) << aligned.error().message;
  options_.geometry.alignment = aligned->alignment;
  options_.geometry.row_alignment = aligned->row_alignment;
  auto& layers = options_.geometry.layers;
  constexpr kvspan_type_t kAll[] = {KVSPAN_TYPE_F16,
                                    KVSPAN_TYPE_Q8_0,
                                    KVSPAN_TYPE_BF16,
                                    KVSPAN_TYPE_F32,
                                    KVSPAN_TYPE_Q4_0,
                                    KVSPAN_TYPE_Q4_1,
                                    KVSPAN_TYPE_Q5_0,
                                    KVSPAN_TYPE_Q5_1};
  for (const Tuple& tuple : tuples) {
    bool found = layers.size() >= 2;
    const std::size_t pairs = tuple.k_type && tuple.v_type ? 1 : std::size(kAll);
    for (std::size_t i = 0; i < pairs && !found; ++i) {
      const kvspan_type_t k = tuple.k_type.value_or(kAll[i]);
      const kvspan_type_t v = tuple.v_type.value_or(kAll[i]);
      const auto layer = layer_of(k, v, tuple.head_size.value_or(64));
      found = layer.has_value();
      if (found) {
        layers.push_back(*layer);
      }
    }
  }
  ASSERT_FALSE(layers.empty()) << "no pair of types with such a head size is offered natively";
  const uint32_t page = options_.geometry.page_tokens;
  options_.context_tokens = 16 * uint64_t{page};
  options_.prefill_rows_max = options_.prefill_rows_fixed = page + 3;  // chunks end inside pages
}

uint64_t StreamTest::least() const {
  const auto plan = kvspan::plan(kvspan::plan_request(backend(), options_));
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  return plan ? plan->minimum_arena_bytes : 0;
}

bool StreamTest::append(StreamEngine& engine,
                        kvspan::SequenceId sequence,
                        uint64_t tag,
                        uint64_t from,
                        uint64_t to,
                        StreamOutputs* outputs) const {
  while (from < to) {
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(chunk(), to - from));
    const auto done = engine.step({{sequence, tag, from, rows}}, Phase::prefill, outputs);
    EXPECT_TRUE(done.has_value()) << "token " << from << ": " << done.error().message;
    if (!done) {
      return false;
    }
    from += rows;
  }
  return true;
}

StreamOutputs StreamTest::run(uint64_t arena_bytes, bool waits, kvspan::Counters* counters) {
  options_.arena_bytes = arena_bytes;
  StreamOutputs outputs;
  auto session = kvspan::Session::open(backend(), options_);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  if (!session) {
    return outputs;
  }
  const auto sequence = session->add_sequence();
  EXPECT_TRUE(sequence.has_value());
  StreamEngine engine(rig(), *session, options_);
  if (!waits) {
    engine.never_wait();
  }
  uint64_t token = prompt_tokens();
  if (!append(engine, *sequence, kTag, 0, token, &outputs)) {
    return {};
  }
  for (uint32_t i = 0; i < kDecodeTokens; ++i, ++token) {
    const auto done = engine.step({{*sequence, kTag, token, 1}}, Phase::decode, &outputs);
    EXPECT_TRUE(done.has_value()) << "token " << token << ": " << done.error().message;
  }
  if (!waits) {
    const auto settled = engine.settle(outputs);
    EXPECT_TRUE(settled.has_value()) << settled.error().message;
  }
  if (counters != nullptr) {
    *counters = session->counters();
  }
  return outputs;
}

::testing::AssertionResult same_outputs(const StreamOutputs& got, const StreamOutputs& expected) {
  if (got.size() != expected.size() || got.empty()) {
    return ::testing::AssertionFailure() << got.size() << " outputs, expected " << expected.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      const auto differs = std::mismatch(got[i].begin(), got[i].end(), expected[i].begin());
      return ::testing::AssertionFailure()
             << "output " << i << " of " << got.size() << " differs from the resident run at byte "
             << differs.first - got[i].begin();
    }
  }
  return ::testing::AssertionSuccess();
}

KVSPAN_CASE(StreamTest,
            EveryArenaHasTheBytesOfTheResidentRun,
            "KV-BITS-1 KV-ATTN-5 KV-SUBMIT-9",
            takes_tuple,
            cost_ms(200)) {
  const StreamOutputs expected = run(kRoomy, true);
  const uint64_t smallest = least();
  for (uint64_t i = 0; i < cases(settings(), 6, 2) && !HasFailure(); ++i) {
    const uint64_t arena = smallest + 3001 * i;
    SCOPED_TRACE(testing::Message() << "arena of " << arena << " bytes");
    kvspan::Counters counters;
    ASSERT_TRUE(same_outputs(run(arena, true, &counters), expected));
    EXPECT_LE(counters.device_bytes_high_water, arena);
    EXPECT_GT(counters.streamed_pages, 0u);
    EXPECT_TRUE(i != 0 || counters.streamed_pages > 3 * uint64_t{counters.slots_total})
        << "the ring did not wrap: " << counters.streamed_pages << " pages through "
        << counters.slots_total << " slots";
  }
}

KVSPAN_CASE(StreamTest,
            AnEngineThatNeverWaitsGetsTheSameBytes,
            "KV-SUBMIT-9 KV-SUBMIT-4 KV-BITS-1",
            takes_tuple,
            cost_ms(200)) {
  const StreamOutputs expected = run(kRoomy, true);
  const uint64_t smallest = least();
  for (uint64_t i = 0; i < cases(settings(), 6, 2) && !HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "arena of " << smallest + 2000 * i << " bytes");
    options_.lanes.waits = i % 2 == 0 ? kvspan::WaitMode::normal : kvspan::WaitMode::strict;
    ASSERT_TRUE(same_outputs(run(smallest + 2000 * i, false), expected));
  }
}

KVSPAN_CASE(StreamTest,
            SeveralSequencesKeepTheirOwnHistories,
            "KV-BITS-2 KV-SUBMIT-9",
            takes_tuple,
            cost_ms(100)) {
  const StreamOutputs expected = run(kRoomy, true);
  options_.sequences = 3;
  options_.arena_bytes = least() + 6000;
  auto session = kvspan::Session::open(backend(), options_);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const kvspan::SequenceId ids[] = {
      *session->add_sequence(), *session->add_sequence(), *session->add_sequence()};
  StreamEngine engine(rig(), *session, options_);
  const std::size_t layers = options_.geometry.layers.size();
  StreamOutputs own;
  uint64_t token = 0;
  uint64_t others[] = {0, 0};
  // The own sequence is the middle one of a prompt's step and the last of every other one's.
  const auto step = [&](const std::vector<StreamPart>& parts, std::size_t which, Phase phase) {
    StreamOutputs outputs;
    const auto done = engine.step(parts, phase, &outputs);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    ASSERT_EQ(outputs.size(), layers);
    uint64_t before = 0;
    uint64_t rows = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      before += i < which ? parts[i].rows : 0u;
      rows += parts[i].rows;
    }
    for (const Bytes& output : outputs) {
      const auto row = static_cast<std::ptrdiff_t>(output.size() / rows);
      const auto begin = output.begin() + row * static_cast<std::ptrdiff_t>(before);
      own.emplace_back(begin, begin + row * static_cast<std::ptrdiff_t>(parts[which].rows));
    }
  };
  while (token < prompt_tokens() && !HasFatalFailure()) {
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(chunk(), prompt_tokens() - token));
    step({{ids[0], 100, others[0], 3}, {ids[1], kTag, token, rows}, {ids[2], 200, others[1], 7}},
         1,
         Phase::prefill);
    others[0] += 3;
    others[1] += 7;
    token += rows;
  }
  for (uint32_t i = 0; i < kDecodeTokens && !HasFatalFailure(); ++i, ++token) {
    if (i % 2 == 0) {
      step({{ids[2], 200, others[1], 1}, {ids[1], kTag, token, 1}}, 1, Phase::decode);
      ++others[1];
    } else {
      step({{ids[1], kTag, token, 1}}, 0, Phase::decode);
    }
  }
  EXPECT_TRUE(same_outputs(own, expected));
}

KVSPAN_CASE(StreamTest,
            TruncateThenAppendIsTheRunThatNeverWentAstray,
            "KV-ATTN-1 KV-BITS-1 KV-CODEC-3",
            takes_tuple,
            cost_ms(100)) {
  options_.arena_bytes = least() + 4000;
  auto session = kvspan::Session::open(backend(), options_);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const kvspan::SequenceId sequence = *session->add_sequence();
  StreamEngine engine(rig(), *session, options_);
  const uint64_t page = options_.geometry.page_tokens;
  const uint64_t middle = 7 * page + 4;
  const uint64_t end = middle + 2 * uint64_t{chunk()};
  StreamOutputs straight;
  ASSERT_TRUE(append(engine, sequence, kTag, 0, middle, nullptr));
  ASSERT_TRUE(append(engine, sequence, kTag, middle, end, &straight));
  for (const uint64_t cut : {middle, middle - 3, 6 * page, page + 1, uint64_t{1}, uint64_t{0}}) {
    SCOPED_TRACE(testing::Message() << "cut at " << cut);
    ASSERT_TRUE(session->truncate(sequence, cut).has_value());
    ASSERT_TRUE(append(engine, sequence, 99, cut, cut + 2 * page, nullptr));  // another branch
    ASSERT_TRUE(session->truncate(sequence, cut).has_value());
    ASSERT_TRUE(append(engine, sequence, kTag, cut, middle, nullptr));
    StreamOutputs again;
    ASSERT_TRUE(append(engine, sequence, kTag, middle, end, &again));
    ASSERT_TRUE(same_outputs(again, straight));
  }
}

/// Cancels before call `call` of a step: begin, then write and attend of every layer, then commit.
KVSPAN_CASE(StreamTest,
            CancelledBetweenAnyTwoCallsItGoesOnFromTheLastCommit,
            "KV-SUBMIT-7 KV-SUBMIT-2",
            takes_tuple,
            cost_ms(100)) {
  const StreamOutputs expected = run(kRoomy, true);
  const auto layers = static_cast<uint32_t>(options_.geometry.layers.size());
  const uint64_t base = 4 * uint64_t{chunk()};
  options_.arena_bytes = least() + 3000;
  for (uint32_t call = 0; call < 2 * layers + 2 && !HasFailure(); ++call) {
    SCOPED_TRACE(testing::Message() << "cancelled before call " << call);
    auto session = kvspan::Session::open(backend(), options_);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const kvspan::SequenceId sequence = *session->add_sequence();
    StreamEngine engine(rig(), *session, options_);
    StreamOutputs outputs;
    ASSERT_TRUE(append(engine, sequence, kTag, 0, base, &outputs));
    const std::vector<StreamPart> astray = {{sequence, 99, base, chunk()}};
    bool stopped = false;
    bool committed = false;
    for (uint32_t at = 0; at < 2 * layers + 2 && !stopped; ++at) {
      if (at == call) {
        session->cancel();
      }
      const uint32_t layer = (at - 1) / 2;
      const auto done = at == 0                ? engine.begin(astray, Phase::prefill)
                        : at == 2 * layers + 1 ? engine.commit()
                        : at % 2 == 1          ? engine.write(layer)
                                               : engine.attend(layer, nullptr);
      stopped = !done.has_value();
      EXPECT_TRUE(!stopped || done.error().code == kvspan::Errc::cancelled) << done.error().message;
      committed = !stopped && at == 2 * layers + 1;
    }
    session->cancel_step();
    // Who has not told yet that it was cancelled does so now, and once.
    const kvspan::StepRows one{sequence, 1};
    const auto begun = session->begin_step({&one, 1}, Phase::decode);
    EXPECT_TRUE(begun || begun.error().code == kvspan::Errc::cancelled) << begun.error().message;
    session->cancel_step();
    const uint64_t kept = *session->tokens(sequence);
    // The last commit whose rows have reached the host: an earlier one where they had not yet.
    EXPECT_TRUE(kept % chunk() == 0 && kept <= base + (committed ? chunk() : 0u))
        << kept << " tokens are left";
    const uint64_t from = std::min(kept, base);
    ASSERT_TRUE(session->truncate(sequence, from).has_value());
    outputs.resize(layers * from / chunk());
    uint64_t token = prompt_tokens();
    ASSERT_TRUE(append(engine, sequence, kTag, from, token, &outputs));
    for (uint32_t i = 0; i < kDecodeTokens; ++i, ++token) {
      const auto done = engine.step({{sequence, kTag, token, 1}}, Phase::decode, &outputs);
      ASSERT_TRUE(done.has_value()) << done.error().message;
    }
    ASSERT_TRUE(same_outputs(outputs, expected));
  }
}

}  // namespace
}  // namespace kvspan::conformance
