// SPDX-License-Identifier: Apache-2.0
// Golden sizes of pages and histories, the page's inner order, and refusals. The numbers are facts
// of the format: they follow from block sizes by hand.
#include "kvspan/core/layout/geometry.hpp"

#include "kvspan/core/error.hpp"
#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/layout/kv_type.hpp"
#include "kvspan/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint64_t kGiB = 1024 * kMiB;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

__extension__ using Wide = unsigned __int128;  // the oracle of the checked arithmetic

// 4 KV heads of 256 elements: K and V rows of 1,024 elements a token.
LayerGeometry wide_layer(kvspan_type_t k_type, kvspan_type_t v_type) {
  return {k_type, v_type, 256, 256, 4, 24};
}

TEST(Geometry, PageOfQ8KeysAndQ4Values) {
  const auto page = page_layout(wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0), 256, 128);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->page_tokens, 256u);
  EXPECT_EQ(page->k_row_bytes, 272u);
  EXPECT_EQ(page->v_row_bytes, 144u);
  EXPECT_EQ(page->k_token_bytes, 1088u);
  EXPECT_EQ(page->v_token_bytes, 576u);
  EXPECT_EQ(page->tile_tokens, 64u);
  EXPECT_EQ(page->k_head_bytes, 17408u);
  EXPECT_EQ(page->v_head_bytes, 9216u);
  EXPECT_EQ(page->k_tile_bytes, 69632u);
  EXPECT_EQ(page->v_offset, 69632u);
  EXPECT_EQ(page->v_tile_bytes, 36864u);
  EXPECT_EQ(page->tile_bytes, 106496u);
  EXPECT_EQ(page->page_bytes, 425984u);
}

TEST(Geometry, EveryPairOfTypesHasTheSumOfItsPlanes) {
  const std::vector<std::pair<kvspan_type_t, std::uint64_t>> planes = {
      {KVSPAN_TYPE_F32, 1048576},
      {KVSPAN_TYPE_F16, 524288},
      {KVSPAN_TYPE_BF16, 524288},
      {KVSPAN_TYPE_Q8_0, 278528},
      {KVSPAN_TYPE_Q5_1, 196608},
      {KVSPAN_TYPE_Q5_0, 180224},
      {KVSPAN_TYPE_Q4_1, 163840},
      {KVSPAN_TYPE_Q4_0, 147456},
  };
  ASSERT_EQ(planes.size(), kv_types().size());
  for (const auto& [k_type, k_bytes] : planes) {
    for (const auto& [v_type, v_bytes] : planes) {
      SCOPED_TRACE(std::to_string(k_type) + " x " + std::to_string(v_type));
      const auto page = page_layout(wide_layer(k_type, v_type), 256, 128);
      ASSERT_TRUE(page);
      EXPECT_EQ(4 * page->k_tile_bytes, k_bytes);
      EXPECT_EQ(4 * page->v_tile_bytes, v_bytes);
      EXPECT_EQ(page->page_bytes, k_bytes + v_bytes);
    }
  }
}

TEST(Geometry, LayersOfOneHistoryMayHaveDifferentPages) {
  const Geometry geometry{{wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0),
                           wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0),
                           wide_layer(KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0),
                           wide_layer(KVSPAN_TYPE_F16, KVSPAN_TYPE_F16)}};
  const auto pages = page_layouts(geometry);
  ASSERT_TRUE(pages);
  std::vector<std::uint64_t> bytes;
  for (const PageLayout& page : *pages) {
    bytes.push_back(page.page_bytes);
  }
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{557056, 425984, 294912, 1048576}));
}

TEST(Geometry, HistoryOf262144Tokens) {
  const Geometry one{{wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0)}};
  EXPECT_EQ(live_bytes(one, 262144), 416 * kMiB);
  const Geometry sixteen{{16, wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0)}};
  EXPECT_EQ(live_bytes(sixteen, 262144), 6979321856u);
  const Geometry seventeen{{17, wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0)}};
  EXPECT_EQ(live_bytes(seventeen, 262144), 7072 * kMiB);
  EXPECT_EQ(live_bytes(seventeen, 1), 28288u);
  const Geometry bf16{{16, wide_layer(KVSPAN_TYPE_BF16, KVSPAN_TYPE_BF16)}};
  EXPECT_EQ(live_bytes(bf16, 1), 65536u);
  EXPECT_EQ(live_bytes(bf16, 262144), 16 * kGiB);
}

TEST(Geometry, PagesThatFitAnArena) {
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> frames = {
      {512, 1260}, {2874, 7074}, {3971, 9774}, {3978, 9792}};
  for (const auto& [mebibytes, pages] : frames) {
    SCOPED_TRACE(mebibytes);
    // One more page than fit needs a second parent of that size.
    const auto fit = pages_per_parent(pages, 425984, mebibytes * kMiB);
    ASSERT_TRUE(fit);
    EXPECT_EQ(fit->size(), 1u);
    EXPECT_EQ(pages_per_parent(pages + 1, 425984, mebibytes * kMiB).value(),
              (std::vector<std::uint64_t>{pages, 1}));
  }
}

TEST(Geometry, NoPageStraddlesTwoParents) {
  EXPECT_EQ(pages_per_parent(16384, 425984, 4294967295).value(),
            (std::vector<std::uint64_t>{10082, 6302}));
  EXPECT_EQ(pages_per_parent(20164, 425984, 4294967295).value(),
            (std::vector<std::uint64_t>{10082, 10082}));
  EXPECT_TRUE(pages_per_parent(0, 425984, 4294967295).value().empty());
}

TEST(Geometry, PageLargerThanAnAllocationIsRefusedWithTheShortfall) {
  EXPECT_EQ(pages_per_parent(3, 425984, 425984).value(), (std::vector<std::uint64_t>{1, 1, 1}));
  const auto parents = pages_per_parent(3, 425984, 425983);
  ASSERT_FALSE(parents);
  EXPECT_EQ(parents.error().code, Errc::too_large);
  EXPECT_EQ(parents.error().required, 425984u);
  EXPECT_EQ(parents.error().provided, 425983u);
  EXPECT_EQ(parents.error().missing, 1u);
  EXPECT_EQ(pages_per_parent(1, 0, 1).error().code, Errc::invalid_argument);
}

TEST(Geometry, LatentAttentionHasNoValuePlane) {
  LayerGeometry latent{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 576, 512, 1, 128};
  latent.v_in_k = true;
  const auto page = page_layout(latent, 64, 128);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->k_row_bytes, 1152u);
  EXPECT_EQ(page->v_row_bytes, 1024u);
  EXPECT_EQ(page->k_tile_bytes, 73728u);
  EXPECT_EQ(page->page_bytes, 73728u);
  EXPECT_EQ(page->v_offset, 0u);
  EXPECT_EQ(page->v_token_bytes, 0u);
  EXPECT_EQ(page->v_tile_bytes, 0u);
  const Geometry geometry{{61, latent}, 64};
  EXPECT_EQ(live_bytes(geometry, 163840), 11513364480u);  // 10.723 GiB
}

TEST(Geometry, WindowedLayersWeighTheirWindow) {
  LayerGeometry full{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 16, 16};
  LayerGeometry windowed = full;
  windowed.window_tokens = 1024;
  Geometry geometry{{10, full}};
  geometry.layers.insert(geometry.layers.end(), 52, windowed);
  EXPECT_EQ(live_bytes(geometry, 131072), 10 * kGiB + 52 * 8 * kMiB);  // 10.406 GiB
  EXPECT_EQ(live_bytes(geometry, 512), 62 * 4 * kMiB);
  const Geometry narrow{{28, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 8, 16}}};
  EXPECT_EQ(live_bytes(narrow, 40960), 4 * kGiB + 384 * kMiB);  // 4.375 GiB
}

TEST(Geometry, TailPageCountsAsAPage) {
  EXPECT_EQ(page_count(0, 256), 0u);
  EXPECT_EQ(page_count(1, 256), 1u);
  EXPECT_EQ(page_count(256, 256), 1u);
  EXPECT_EQ(page_count(257, 256), 2u);
  EXPECT_EQ(page_count(262144, 256), 1024u);
  EXPECT_EQ(page_count(kMost, 1), kMost);
  EXPECT_EQ(page_count(1, 0).error().code, Errc::invalid_argument);
}

TEST(Geometry, TilesArePaddedToTheAlignmentAndNoFurther) {
  std::mt19937_64 random(20240711);
  SCOPED_TRACE("seed 20240711");
  const auto up_to = [&random](std::uint64_t most) { return 1 + random() % most; };
  for (int round = 0; round < 4000; ++round) {
    LayerGeometry layer{};
    const auto types = kv_types();
    layer.k_type = types[random() % types.size()].id;
    layer.v_type = types[random() % types.size()].id;
    layer.head_size_k = static_cast<std::uint32_t>(32 * up_to(10));
    layer.head_size_v = static_cast<std::uint32_t>(32 * up_to(10));
    layer.kv_heads = static_cast<std::uint32_t>(up_to(9));
    layer.q_heads = layer.kv_heads * static_cast<std::uint32_t>(up_to(8));
    const auto page_tokens = static_cast<std::uint32_t>(up_to(300));
    const std::uint64_t alignment = std::uint64_t{1} << (random() % 13);
    const std::uint32_t tile_max = 1U << (random() % 8);
    const std::uint64_t row_alignment = std::min(alignment, std::uint64_t{1} << (random() % 10));
    const auto page = page_layout(layer, page_tokens, alignment, tile_max, row_alignment);
    ASSERT_TRUE(page) << page.error().message;
    const std::uint32_t tile = page->tile_tokens;
    ASSERT_EQ(page->k_row_bytes % row_alignment, 0u);
    ASSERT_EQ(page->v_row_bytes % row_alignment, 0u);
    ASSERT_LT(page->k_row_bytes - row_bytes(layer.k_type, layer.head_size_k).value(),
              row_alignment);
    ASSERT_LT(page->v_row_bytes - row_bytes(layer.v_type, layer.head_size_v).value(),
              row_alignment);
    ASSERT_LE(tile, tile_max);
    ASSERT_EQ(page_tokens % tile, 0u);
    ASSERT_TRUE(tile == page_tokens || tile == tile_max || page_tokens / tile % 2 == 1);
    ASSERT_EQ(page->k_tile_bytes, page->k_row_bytes * layer.kv_heads * tile);
    ASSERT_EQ(page->v_tile_bytes, page->v_row_bytes * layer.kv_heads * tile);
    ASSERT_EQ(page->v_offset % alignment, 0u);
    ASSERT_EQ(page->tile_bytes % alignment, 0u);
    ASSERT_GE(page->v_offset, page->k_tile_bytes);
    ASSERT_LT(page->v_offset - page->k_tile_bytes, alignment);
    ASSERT_GE(page->tile_bytes, page->v_offset + page->v_tile_bytes);
    ASSERT_LT(page->tile_bytes - page->v_offset - page->v_tile_bytes, alignment);
    ASSERT_EQ(page->page_bytes, page_tokens / tile * page->tile_bytes);
  }
}

TEST(Geometry, EveryRowHasAPlaceOfItsOwn) {
  std::mt19937_64 random(20261130);
  SCOPED_TRACE("seed 20261130");
  for (int round = 0; round < 200; ++round) {
    const auto heads = static_cast<std::uint32_t>(1 + random() % 4);
    const LayerGeometry layer{KVSPAN_TYPE_F16, KVSPAN_TYPE_Q4_0, 64, 32, heads, heads};
    const auto page_tokens = static_cast<std::uint32_t>(1 + random() % 40);
    const auto page =
        page_layout(layer, page_tokens, 16, 1U << (random() % 5), 1U << (random() % 5));
    ASSERT_TRUE(page);
    std::vector<int> owners(page->page_bytes);
    const auto claim = [&](std::uint64_t offset, std::uint64_t bytes) {
      for (std::uint64_t at = offset; at < offset + bytes; ++at) {
        ++owners.at(at);
      }
    };
    for (std::uint64_t row = 0; row < page_tokens; ++row) {
      for (std::uint64_t head = 0; head < heads; ++head) {
        claim(k_row_offset(*page, row, head), page->k_row_bytes);
        claim(v_row_offset(*page, row, head), page->v_row_bytes);
      }
    }
    ASSERT_EQ(std::count(owners.begin(), owners.end(), 1),
              page_tokens * (page->k_token_bytes + page->v_token_bytes));
    ASSERT_EQ(*std::max_element(owners.begin(), owners.end()), 1);
  }
}

struct Refusal {
  const char* what;
  std::function<void(Geometry&)> spoil;
  Errc code;
  const char* says;
};

std::vector<Refusal> refusals() {
  constexpr auto kInvalid = Errc::invalid_argument;
  return {
      {"no layers", [](Geometry& g) { g.layers.clear(); }, kInvalid, "layers is empty"},
      {"page 0", [](Geometry& g) { g.page_tokens = 0; }, kInvalid, "page_tokens is 0"},
      {"alignment 0", [](Geometry& g) { g.alignment = 0; }, kInvalid, "alignment 0 is not"},
      {"alignment 96", [](Geometry& g) { g.alignment = 96; }, kInvalid, "alignment 96 is not"},
      {"rows at 0", [](Geometry& g) { g.row_alignment = 0; }, kInvalid, "row_alignment 0 is not"},
      {"rows at 6", [](Geometry& g) { g.row_alignment = 6; }, kInvalid, "row_alignment 6 is not"},
      {"rows at more than tiles",
       [](Geometry& g) { g.row_alignment = 256; },
       kInvalid,
       "row_alignment 256 is not a power of two up to the alignment, 128"},
      {"K of 0",
       [](Geometry& g) { g.layers[1].head_size_k = 0; },
       kInvalid,
       "layer 1: K head size"},
      {"V of 0",
       [](Geometry& g) { g.layers[1].head_size_v = 0; },
       kInvalid,
       "layer 1: V head size"},
      {"no KV heads", [](Geometry& g) { g.layers[1].kv_heads = 0; }, kInvalid, "layer 1: kv_heads"},
      {"no q heads", [](Geometry& g) { g.layers[1].q_heads = 0; }, kInvalid, "layer 1: q_heads is"},
      {"uneven group",
       [](Geometry& g) { g.layers[1].q_heads = 6; },
       kInvalid,
       "layer 1: q_heads 6 is not a multiple of kv_heads 4"},
      {"K block",
       [](Geometry& g) { g.layers[1].head_size_k = 80; },
       Errc::unsupported,
       "layer 1: K: head size 80 is not a multiple of the 32-element block of q8_0; use f32, f16 "
       "or "
       "bf16, or head size 64 or 96"},
      {"V block",
       [](Geometry& g) { g.layers[1].head_size_v = 80; },
       Errc::unsupported,
       "layer 1: V: head size 80 is not a multiple of the 32-element block of q4_0"},
      {"K type",
       [](Geometry& g) { g.layers[1].k_type = 9; },
       Errc::unsupported,
       "layer 1: K: KV t"},
      {"V type",
       [](Geometry& g) { g.layers[1].v_type = 9; },
       Errc::unsupported,
       "layer 1: V: KV t"},
      {"latent types",
       [](Geometry& g) { g.layers[1].v_in_k = true; },
       kInvalid,
       "layer 1: v_type differs from k_type"},
      {"latent width",
       [](Geometry& g) {
         g.layers[1].v_in_k = true;
         g.layers[1].v_type = KVSPAN_TYPE_Q8_0;
         g.layers[1].head_size_v = 288;
       },
       kInvalid,
       "layer 1: V head size 288 is larger than K head size 256"},
      {"tile", [](Geometry& g) { g.tile_tokens_max = 48; }, kInvalid, "tile_tokens_max 48"},
  };
}

TEST(Geometry, EveryRefusalNamesLayerAndField) {
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.what);
    Geometry geometry{{2, wide_layer(KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0)}};
    ASSERT_TRUE(page_layouts(geometry));
    refusal.spoil(geometry);
    const auto pages = page_layouts(geometry);
    ASSERT_FALSE(pages);
    EXPECT_EQ(pages.error().code, refusal.code);
    EXPECT_THAT(pages.error().message, StartsWith(refusal.says));
    EXPECT_EQ(live_bytes(geometry, 1).error().message, pages.error().message);
    const bool of_a_layer = pages.error().message.rfind("layer 1", 0) == 0;
    EXPECT_EQ(pages.error().component, of_a_layer ? "layer 1" : "");
  }
}

TEST(Geometry, SizesBeyondSixtyFourBitsAreRefused) {
  constexpr std::uint32_t kWide = std::numeric_limits<std::uint32_t>::max();
  // 4 bytes x 2^32 elements x 2^32 heads overflow by themselves; smaller ones only with the tokens
  // of a page.
  const LayerGeometry heads{KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, kWide, 1, kWide, kWide};
  EXPECT_EQ(page_layout(heads, 1, 1).error().code, Errc::too_large);
  const LayerGeometry values{KVSPAN_TYPE_F16, KVSPAN_TYPE_F32, 1, kWide, kWide, kWide};
  EXPECT_EQ(page_layout(values, 1, 1).error().code, Errc::too_large);
  const LayerGeometry tokens{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 65536, 65536, 65536, 65536};
  EXPECT_EQ(page_layout(tokens, 1u << 29, 1).value().page_bytes, std::uint64_t{1} << 63);
  EXPECT_EQ(page_layout(tokens, 1u << 30, 1).error().code, Errc::too_large);  // K + V
  EXPECT_EQ(page_layout(tokens, 1u << 31, 1).error().code, Errc::too_large);
  EXPECT_EQ(page_layout(tokens, kWide, 1).error().code, Errc::too_large);
  EXPECT_EQ(page_layout(wide_layer(0, 0), 1, std::uint64_t{1} << 63).error().code, Errc::too_large);
}

TEST(Geometry, HistoryBeyondSixtyFourBitsNamesTheLayerThatTippedIt) {
  const Geometry geometry{
      {3, wide_layer(KVSPAN_TYPE_F16, KVSPAN_TYPE_F16)}};  // 4,096 bytes a token
  const std::uint64_t tokens = (kMost / 4096) / 2;
  EXPECT_EQ(live_bytes(geometry, tokens).error().code, Errc::too_large);
  EXPECT_THAT(live_bytes(geometry, tokens).error().message, StartsWith("layer 2: a history of"));
  EXPECT_THAT(live_bytes(geometry, kMost).error().message, StartsWith("layer 0: a history of"));
}

TEST(Checked, AgreesWithWideArithmetic) {
  std::mt19937_64 random(7);
  SCOPED_TRACE("seed 7");
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    const auto wide_sum = static_cast<Wide>(a) + b;
    const auto wide_product = static_cast<Wide>(a) * b;
    ASSERT_EQ(checked_add(a, b).has_value(), wide_sum <= kMost);
    ASSERT_EQ(checked_mul(a, b).has_value(), wide_product <= kMost);
    ASSERT_EQ(checked_add(a, b).value_or(a + b), a + b);
    ASSERT_EQ(checked_mul(a, b).value_or(a * b), a * b);
    const std::uint64_t alignment = std::uint64_t{1} << (random() % 64);
    const auto wide_up = (static_cast<Wide>(a) + alignment - 1) / alignment * alignment;
    ASSERT_EQ(checked_align_up(a, alignment).has_value(), wide_up <= kMost);
    if (wide_up <= kMost) {
      ASSERT_EQ(checked_align_up(a, alignment), static_cast<std::uint64_t>(wide_up));
    }
  }
  EXPECT_FALSE(checked_align_up(5, 0));
  EXPECT_FALSE(checked_align_up(5, 3));
  EXPECT_FALSE(checked_ceil_div(5, 0));
  EXPECT_EQ(checked_ceil_div(kMost, 2), (kMost / 2) + 1);
}

}  // namespace
}  // namespace kvspan
