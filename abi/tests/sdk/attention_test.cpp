// SPDX-License-Identifier: Apache-2.0
// Attention's arguments: one broken field at a time, and spans with gaps against a model of tokens.
#include "kvspan/sdk/validate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvspan::sdk {
namespace {

kvspan_memory_t* a_memory() {
  return reinterpret_cast<kvspan_memory_t*>(0x1000);
}

constexpr std::uint64_t kMemoryBytes = 1u << 20;
constexpr std::uint32_t kGranule = 4;

/// A call that passes; tests change one thing of it.
struct Call {
  kvspan_attention_shape_t shape{};
  kvspan_attention_caps_t caps{};
  std::vector<kvspan_span_t> spans;
  std::vector<std::uint64_t> visible_end;
  std::vector<std::uint64_t> window_begin;
  std::vector<std::uint64_t> suffix_mask;
  kvspan_entry_t entry{};
  kvspan_attention_args_t args{};

  explicit Call(std::uint64_t tokens, std::uint32_t rows = 2) {
    shape.struct_size = sizeof shape;
    shape.k_type = shape.v_type = KVSPAN_TYPE_F16;
    shape.q_type = shape.out_type = KVSPAN_TYPE_F32;
    shape.head_size_k = shape.head_size_v = 32;
    shape.q_heads = 4;
    shape.kv_heads = 2;
    shape.memory_kinds = 7;
    shape.rows_max = 8;
    shape.entries_max = 2;
    shape.items_max = 16;
    shape.spans_max = 8;
    shape.tokens_max = 4096;
    caps.struct_size = sizeof caps;
    caps.span_granule = kGranule;
    caps.spans_max = 1024;
    caps.span_pages_max = 4096;
    caps.workspace_alignment = caps.state_alignment = 64;
    caps.run_workspace_bytes = 1024;
    caps.advance_workspace_bytes = 512;
    visible_end.assign(rows, tokens);
    entry.row_count = rows;
    entry.token_total = tokens;
    entry.split_tokens = 16;
    entry.q = {a_memory(), 0, 512, 128, KVSPAN_TYPE_F32, 0};
    entry.out = {a_memory(), 8192, 512, 128, KVSPAN_TYPE_F32, 0};
    args.struct_size = sizeof args;
    args.scale = 0.125f;
    args.workspace = {a_memory(), 65536, 1024};
    add_span(0, tokens);
  }

  void add_span(std::uint64_t first, std::uint64_t count) {
    kvspan_span_t span{first, count, {}, {}};
    span.k = {a_memory(), 1024, 0, 128, 64, nullptr, 0, 0};
    span.v = {a_memory(), 2048, 0, 128, 64, nullptr, 0, 0};
    spans.push_back(span);
  }

  void link() {
    entry.spans = spans.data();
    entry.span_count = static_cast<std::uint32_t>(spans.size());
    entry.visible_end = visible_end.data();
    entry.window_begin = window_begin.empty() ? nullptr : window_begin.data();
    entry.suffix_mask = suffix_mask.empty() ? nullptr : suffix_mask.data();
    args.shape = &shape;
    args.entries = &entry;
    args.entry_count = 1;
  }

  auto context() const {
    Context context([](kvspan_memory_t*) { return kMemoryBytes; });
    context.caps = &caps;
    return context;
  }

  kvspan_result_t run(kvspan_error_t* error = nullptr) {
    link();
    return check_run(&args, context(), error, "attention.run");
  }

  kvspan_result_t advance(const std::vector<kvspan_advance_item_t>& items,
                          kvspan_error_t* error = nullptr) {
    link();
    const kvspan_result_t bad =
        check_attention_args(&args, AttentionCall::advance, context(), error, "attention.advance");
    return bad != KVSPAN_OK
               ? bad
               : check_advance_items({items.data(), static_cast<std::uint32_t>(items.size())},
                                     args,
                                     context(),
                                     error,
                                     "attention.advance");
  }
};

TEST(CheckRun, AcceptsACallThatIsRight) {
  Call call(100);
  kvspan_error_t error{};
  EXPECT_EQ(call.run(&error), KVSPAN_OK) << error.message;
  call.args.entry_count = 0;
  call.args.workspace = {};
  EXPECT_EQ(check_run(&call.args, call.context(), &error, "x"), KVSPAN_OK) << "no entries";
}

/// One field broken in a call of 100 tokens, and a word of the sentence.
struct Broken {
  const char* word;
  void (*change)(Call&);
};

TEST(CheckRun, NamesWhatIsBroken) {
  const Broken cases[] = {
      {"struct_size", [](Call& c) { c.args.struct_size -= 4; }},
      {"struct_size", [](Call& c) { c.shape.struct_size -= 4; }},
      {"shape: options", [](Call& c) { c.shape.options = 0x80; }},
      {"shape: q_heads", [](Call& c) { c.shape.q_heads = 0; }},
      {"scale", [](Call& c) { c.args.scale = NAN; }},
      {"soft_cap", [](Call& c) { c.args.soft_cap = 3.0f; }},
      {"soft_cap", [](Call& c) { c.shape.options = KVSPAN_OPTION_SOFT_CAP; }},
      {"sinks", [](Call& c) { c.shape.options = KVSPAN_OPTION_SINKS; }},
      {"slopes", [](Call& c) { c.shape.options = KVSPAN_OPTION_ALIBI; }},
      {"lse", [](Call& c) { c.shape.options = KVSPAN_OPTION_LSE; }},
      {"row_class", [](Call& c) { c.shape.row_class = 2; }},
      {"rows, the shape", [](Call& c) { c.shape.rows_max = 1; }},
      {"token_total", [](Call& c) { c.shape.tokens_max = 99; }},
      {"split_tokens", [](Call& c) { c.entry.split_tokens = 0; }},
      {"split_tokens", [](Call& c) { c.entry.split_tokens = 18; }},
      {"reserved", [](Call& c) { c.entry.reserved = 1; }},
      {"visible_end[1]", [](Call& c) { c.visible_end[1] = 101; }},
      {"window_begin[0]",
       [](Call& c) {
         c.window_begin = {1, 0};
       }},
      {"suffix_mask",
       [](Call& c) {
         c.suffix_mask = {1, 1};
       }},
      {"entry 0 q: type", [](Call& c) { c.entry.q.type = KVSPAN_TYPE_F16; }},
      {"entry 0 out: it ends", [](Call& c) { c.entry.out.offset = kMemoryBytes - 128; }},
      {"entry 0 q: it ends", [](Call& c) { c.entry.q.row_stride = kMemoryBytes; }},
      {"entry 0 span 0 k: it ends", [](Call& c) { c.spans[0].k.row_stride = 1u << 16; }},
      {"entry 0 span 0 v: it ends", [](Call& c) { c.spans[0].v.offset = 1u << 20; }},
      {"no span holds", [](Call& c) { c.spans[0].token_count = 99; }},
      {"entry 0 spans:", [](Call& c) { c.shape.spans_max = 0; }},
      {"workspace", [](Call& c) { c.args.workspace.offset = 65537; }},
      {"workspace: it ends", [](Call& c) { c.args.workspace.offset = kMemoryBytes - 64; }},
  };
  for (const Broken& broken : cases) {
    Call call(100);
    broken.change(call);
    kvspan_error_t error{};
    EXPECT_LT(call.run(&error), KVSPAN_OK) << broken.word;
    EXPECT_NE(std::string(error.message).find(broken.word), std::string::npos)
        << broken.word << " is not in: " << error.message;
    EXPECT_EQ(error.argument, 2u) << broken.word;
    EXPECT_EQ(call.run(nullptr), error.code) << "the same without a record";
  }
}

TEST(CheckRun, AWorkspaceOneByteShortIsToldTheAmount) {
  Call call(100);
  call.args.workspace.bytes = 1023;
  kvspan_error_t error{};
  EXPECT_EQ(call.run(&error), KVSPAN_E_WORKSPACE);
  EXPECT_EQ(error.required, 1024u);
  EXPECT_EQ(error.provided, 1023u);
  EXPECT_EQ(error.missing, 1u);
  EXPECT_EQ(error.resource, KVSPAN_RESOURCE_WORKSPACE);
}

TEST(CheckRun, SpansAscendOnTheGranule) {
  struct Case {
    std::uint64_t first, count;
    bool good;
  };

  for (const Case& c : {Case{40, 60, true},
                        Case{44, 56, false},    // a gap at 40
                        Case{36, 64, false},    // overlaps
                        Case{40, 61, true}}) {  // the last may end anywhere
    Call call(100);
    call.spans[0].token_count = 40;
    call.add_span(c.first, c.count);
    EXPECT_EQ(call.run() == KVSPAN_OK, c.good) << c.first << " " << c.count;
  }
  Call call(100);
  call.spans[0].token_count = 42;
  call.add_span(42, 58);
  kvspan_error_t error{};
  EXPECT_EQ(call.run(&error), KVSPAN_E_INVALID_ARG);
  EXPECT_NE(std::string(error.message).find("multiples of 4"), std::string::npos);
  call.spans[1].first_token = UINT64_MAX - 3;
  EXPECT_EQ(call.run(&error), KVSPAN_E_INVALID_ARG) << "token numbers over 64 bits";
}

TEST(CheckRun, APageListMayNotExceedThePluginsLimit) {
  std::vector<std::uint32_t> list(30, 0);
  Call call(100);
  call.spans[0].k = {a_memory(), 0, 512, 128, 64, list.data(), 4, 30};
  EXPECT_EQ(call.run(), KVSPAN_OK);
  call.caps.span_pages_max = 29;
  EXPECT_EQ(call.run(), KVSPAN_E_INVALID_ARG);
}

TEST(CheckRun, LatentAttentionIgnoresTheVPlane) {
  Call call(100);
  call.spans[0].v = {};
  EXPECT_EQ(call.run(), KVSPAN_E_INVALID_ARG);
  call.shape.options = KVSPAN_OPTION_V_IN_K;
  EXPECT_EQ(call.run(), KVSPAN_OK);
}

/// Which tokens a row sees, one by one.
bool visible(const Call& call, std::uint32_t row, std::uint64_t token) {
  const std::uint64_t begin = call.window_begin.empty() ? 0 : call.window_begin[row];
  if (token < begin || token >= call.visible_end[row]) {
    return false;
  }
  const std::uint64_t suffix = call.entry.token_total - call.entry.suffix_count;
  return call.suffix_mask.empty() || token < suffix ||
         (call.suffix_mask[row] >> (token - suffix) & 1u) != 0;
}

bool held(const Call& call, std::uint64_t token) {
  for (const kvspan_span_t& span : call.spans) {
    if (token >= span.first_token && token - span.first_token < span.token_count) {
      return true;
    }
  }
  return false;
}

bool all_held(const Call& call, std::uint64_t begin, std::uint64_t end) {
  for (std::uint32_t row = 0; row < call.entry.row_count; ++row) {
    for (std::uint64_t token = begin; token < end; ++token) {
      if (visible(call, row, token) && !held(call, token)) {
        return false;
      }
    }
  }
  return true;
}

/// Random gaps, windows and masks over a short history.
Call random_call(std::mt19937_64& dice) {
  const std::uint64_t tokens = 1 + dice() % 60;
  Call call(tokens, static_cast<std::uint32_t>(1 + dice() % 4));
  call.shape.options = KVSPAN_OPTION_WINDOW | KVSPAN_OPTION_SUFFIX_MASK;
  call.spans.clear();
  std::uint64_t at = dice() % 3 * kGranule;
  while (at < tokens && call.spans.size() < 8) {
    const std::uint64_t count = (dice() % 8) * kGranule;
    const bool last = at + count >= tokens;
    call.add_span(at, last && dice() % 2 == 0 ? tokens - at : count);
    at += count + (dice() % 3 == 0 ? dice() % 3 * kGranule : 0);
  }
  for (std::uint64_t& end : call.visible_end) {
    end = dice() % 2 == 0 ? tokens : dice() % (tokens + 1);
  }
  if (dice() % 2 == 0) {
    for (std::uint32_t row = 0; row < call.entry.row_count; ++row) {
      call.window_begin.push_back(dice() % (tokens + 4));
    }
  }
  if (dice() % 2 == 0) {
    call.entry.suffix_count =
        static_cast<std::uint32_t>(dice() % (std::min<std::uint64_t>(tokens, 20) + 1));
    for (std::uint32_t row = 0; row < call.entry.row_count; ++row) {
      const std::uint64_t sparse = dice();
      call.suffix_mask.push_back(sparse & dice());
    }
  }
  return call;
}

TEST(CheckRun, FindsEveryVisibleTokenThatNoSpanHolds) {
  std::mt19937_64 dice(31);
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    Call call = random_call(dice);
    kvspan_error_t error{};
    const kvspan_result_t result = call.run(&error);
    ASSERT_EQ(result == KVSPAN_OK, all_held(call, 0, call.entry.token_total))
        << "seed 31 round " << round << ": " << error.message;
    accepted += result == KVSPAN_OK ? 1 : 0;
  }
  EXPECT_GT(accepted, 5000);
  EXPECT_LT(accepted, 25000);
}

kvspan_advance_item_t item(std::uint64_t split, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t base = 131072 + split * 4096;
  return {0, KVSPAN_ITEM_FRESH, split, first, count, {a_memory(), base, base + 2048}};
}

TEST(CheckAdvance, NeedsOnlyTheSpansOfItsItems) {
  std::mt19937_64 dice(37);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Call call = random_call(dice);
    const std::uint64_t split = dice() % (call.entry.token_total / 16 + 1);
    const std::uint64_t begin = split * 16 + dice() % 4 * kGranule;
    const std::uint64_t end = std::min(split * 16 + 16, call.entry.token_total);
    if (begin >= end) {
      continue;
    }
    kvspan_error_t error{};
    const kvspan_result_t result = call.advance({item(split, begin, end - begin)}, &error);
    ASSERT_EQ(result == KVSPAN_OK, all_held(call, begin, end))
        << "seed 37 round " << round << ": " << error.message;
    accepted += result == KVSPAN_OK ? 1 : 0;
  }
  EXPECT_GT(accepted, 5000);
}

TEST(CheckAdvance, ItemsStayInTheirSplitAndOnTheGranule) {
  struct Case {
    std::uint64_t split, first, count;
    bool good;
  };

  for (const Case& c : {Case{0, 0, 16, true},
                        Case{0, 4, 8, true},
                        Case{0, 4, 0, true},
                        Case{0, 0, 17, false},
                        Case{1, 12, 8, false},
                        Case{0, 2, 2, false},
                        Case{0, 0, 6, false},
                        Case{6, 96, 4, true},
                        Case{6, 96, 3, false},
                        Case{6, 96, 8, false},
                        Case{7, 112, 0, false},
                        Case{UINT64_MAX, 0, 4, false},
                        Case{std::uint64_t{1} << 60, 0, 4, false},
                        Case{0, UINT64_MAX - 3, 8, false}}) {
    Call call(100);
    EXPECT_EQ(call.advance({item(c.split, c.first, c.count)}) == KVSPAN_OK, c.good)
        << c.split << " " << c.first << " " << c.count;
  }
}

TEST(CheckAdvance, ASplitIsThereOnce) {
  Call call(100);
  EXPECT_EQ(call.advance({item(0, 0, 4), item(2, 32, 4), item(4, 64, 4)}), KVSPAN_OK);
  EXPECT_EQ(call.advance({item(4, 64, 4), item(0, 0, 4), item(2, 32, 4)}), KVSPAN_OK);
  EXPECT_EQ(call.advance({item(2, 32, 4), item(2, 36, 4)}), KVSPAN_E_INVALID_ARG);
  kvspan_error_t error{};
  EXPECT_EQ(call.advance({item(4, 64, 4), item(0, 0, 4), item(4, 68, 4)}, &error),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(std::string(error.message).rfind("item 2: split 4 of entry 0", 0), 0u) << error.message;
  EXPECT_EQ(error.argument, 3u);
}

TEST(CheckAdvance, StatesLieInTheirMemory) {
  // u is 2 rows x 4 heads x 32 x 4 bytes = 1024, {m, l} 2 x 4 x 2 x 4 = 64.
  struct Case {
    std::uint64_t u, ml;
    bool good;
  };

  for (const Case& c : {Case{0, 1024, true},
                        Case{64, 0, true},
                        Case{0, 960, false},  // the planes overlap
                        Case{kMemoryBytes - 1024, 0, true},
                        Case{kMemoryBytes - 960, 0, false},
                        Case{0, kMemoryBytes - 64, true},
                        Case{0, kMemoryBytes, false},
                        Case{32, 2048, false},
                        Case{0, 2080, false},
                        Case{UINT64_MAX - 63, 0, false}}) {
    Call call(100);
    kvspan_advance_item_t one = item(0, 0, 16);
    one.state.u_offset = c.u;
    one.state.ml_offset = c.ml;
    EXPECT_EQ(call.advance({one}) == KVSPAN_OK, c.good) << c.u << " " << c.ml;
  }
  Call call(100);
  kvspan_advance_item_t one = item(0, 0, 16);
  one.entry = 1;
  EXPECT_EQ(call.advance({one}), KVSPAN_E_INVALID_ARG);
  one = item(0, 0, 16);
  one.flags = 2;
  EXPECT_EQ(call.advance({one}), KVSPAN_E_INVALID_ARG);
}

TEST(CheckFold, SourceIsNotTheAccumulatorAndFinishHasOneEach) {
  Call call(100);
  call.spans.clear();  // folding needs none
  call.entry.q = {};
  call.link();
  const auto context = call.context();
  ASSERT_EQ(check_attention_args(&call.args, AttentionCall::fold, context, nullptr, "x"),
            KVSPAN_OK);
  kvspan_fold_item_t one{0, 0, {a_memory(), 0, 1024}, {a_memory(), 4096, 8192}};
  EXPECT_EQ(check_fold_items({&one, 1}, call.args, context, nullptr, "x"), KVSPAN_OK);
  one.accumulator.u_offset = 0;
  EXPECT_EQ(check_fold_items({&one, 1}, call.args, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_fold_items({nullptr, 1}, call.args, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  ASSERT_EQ(check_attention_args(&call.args, AttentionCall::finish, context, nullptr, "x"),
            KVSPAN_OK);
  kvspan_state_t state{a_memory(), 0, 1024};
  EXPECT_EQ(check_finish(&state, call.args, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_finish(nullptr, call.args, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  state.ml_offset = kMemoryBytes;
  EXPECT_EQ(check_finish(&state, call.args, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

}  // namespace
}  // namespace kvspan::sdk
