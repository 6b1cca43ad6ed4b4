// SPDX-License-Identifier: Apache-2.0
// The attention kernel of every instruction set that this machine has, called directly: loaders
// against the C reference bit for bit, states against the scalar reference, and that neither cuts
// nor neighbours nor the masked path move a bit. Whole submits: attention_test.cpp.
#include "attention/kernel.hpp"

#include "kvspan/sdk/reference/advance.h"
#include "kvspan/sdk/reference/quant.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvspan::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr kvspan_type_t kTypes[] = {KVSPAN_TYPE_F32,
                                    KVSPAN_TYPE_F16,
                                    KVSPAN_TYPE_BF16,
                                    KVSPAN_TYPE_Q8_0,
                                    KVSPAN_TYPE_Q5_1,
                                    KVSPAN_TYPE_Q5_0,
                                    KVSPAN_TYPE_Q4_1,
                                    KVSPAN_TYPE_Q4_0};

using Random = std::mt19937_64;

float normal(Random& random) {
  return std::normal_distribution<float>(0.0f, 1.0f)(random);
}

uint64_t up_to(Random& random, uint64_t most) {
  return std::uniform_int_distribution<uint64_t>(0, most)(random);
}

// Kernels of every target that was generated and that this machine can run.
std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> found;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    found.push_back(&best_kernels());
  }
  hwy::SetSupportedTargetsForTest(0);
  return found;
}

// A history of one KV head with its rows, all in plain vectors.
class Case {
 public:
  Case(Random& random, uint64_t tokens, uint32_t rows) : tokens_(tokens), rows_(rows) {
    problem.k_type = kTypes[up_to(random, 7)];
    problem.v_type = kTypes[up_to(random, 7)];
    const auto size = [&](kvspan_type_t type) {
      const uint32_t step = kvspan_ref_block(type).elements == 1 ? 8 : 32;
      return step * static_cast<uint32_t>(1 + up_to(random, 256 / step - 1));
    };
    problem.head_size_k = size(problem.k_type);
    problem.head_size_v = size(problem.v_type);
    problem.group = static_cast<uint32_t>(1 + up_to(random, 4));
    problem.q_heads = problem.group;
    problem.kv_heads = 1;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_size_k));
    k_bytes_ = kvspan_ref_row_bytes(problem.k_type, problem.head_size_k);
    v_bytes_ = kvspan_ref_row_bytes(problem.v_type, problem.head_size_v);
    k_ = fill(random, problem.k_type, problem.head_size_k);
    v_ = fill(random, problem.v_type, problem.head_size_v);
    q_.resize(size_t{rows} * problem.group * problem.head_size_k);
    for (float& element : q_) {
      element = normal(random);
    }
    entry.visible_end = visible_end.data();
    span_.first_token = 0;
    span_.token_count = tokens;
    span_.k = {k_.data(), nullptr, 0, k_bytes_, 0, 0};
    span_.v = {v_.data(), nullptr, 0, v_bytes_, 0, 0};
    visible_end.assign(rows, tokens);
    window_begin.assign(rows, 0);
    suffix_mask.assign(rows, 0);
    entry.spans = &span_;
    entry.span_count = 1;
    entry.visible_end = visible_end.data();
    entry.window_begin = window_begin.data();
    entry.row_count = rows;
    entry.token_total = tokens;
    entry.split_tokens = (tokens + 31) / 32 * 32;
    entry.q = {reinterpret_cast<uint8_t*>(q_.data()),
               uint64_t{problem.group} * problem.head_size_k * 4,
               uint64_t{problem.head_size_k} * 4,
               KVSPAN_TYPE_F32};
  }

  // Rows see random ranges and, every other time, a random suffix.
  void hide(Random& random) {
    for (uint32_t row = 0; row < rows_; ++row) {
      visible_end[row] = up_to(random, tokens_);
      window_begin[row] = up_to(random, 1) == 0 ? 0 : up_to(random, tokens_);
      suffix_mask[row] = random();
    }
    entry.suffix_count = static_cast<uint32_t>(up_to(random, tokens_ < 64 ? tokens_ : 64));
    entry.suffix_mask = up_to(random, 1) == 0 ? nullptr : suffix_mask.data();
  }

  [[nodiscard]] PairTile tile(uint64_t first_pair, uint32_t pairs) const {
    return {&problem, &entry, first_pair, pairs, 0};
  }

  [[nodiscard]] uint32_t pairs() const { return rows_ * problem.group; }

  [[nodiscard]] uint64_t tokens() const { return tokens_; }

  // The scalar reference's state of one pair: m, l, u.
  [[nodiscard]] std::vector<float> reference(uint32_t pair) const {
    const uint32_t row = pair / problem.group;
    kvspan_ref_advance_t args{};
    args.q = q_.data() + size_t{pair} * problem.head_size_k;
    args.k = [](void* self, uint64_t token, float* scratch) {
      const Case& one = *static_cast<const Case*>(self);
      kvspan_ref_decode_row(one.problem.k_type,
                            one.k_.data() + token * one.k_bytes_,
                            one.problem.head_size_k,
                            scratch);
      return static_cast<const float*>(scratch);
    };
    args.v = [](void* self, uint64_t token, float* scratch) {
      const Case& one = *static_cast<const Case*>(self);
      kvspan_ref_decode_row(one.problem.v_type,
                            one.v_.data() + token * one.v_bytes_,
                            one.problem.head_size_v,
                            scratch);
      return static_cast<const float*>(scratch);
    };
    std::vector<float> k_scratch(problem.head_size_k);
    std::vector<float> v_scratch(problem.head_size_v);
    std::vector<double> sums(problem.head_size_v);
    args.context = const_cast<Case*>(this);
    args.k_scratch = k_scratch.data();
    args.v_scratch = v_scratch.data();
    args.sums = sums.data();
    args.visibility = {window_begin[row],
                       visible_end[row],
                       tokens_,
                       entry.suffix_mask != nullptr ? suffix_mask[row] : 0,
                       entry.suffix_mask != nullptr ? entry.suffix_count : 0};
    args.head_size_k = problem.head_size_k;
    args.head_size_v = problem.head_size_v;
    args.granule = kGranuleTokens;
    args.scale = problem.scale;
    args.soft_cap = problem.soft_cap;
    if (problem.slopes != nullptr) {
      args.slope = problem.slopes[pair % problem.group];
      args.position = static_cast<int64_t>(visible_end[row]) - 1;
    }
    std::vector<float> state(2 + problem.head_size_v);
    kvspan_ref_state_clear(state.data(), state.data() + 2, problem.head_size_v);
    EXPECT_EQ(kvspan_ref_advance(&args, 0, tokens_, state.data(), state.data() + 2), 1);
    return state;
  }

  Problem problem{};
  EntryView entry{};
  std::vector<uint64_t> visible_end;
  std::vector<uint64_t> window_begin;
  std::vector<uint64_t> suffix_mask;

 private:
  [[nodiscard]] std::vector<uint8_t> fill(Random& random, kvspan_type_t type, uint32_t size) const {
    const uint64_t bytes = kvspan_ref_row_bytes(type, size);
    std::vector<uint8_t> rows(bytes * tokens_);
    std::vector<float> row(size);
    for (uint64_t token = 0; token < tokens_; ++token) {
      for (float& element : row) {
        element = normal(random);
      }
      kvspan_ref_encode_row(type, row.data(), size, rows.data() + token * bytes);
    }
    return rows;
  }

  uint64_t tokens_;
  uint32_t rows_;
  uint64_t k_bytes_ = 0;
  uint64_t v_bytes_ = 0;
  std::vector<uint8_t> k_;
  std::vector<uint8_t> v_;
  std::vector<float> q_;
  SpanView span_{};
};

class Memory {
 public:
  Memory() : block_(new (std::align_val_t{64}) uint8_t[Scratch::bytes()]) {
    std::memset(block_, 0xFF, Scratch::bytes());  // NaN everywhere: nothing stale may be used
    scratch = Scratch::bind(block_);
  }

  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&&) = delete;
  Memory& operator=(Memory&&) = delete;

  ~Memory() { operator delete[](block_, std::align_val_t{64}); }

  Scratch scratch{};

 private:
  uint8_t* block_;
};

// States [pair, m l u] of a tile walked over `cuts` (ascending, from 0 to the end).
std::vector<std::vector<float>> walked(const Kernels& kernels,
                                       const Case& one,
                                       const PairTile& tile,
                                       const std::vector<uint64_t>& cuts) {
  Memory memory;
  Scratch& scratch = memory.scratch;
  const uint32_t size = one.problem.head_size_v;
  kernels.load_queries(tile, scratch);
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    scratch.m[p] = kMinusInfinity;
    scratch.l[p] = 0.0f;
    std::memset(scratch.u + p * padded(size), 0, 4 * padded(size));
  }
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    kernels.walk(tile, cuts[i], cuts[i + 1], scratch);
  }
  std::vector<std::vector<float>> states;
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    std::vector<float> state{scratch.m[p], scratch.l[p]};
    const float* const u = scratch.u + p * padded(size);
    state.insert(state.end(), u, u + size);
    states.push_back(std::move(state));
  }
  return states;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

// Calls body(kernels, seed) for every target and seed.
template <class Body>
void for_each_kernel(uint64_t seeds, const Body& body) {
  const std::vector<const Kernels*> kernels = all_kernels();
  ASSERT_FALSE(kernels.empty());
  for (const Kernels* one : kernels) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(std::string(hwy::TargetName(one->target)) + " seed " + std::to_string(seed));
      body(*one, seed);
    }
  }
}

TEST(Kernel, LoadsRowsWithTheBitsOfTheReference) {
  for_each_kernel(20, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    for (const kvspan_type_t type : kTypes) {
      const uint32_t step = kvspan_ref_block(type).elements == 1 ? 8 : 32;
      const uint32_t elements = step * static_cast<uint32_t>(1 + up_to(random, 256 / step - 1));
      std::vector<uint8_t> row(kvspan_ref_row_bytes(type, elements));
      for (uint8_t& byte : row) {
        byte = static_cast<uint8_t>(random());  // Inf, NaN and subnormal scales included
      }
      alignas(64) float actual[kHeadSizeMax];
      float expected[kHeadSizeMax];
      kernels.load_row(type, row.data(), elements, actual);
      kvspan_ref_decode_row(type, row.data(), elements, expected);
      for (uint32_t i = 0; i < elements; ++i) {
        if (std::isnan(expected[i])) {
          EXPECT_TRUE(std::isnan(actual[i])) << "type " << type << " element " << i;
        } else {
          EXPECT_EQ(kvspan_ref_bits_of(actual[i]), kvspan_ref_bits_of(expected[i]))
              << "type " << type << " element " << i;
        }
      }
    }
  });
}

TEST(Kernel, LoadsEveryHalfWithTheBitsOfTheReference) {
  for_each_kernel(1, [](const Kernels& kernels, uint64_t) {
    for (uint32_t first = 0; first < 65536; first += 8) {
      uint16_t row[8];
      alignas(64) float actual[16];
      for (uint32_t i = 0; i < 8; ++i) {
        row[i] = static_cast<uint16_t>(first + i);
      }
      kernels.load_row(KVSPAN_TYPE_F16, reinterpret_cast<const uint8_t*>(row), 8, actual);
      for (uint32_t i = 0; i < 8; ++i) {
        ASSERT_EQ(kvspan_ref_bits_of(actual[i]),
                  kvspan_ref_bits_of(kvspan_ref_f32_from_f16(row[i])))
            << row[i];
      }
    }
  });
}

// Distance of a state from the reference: both are brought to the same m.
void expect_close(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (expected[0] == kMinusInfinity) {
    EXPECT_TRUE(same_bits(actual, expected)) << "a state that saw nothing is neutral";
    return;
  }
  EXPECT_NEAR(actual[0], expected[0], 2e-5 * (1.0 + std::abs(expected[0])));
  const double shift = std::exp(static_cast<double>(actual[0]) - expected[0]);
  EXPECT_NEAR(actual[1] * shift / expected[1], 1.0, 2e-5);
  double error = 0.0;
  double power = 0.0;
  for (size_t i = 2; i < expected.size(); ++i) {
    const double difference = actual[i] * shift - expected[i];
    error += difference * difference;
    power += static_cast<double>(expected[i]) * expected[i];
  }
  EXPECT_LE(error, 1e-11 * power + 1e-20);
}

TEST(Kernel, AdvancesStatesAsTheReferenceDoes) {
  for_each_kernel(25, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    Case one(random, 1 + up_to(random, 400), static_cast<uint32_t>(1 + up_to(random, 12)));
    std::vector<float> slopes(one.problem.group, 0.0f);
    one.hide(random);
    one.problem.soft_cap = up_to(random, 1) == 0 ? 0.0f : 5.0f;
    if (up_to(random, 1) == 0) {
      for (float& slope : slopes) {
        slope = 0.02f * static_cast<float>(1 + up_to(random, 9));
      }
      one.problem.slopes = slopes.data();
    }
    const auto states = walked(kernels, one, one.tile(0, one.pairs()), {0, one.tokens()});
    for (uint32_t pair = 0; pair < one.pairs(); ++pair) {
      SCOPED_TRACE("pair " + std::to_string(pair));
      expect_close(states[pair], one.reference(pair));
    }
  });
}

TEST(Kernel, DoesNotShowCutsOnTheGranule) {
  for_each_kernel(25, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    Case one(random, 1 + up_to(random, 600), static_cast<uint32_t>(1 + up_to(random, 8)));
    one.hide(random);
    std::vector<uint64_t> cuts{0};
    while (cuts.back() < one.tokens()) {
      const uint64_t next = cuts.back() + kGranuleTokens * (1 + up_to(random, 3));
      cuts.push_back(next < one.tokens() ? next : one.tokens());
    }
    const PairTile tile = one.tile(0, one.pairs());
    const auto whole = walked(kernels, one, tile, {0, one.tokens()});
    const auto parts = walked(kernels, one, tile, cuts);
    for (uint32_t pair = 0; pair < one.pairs(); ++pair) {
      EXPECT_TRUE(same_bits(whole[pair], parts[pair])) << "pair " << pair;
    }
  });
}

// A pair alone, a pair in a tile, a pair beside one that sees less (so that its block leaves the
// fast product): always the same bits.
TEST(Kernel, GivesAPairTheSameBitsWhateverRidesAlong) {
  for_each_kernel(25, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    Case one(random, 1 + up_to(random, 300), static_cast<uint32_t>(2 + up_to(random, 14)));
    for (uint32_t row = 0; row < one.entry.row_count; ++row) {
      one.visible_end[row] = up_to(random, 2) == 0 ? up_to(random, one.tokens()) : one.tokens();
    }
    const auto together = walked(kernels, one, one.tile(0, one.pairs()), {0, one.tokens()});
    for (uint32_t pair = 0; pair < one.pairs(); ++pair) {
      const auto alone = walked(kernels, one, one.tile(pair, 1), {0, one.tokens()});
      EXPECT_TRUE(same_bits(together[pair], alone[0])) << "pair " << pair;
    }
  });
}

TEST(Kernel, SumsANeedleExactly) {
  for_each_kernel(1, [](const Kernels& kernels, uint64_t) {
    constexpr uint64_t kTokens = 16384;
    for (const uint64_t needle : {uint64_t{0}, uint64_t{31}, uint64_t{8191}, kTokens - 1}) {
      std::vector<uint16_t> k(kTokens * 8, 0);
      std::vector<uint16_t> v(kTokens * 8, 0);
      v[needle * 8 + 3] = kvspan_ref_f16_from_f32(16384.0f);
      std::vector<float> q(8, 1.5f);
      const uint64_t visible = kTokens;
      const SpanView span{0,
                          kTokens,
                          {reinterpret_cast<uint8_t*>(k.data()), nullptr, 0, 16, 0, 0},
                          {reinterpret_cast<uint8_t*>(v.data()), nullptr, 0, 16, 0, 0}};
      Problem problem{};
      problem.k_type = KVSPAN_TYPE_F16;
      problem.v_type = KVSPAN_TYPE_F16;
      problem.head_size_k = 8;
      problem.head_size_v = 8;
      problem.q_heads = problem.kv_heads = problem.group = 1;
      problem.scale = 0.25f;
      EntryView entry{};
      entry.spans = &span;
      entry.span_count = 1;
      entry.visible_end = &visible;
      entry.row_count = 1;
      entry.token_total = kTokens;
      entry.q = {reinterpret_cast<uint8_t*>(q.data()), 32, 32, KVSPAN_TYPE_F32};
      Memory memory;
      Scratch& scratch = memory.scratch;
      const PairTile tile{&problem, &entry, 0, 1, 0};
      kernels.load_queries(tile, scratch);
      scratch.m[0] = kMinusInfinity;
      scratch.l[0] = 0.0f;
      std::memset(scratch.u, 0, 4 * padded(8));
      kernels.walk(tile, 0, kTokens, scratch);
      float out[8];
      const float lse = kernels.finish({scratch.u, scratch.m[0], scratch.l[0]},
                                       nullptr,
                                       8,
                                       KVSPAN_TYPE_F32,
                                       reinterpret_cast<uint8_t*>(out));
      EXPECT_EQ(out[3], 1.0f);
      EXPECT_EQ(out[2], 0.0f);
      EXPECT_FLOAT_EQ(lse, std::log(16384.0f));
    }
  });
}

TEST(Kernel, FoldsLikeTheReferenceAndSkipsNeutralStates) {
  for_each_kernel(20, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    constexpr uint32_t kSize = 72;
    float ml[2] = {kMinusInfinity, 0.0f};
    float u[kSize] = {};
    float expected_ml[2] = {kMinusInfinity, 0.0f};
    float expected_u[kSize] = {};
    for (int split = 0; split < 6; ++split) {
      float source_ml[2] = {10.0f * normal(random), 1.0f + std::abs(normal(random))};
      float source_u[kSize];
      for (float& element : source_u) {
        element = normal(random);
      }
      if (up_to(random, 2) == 0) {
        kvspan_ref_state_clear(source_ml, source_u, kSize);
      }
      float before[2 + kSize];
      std::memcpy(before, ml, sizeof ml);
      std::memcpy(before + 2, u, sizeof u);
      kernels.fold({u, ml, ml + 1}, {source_u, source_ml[0], source_ml[1]}, kSize);
      kvspan_ref_state_fold(expected_ml, expected_u, source_ml, source_u, kSize);
      if (source_ml[0] == kMinusInfinity) {
        EXPECT_EQ(std::memcmp(before, ml, sizeof ml), 0);
        EXPECT_EQ(std::memcmp(before + 2, u, sizeof u), 0);
      }
      if (before[0] == kMinusInfinity && source_ml[0] != kMinusInfinity) {
        EXPECT_EQ(std::memcmp(source_u, u, sizeof u), 0);
      }
    }
    EXPECT_EQ(ml[0], expected_ml[0]);
    EXPECT_NEAR(ml[1], expected_ml[1], 1e-5 * expected_ml[1]);
    for (uint32_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(u[i], expected_u[i], 1e-5 * (1.0 + std::abs(expected_u[i])));
    }
  });
}

TEST(Kernel, KeepsNaNThatARowReallySees) {
  for_each_kernel(4, [](const Kernels& kernels, uint64_t seed) {
    Random random(seed);
    Case one(random, 100, 2);
    std::vector<float> q(one.problem.head_size_k * one.problem.group * 2, 1.0f);
    q[0] = std::numeric_limits<float>::quiet_NaN();
    one.entry.q.base = reinterpret_cast<uint8_t*>(q.data());
    const auto states = walked(kernels, one, one.tile(0, one.pairs()), {0, one.tokens()});
    EXPECT_TRUE(std::isnan(states[0][0]) && std::isnan(states[0][1]) && std::isnan(states[0][2]));
    EXPECT_FALSE(std::isnan(states.back()[1]));
  });
}

}  // namespace
}  // namespace kvspan::cpu
