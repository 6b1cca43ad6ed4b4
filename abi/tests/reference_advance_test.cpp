// SPDX-License-Identifier: Apache-2.0
// The running softmax of the C reference: error class E0 against the oracle over random shapes with
// every option, the same bits however it is cut, and no byte read that a row does not see.
// Read next: reference_case.hpp, where the cases are made.
#include "reference_case.hpp"
#include "reference_fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace kvspan::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNmseE0 = 1e-11;  // error class E0: f32 operands
constexpr double kMaxE0 = 1e-5;
constexpr kvspan_type_t kTypes[] = {KVSPAN_TYPE_F32,
                                    KVSPAN_TYPE_F16,
                                    KVSPAN_TYPE_BF16,
                                    KVSPAN_TYPE_Q8_0,
                                    KVSPAN_TYPE_Q5_1,
                                    KVSPAN_TYPE_Q5_0,
                                    KVSPAN_TYPE_Q4_1,
                                    KVSPAN_TYPE_Q4_0};

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }

  float normal() { return normal_(engine_); }

  std::vector<float> normals(std::size_t count, float spread) {
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return spread * normal(); });
    return values;
  }

  std::vector<std::uint32_t> permutation(std::size_t count) {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), engine_);
    return order;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

struct Shape {
  kvspan_type_t k_type = KVSPAN_TYPE_F16;
  kvspan_type_t v_type = KVSPAN_TYPE_F16;
  std::size_t tokens = 100;
  std::size_t rows = 2;
  std::size_t kv_heads = 1;
  std::size_t group = 2;
  std::size_t head_size_k = 32;
  std::size_t head_size_v = 32;
  float spread = 1.0f;  // of q; 1 gives ordinary softmaxes, 12 peaked ones
};

// Random rows of `shape`, plain causal visibility, K and V scattered over 16-token pages.
Case case_of(const Shape& shape, Random& random) {
  Case self;
  oracle::Problem& problem = self.problem;
  problem.rows = shape.rows;
  problem.q_heads = shape.kv_heads * shape.group;
  problem.kv_heads = shape.kv_heads;
  problem.head_size_k = shape.head_size_k;
  problem.head_size_v = shape.head_size_v;
  problem.scale = static_cast<double>(1.0f / std::sqrt(static_cast<float>(shape.head_size_k)));
  const std::vector<float> q =
      random.normals(shape.rows * problem.q_heads * shape.head_size_k, shape.spread);
  problem.q.assign(q.begin(), q.end());
  const auto heads = static_cast<std::uint32_t>(shape.kv_heads);
  const std::size_t pages = (shape.tokens + 15) / 16;
  self.k = TypedPlane(shape.k_type, heads, static_cast<std::uint32_t>(shape.head_size_k));
  self.k.fill(random.normals(shape.tokens * heads * shape.head_size_k, 1.0f),
              16,
              random.permutation(pages));
  self.v = TypedPlane(shape.v_type, heads, static_cast<std::uint32_t>(shape.head_size_v));
  self.v.fill(random.normals(shape.tokens * heads * shape.head_size_v, 1.0f),
              16,
              random.permutation(pages));
  problem.k = dequantised(self.k, shape.tokens, shape.kv_heads, shape.head_size_k);
  problem.v = dequantised(self.v, shape.tokens, shape.kv_heads, shape.head_size_v);
  for (std::size_t row = 0; row < shape.rows; ++row) {
    problem.visible_end.push_back(shape.tokens - shape.rows + row + 1);
  }
  return self;
}

Shape random_shape(Random& random) {
  Shape shape;
  shape.k_type = kTypes[random.below(8)];
  shape.v_type = kTypes[random.below(8)];
  shape.tokens = 8 + random.below(400);
  shape.rows = 1 + random.below(4);
  shape.kv_heads = 1 + random.below(2);
  shape.group = 1 + random.below(3);
  shape.head_size_k = 32 * (1 + random.below(4));
  shape.head_size_v = 32 * (1 + random.below(4));
  shape.spread = random.below(3) == 0 ? 12.0f : 1.0f;
  return shape;
}

// Each option joins with probability one half.
void add_options(Case& self, const Shape& shape, Random& random) {
  oracle::Problem& problem = self.problem;
  if (random.below(2) == 0) {
    for (std::size_t row = 0; row < problem.rows; ++row) {
      problem.window_begin.push_back(random.below(problem.visible_end[row] + 1));
    }
  }
  if (random.below(2) == 0) {
    problem.suffix_count = 1 + random.below(64);
    for (std::size_t row = 0; row < problem.rows; ++row) {
      problem.suffix_mask.push_back(random.below(1ull << 32) << 32 | random.below(1ull << 32));
      problem.visible_end[row] = shape.tokens;
    }
  }
  if (random.below(2) == 0) {
    problem.soft_cap = 5.0;
  }
  if (random.below(2) == 0) {
    for (std::size_t head = 0; head < problem.q_heads; ++head) {
      problem.sinks.push_back(static_cast<double>(random.normal()));
      problem.slopes.push_back(std::exp2(-static_cast<double>(1 + random.below(8))));
    }
  }
  if (random.below(2) == 0 && shape.head_size_v <= shape.head_size_k) {
    problem.v.clear();
  }
}

// Rows that no row of the case sees are overwritten with NaN.
void poison_dead_rows(Case& self) {
  for (std::size_t token = 0; token < oracle::token_count(self.problem); ++token) {
    bool seen = false;
    for (std::size_t row = 0; row < self.problem.rows; ++row) {
      seen = seen || oracle::sees(self.problem, row, token);
    }
    if (!seen) {
      self.k.poison(token);
      self.v.poison(token);
    }
  }
}

std::vector<std::uint32_t> bits_of(const Answer& answer) {
  std::vector<std::uint32_t> bits;
  for (const float value : answer.out) {
    bits.push_back(kvspan_ref_bits_of(value));
  }
  for (const float value : answer.lse) {
    bits.push_back(kvspan_ref_bits_of(value));
  }
  return bits;
}

void expect_e0(const Case& self, const Answer& given) {
  const oracle::Result exact = oracle::attend(self.problem);
  const oracle::Distance distance = oracle::distance(self.problem, exact, given.out, given.lse);
  EXPECT_TRUE(distance.ordinary);
  EXPECT_LE(distance.nmse, kNmseE0);
  EXPECT_LE(distance.max_over_v, kMaxE0);
  EXPECT_LE(distance.lse_max, 1e-5);
}

TEST(Advance, MeetsErrorClassE0OnRandomShapesWithEveryOption) {
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Shape shape = random_shape(random);
    Case self = case_of(shape, random);
    add_options(self, shape, random);
    poison_dead_rows(self);
    Cut cut;
    cut.granule = 1u << random.below(7);
    cut.split_tokens = cut.granule * (1 + random.below(9));
    expect_e0(self, answer(self, cut));
    EXPECT_FALSE(self.strayed);
  }
}

TEST(Advance, MeetsErrorClassE0OnALongHistoryInOneSplit) {
  Random random(7);
  Shape shape;
  shape.tokens = 20000;
  shape.rows = 1;
  Case self = case_of(shape, random);
  Cut cut;
  cut.split_tokens = 1 << 20;
  expect_e0(self, answer(self, cut));
}

TEST(Advance, HasTheSameBitsHoweverASplitIsCut) {
  for (std::uint32_t seed = 1000; seed < 1060; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Shape shape = random_shape(random);
    Case self = case_of(shape, random);
    add_options(self, shape, random);
    Cut cut;
    cut.granule = 1u << random.below(6);
    cut.split_tokens = cut.granule * (2 + random.below(9));
    const std::vector<std::uint32_t> whole = bits_of(answer(self, cut));
    cut.piece = [&] { return 1 + random.below(4); };
    ASSERT_EQ(bits_of(answer(self, cut)), whole);
  }
}

TEST(Advance, HasTheSameBitsWhereverThePagesLie) {
  Random random(5);
  Shape shape;
  shape.tokens = 777;
  Case self = case_of(shape, random);
  Cut cut;
  cut.split_tokens = 256;
  const std::vector<std::uint32_t> scattered = bits_of(answer(self, cut));
  const std::vector<float> k(self.problem.k.begin(), self.problem.k.end());
  const std::vector<float> v(self.problem.v.begin(), self.problem.v.end());
  self.k = TypedPlane(KVSPAN_TYPE_F32, 1, 32);
  self.k.fill(k, 128, random.permutation(7));
  self.v = TypedPlane(KVSPAN_TYPE_F32, 1, 32);
  self.v.fill(v, 64, random.permutation(13));
  EXPECT_EQ(bits_of(answer(self, cut)), scattered);
}

TEST(Advance, WithFusedMultiplyAddHasTheSameBits) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("avx2")) {
    GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
#endif
  for (std::uint32_t seed = 2000; seed < 2060; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Shape shape = random_shape(random);
    Case self = case_of(shape, random);
    add_options(self, shape, random);
    Cut cut;
    cut.split_tokens = 128;
    const std::vector<std::uint32_t> plain = bits_of(answer(self, cut));
    cut.advance = kvspan_test_fused_advance;
    ASSERT_EQ(bits_of(answer(self, cut)), plain);
  }
}

TEST(Advance, TakesAChainShapedMaskForPlainCausality) {
  Random random(11);
  Shape shape;
  shape.tokens = 200;
  shape.rows = 9;
  Case self = case_of(shape, random);
  Cut cut;
  cut.split_tokens = 64;
  const std::vector<std::uint32_t> causal = bits_of(answer(self, cut));
  self.problem.suffix_count = shape.rows;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    self.problem.suffix_mask.push_back((2ull << row) - 1);
    self.problem.visible_end[row] = shape.tokens;
  }
  EXPECT_EQ(bits_of(answer(self, cut)), causal);
}

// All K are 0, so all 16,384 weights are 1; the one V row of 16,384 comes out as exactly 1.
TEST(Advance, FindsTheNeedleInAnyPageExactly) {
  constexpr std::size_t kTokens = 64 * 256;
  Random random(3);
  for (std::size_t page = 0; page < 64; page += 9) {
    const std::size_t needle = page * 256 + random.below(256);
    SCOPED_TRACE("needle at token " + std::to_string(needle));
    std::vector<float> values(kTokens, 0.0f);
    values[needle] = 16384.0f;
    Case self;
    self.problem.rows = self.problem.q_heads = self.problem.kv_heads = 1;
    self.problem.head_size_k = self.problem.head_size_v = 1;
    self.problem.q = {3.0};
    self.problem.k.assign(kTokens, 0.0);
    self.problem.v.assign(values.begin(), values.end());
    self.problem.visible_end = {kTokens};
    self.k = TypedPlane(KVSPAN_TYPE_F16, 1, 1);
    self.k.fill(std::vector<float>(kTokens, 0.0f), 256, random.permutation(64));
    self.v = TypedPlane(KVSPAN_TYPE_F16, 1, 1);
    self.v.fill(values, 256, random.permutation(64));
    Cut cut;
    cut.split_tokens = kTokens / 16;
    const Answer given = answer(self, cut);
    EXPECT_EQ(given.out[0], 1.0f);
    EXPECT_FLOAT_EQ(given.lse[0], std::log(16384.0f));
  }
}

// One row and head of size 1: K = keys, V = values, q = 1.
Case line(const std::vector<float>& keys, const std::vector<float>& values) {
  Case self;
  self.problem.rows = self.problem.q_heads = self.problem.kv_heads = 1;
  self.problem.head_size_k = self.problem.head_size_v = 1;
  self.problem.q = {1.0};
  self.problem.k.assign(keys.begin(), keys.end());
  self.problem.v.assign(values.begin(), values.end());
  self.problem.visible_end = {keys.size()};
  self.k.fill(keys, 64, {0});
  self.v.fill(values, 64, {0});
  return self;
}

TEST(Advance, LeavesAStateThatSeesNothingBitForBit) {
  Case self = line({kInf, -kInf}, {kInf, kInf});
  self.problem.visible_end = {0};
  std::vector<float> floats;
  std::vector<double> sums;
  kvspan_ref_advance_t args = arguments_of(self, 0, 0, floats, sums);
  args.granule = 2;
  float ml[2] = {-0.0f, 1e-45f};
  float u = -0.0f;
  EXPECT_EQ(kvspan_ref_advance(&args, 0, 2, ml, &u), 1);
  EXPECT_EQ(kvspan_ref_bits_of(ml[0]), 0x80000000u);
  EXPECT_EQ(kvspan_ref_bits_of(ml[1]), 1u);
  EXPECT_EQ(kvspan_ref_bits_of(u), 0x80000000u);
  EXPECT_FALSE(self.strayed);
}

TEST(Advance, KeepsAVisibleNanAndGivesScoresOfMinusInfinityNoWeight) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Cut cut;
  cut.split_tokens = cut.granule = 2;
  for (std::size_t place = 0; place < 6; ++place) {
    std::vector<float> keys(6, 0.5f);
    keys[place] = nan;
    Case poisoned = line(keys, std::vector<float>(6, 1.0f));
    EXPECT_TRUE(std::isnan(answer(poisoned, cut).out[0])) << place;
  }
  for (const std::vector<float>& keys :
       {std::vector<float>{nan, nan}, {nan, -kInf}, {-kInf, nan}, {nan, -kInf, -kInf, -kInf}}) {
    Case only = line(keys, std::vector<float>(keys.size(), 1.0f));
    EXPECT_TRUE(std::isnan(answer(only, cut).out[0])) << keys.size();
  }
  Case some =
      line({0.0f, -kInf, -kInf, -kInf, 0.0f, 0.0f}, {3.0f, 90.0f, 90.0f, 90.0f, 6.0f, 9.0f});
  EXPECT_EQ(answer(some, cut).out[0], 6.0f);
  Case none = line({-kInf, -kInf}, {1.0f, 1.0f});
  EXPECT_EQ(answer(none, cut).out[0], 0.0f);
  EXPECT_EQ(answer(none, cut).lse[0], -kInf);
}

TEST(Advance, RefusesAGranuleThatIsNoneAndAStartBesideIt) {
  Case self = line({0.0f, 0.0f}, {1.0f, 1.0f});
  std::vector<float> floats;
  std::vector<double> sums;
  kvspan_ref_advance_t args = arguments_of(self, 0, 0, floats, sums);
  float ml[2] = {-kInf, 0.0f};
  float u = 0.0f;
  for (const std::uint32_t granule : {0u, 3u, 48u, 128u}) {
    args.granule = granule;
    EXPECT_EQ(kvspan_ref_advance(&args, 0, 2, ml, &u), 0) << granule;
  }
  args.granule = 2;
  EXPECT_EQ(kvspan_ref_advance(&args, 1, 2, ml, &u), 0);
  EXPECT_EQ(ml[0], -kInf);
  EXPECT_EQ(kvspan_ref_advance(&args, 0, 1, ml, &u), 1);
  EXPECT_EQ(ml[1], 1.0f);
}

TEST(Visibility, ReadsAnEntryWithItsDefaults) {
  const std::uint64_t ends[] = {5, 9};
  const std::uint64_t begins[] = {1, 2};
  const std::uint64_t masks[] = {1, 2};
  const std::int64_t positions[] = {-7, 70};
  kvspan_entry_t entry = {};
  entry.visible_end = ends;
  entry.suffix_count = 3;
  entry.token_total = 9;
  kvspan_ref_visibility_t visibility = kvspan_ref_visibility_of(&entry, 1);
  EXPECT_EQ(visibility.window_begin, 0u);
  EXPECT_EQ(visibility.visible_end, 9u);
  EXPECT_EQ(visibility.suffix_count, 0u);
  EXPECT_EQ(kvspan_ref_position_of(&entry, 0), 4);
  entry.window_begin = begins;
  entry.suffix_mask = masks;
  entry.positions = positions;
  visibility = kvspan_ref_visibility_of(&entry, 1);
  EXPECT_EQ(kvspan_ref_position_of(&entry, 1), 70);
  std::vector<std::uint64_t> seen;
  for (std::uint64_t token = 0; token < 12; ++token) {
    if (kvspan_ref_sees(&visibility, token)) {
      seen.push_back(token);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{2, 3, 4, 5, 7}));
}

}  // namespace
}  // namespace kvspan::test
