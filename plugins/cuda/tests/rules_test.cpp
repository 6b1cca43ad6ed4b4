// SPDX-License-Identifier: Apache-2.0
// What is offered on cards of each kind, without one: everything but heads whose granule does not
// fit a block's shared memory, and what is offered fits.
#include "attention/rules.hpp"

#include "kvspan/sdk/reference/quant.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::cuda {
namespace {

// Compute capability, multiprocessors and shared memory of a card of each kind.
constexpr Card kCards[] = {{75, 68, 64 * 1024},
                           {80, 108, kShared163KiB},
                           {86, 84, kShared99KiB},
                           {89, 128, kShared99KiB},
                           {90, 132, kShared227KiB},
                           {100, 148, kShared227KiB},
                           {120, 170, kShared99KiB}};

constexpr Card kH200 = kCards[4];

constexpr kvspan_type_t kTypes[] = {KVSPAN_TYPE_F32,
                                    KVSPAN_TYPE_F16,
                                    KVSPAN_TYPE_BF16,
                                    KVSPAN_TYPE_Q8_0,
                                    KVSPAN_TYPE_Q5_1,
                                    KVSPAN_TYPE_Q5_0,
                                    KVSPAN_TYPE_Q4_1,
                                    KVSPAN_TYPE_Q4_0};

kvspan_attention_shape_t shape_of(kvspan_type_t k,
                                  kvspan_type_t v,
                                  uint32_t k_size,
                                  uint32_t v_size) {
  kvspan_attention_shape_t shape{};
  shape.struct_size = sizeof shape;
  shape.k_type = k;
  shape.v_type = v;
  shape.q_type = KVSPAN_TYPE_F16;
  shape.out_type = KVSPAN_TYPE_F32;
  shape.head_size_k = k_size;
  shape.head_size_v = v_size;
  shape.q_heads = 24;
  shape.kv_heads = 4;
  shape.row_class = KVSPAN_ROWS_DECODE;
  shape.error_class = KVSPAN_ERROR_E1;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 8;
  shape.entries_max = shape.items_max = shape.spans_max = 4;
  shape.tokens_max = 1000;
  return shape;
}

Problem problem_of(const kvspan_attention_shape_t& shape) {
  Problem problem{};
  problem.k_type = shape.k_type;
  problem.v_type = shape.v_type;
  problem.head_size_k = shape.head_size_k;
  problem.head_size_v = shape.head_size_v;
  problem.q_heads = shape.q_heads;
  problem.kv_heads = shape.kv_heads;
  problem.group = shape.q_heads / shape.kv_heads;
  return problem;
}

bool is_offered(const Card& card, const kvspan_attention_shape_t& shape) {
  kvspan_attention_caps_t caps{};
  EXPECT_TRUE(answer(card, shape, caps));
  return caps.level == KVSPAN_LEVEL_NATIVE;
}

template <class Visit>
void for_each_shape(Visit&& visit) {
  for (const kvspan_type_t k : kTypes) {
    for (const kvspan_type_t v : kTypes) {
      for (uint32_t k_size = 16; k_size <= kHeadSizeMax; k_size += 16) {
        for (const uint32_t v_size : {k_size, 64u, 128u, 256u}) {
          const bool whole = k_size % kvspan_ref_block(k).elements == 0 &&
                             v_size % kvspan_ref_block(v).elements == 0;
          if (!whole) {
            continue;
          }
          visit(shape_of(k, v, k_size, v_size));
        }
      }
    }
  }
}

TEST(Rules, WhatIsOfferedFitsTheCard) {
  for (const Card& card : kCards) {
    SCOPED_TRACE(card.capability);
    uint32_t offered = 0;
    for_each_shape([&](kvspan_attention_shape_t shape) {
      for (const uint32_t row_class : {KVSPAN_ROWS_DECODE, KVSPAN_ROWS_PREFILL}) {
        for (const uint32_t error_class : {KVSPAN_ERROR_E0, KVSPAN_ERROR_E1}) {
          shape.row_class = row_class;
          shape.error_class = error_class;
          if (!is_offered(card, shape)) {
            continue;
          }
          ++offered;
          const Problem problem = problem_of(shape);
          switch (kernel_of(card, shape)) {
            case Kernel::f32:
              ASSERT_GE(walk_tile_pairs(problem, card), 1u)
                  << shape.k_type << " " << shape.v_type << " " << shape.head_size_k;
              break;
            case Kernel::tensor:
              for (const uint64_t pairs : {1u, 8u, 9u, 24u, 48u, 64u, 1000u}) {
                for (const kvspan_type_t q : {KVSPAN_TYPE_F32, KVSPAN_TYPE_F16}) {
                  const uint32_t tile = tensor_tile_pairs(problem, pairs, q, card);
                  ASSERT_TRUE(tile >= 8 && tile <= kTensorPairsMax && tile % 8 == 0) << tile;
                }
              }
              break;
            case Kernel::wide:
              EXPECT_EQ(card.capability, 90u);
              break;
          }
        }
      }
    });
    EXPECT_GT(offered, 1000u);
  }
}

// The only shapes that are not offered are heads too large for a granule of one pair, and a head of
// one step more would not fit either: no card is told less than it can.
TEST(Rules, NothingElseIsRefused) {
  for (const Card& card : kCards) {
    SCOPED_TRACE(card.capability);
    for_each_shape([&](kvspan_attention_shape_t shape) {
      shape.error_class = KVSPAN_ERROR_E0;
      if (shape.head_size_k == shape.head_size_v && shape.k_type == shape.v_type) {
        const bool fits = walk_tile_pairs(problem_of(shape), card) != 0;
        if (shape.k_type == KVSPAN_TYPE_F32 || shape.k_type == KVSPAN_TYPE_F16) {
          EXPECT_EQ(is_offered(card, shape), fits)
              << shape.k_type << " of " << shape.head_size_k << " elements";
        } else {
          EXPECT_TRUE(!is_offered(card, shape) || fits);
        }
      }
      // Beside a quantised side the other goes in steps of 32 too.
      const bool floats = kvspan_ref_block(shape.k_type).elements == 1 &&
                          kvspan_ref_block(shape.v_type).elements == 1;
      if (card.shared_bytes >= kShared163KiB &&
          (floats || (shape.head_size_k | shape.head_size_v) % 32 == 0)) {
        EXPECT_TRUE(is_offered(card, shape)) << shape.k_type << " " << shape.v_type;
      }
    });
  }
}

// What models use is offered everywhere, but for the largest heads on the smallest cards.
TEST(Rules, UsualHeadsAreOfferedEverywhere) {
  for (const Card& card : kCards) {
    for (const uint32_t size : {64u, 128u, 256u}) {
      for (const auto& [k, v] : {std::pair{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16},
                                 {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0},
                                 {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0},
                                 {KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0}}) {
        const bool too_large = card.capability == 75 && size == 256;
        EXPECT_EQ(is_offered(card, shape_of(k, v, size, size)), !too_large)
            << card.capability << " of " << size;
      }
    }
  }
}

// Bits of the card that is measured depend on these.
TEST(Rules, AnH200IsAnsweredAsEver) {
  kvspan_attention_caps_t caps{};
  kvspan_attention_shape_t shape = shape_of(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256);
  ASSERT_TRUE(answer(kH200, shape, caps));
  EXPECT_EQ(caps.split_count, 33u);
  EXPECT_EQ(caps.span_granule, 64u);
  EXPECT_EQ(kernel_of(kH200, shape), Kernel::tensor);
  EXPECT_EQ(tensor_tile_pairs(problem_of(shape), 6, KVSPAN_TYPE_F16, kH200), 8u);
  EXPECT_EQ(tensor_tile_pairs(problem_of(shape), 48, KVSPAN_TYPE_F16, kH200), 48u);
  EXPECT_EQ(tensor_tile_pairs(problem_of(shape), 64, KVSPAN_TYPE_F16, kH200), 64u);
  EXPECT_EQ(tensor_tile_pairs(problem_of(shape), 64, KVSPAN_TYPE_F32, kH200), 48u);
  EXPECT_EQ(walk_tile_pairs(problem_of(shape), kH200), 16u);
  shape.row_class = KVSPAN_ROWS_PREFILL;
  ASSERT_TRUE(answer(kH200, shape, caps));
  EXPECT_EQ(caps.split_count, 8u);
  EXPECT_EQ(kernel_of(kH200, shape), Kernel::wide);
  shape.head_size_k = shape.head_size_v = 64;
  EXPECT_EQ(kernel_of(kH200, shape), Kernel::tensor);
  EXPECT_EQ(tensor_tile_pairs(problem_of(shape), 64, KVSPAN_TYPE_F16, kH200), 24u);
}

TEST(Rules, TensorCoresAreUsedWhereTheyAre) {
  const kvspan_attention_shape_t shape = shape_of(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256);
  for (const Card& card : kCards) {
    EXPECT_EQ(kernel_of(card, shape), card.capability < 80 ? Kernel::f32 : Kernel::tensor)
        << card.capability;
  }
}

}  // namespace
}  // namespace kvspan::cuda
