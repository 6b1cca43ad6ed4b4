// SPDX-License-Identifier: Apache-2.0
// Runs of bytes cover the rows that are asked for and, but for whole tiles, nothing else; they are
// aligned where rows are.
#include "session/byte_runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace kvspan {

namespace {

constexpr std::uint32_t kSeed = 5711;

struct Drawn {
  LayerGeometry layer;
  PageLayout page;
  std::uint64_t first;
  std::uint64_t rows;
};

class ByteRuns : public ::testing::Test {
 protected:
  std::uint64_t up_to(std::uint64_t most) { return 1 + random_() % most; }

  Drawn draw(std::uint64_t alignment, std::uint64_t row_alignment) {
    Drawn out{};
    out.layer = {KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q8_0, 32, 64, 1, 1};
    out.layer.kv_heads = static_cast<std::uint32_t>(up_to(4));
    out.layer.q_heads = out.layer.kv_heads;
    if (random_() % 4 == 0) {
      out.layer.v_type = out.layer.k_type;
      out.layer.head_size_v = 32;
      out.layer.v_in_k = true;
    }
    const auto page_tokens = static_cast<std::uint32_t>(up_to(48));
    const std::uint32_t tile_tokens_max = 1U << (random_() % 6);
    out.page =
        page_layout(out.layer, page_tokens, alignment, tile_tokens_max, row_alignment).value();
    out.first = random_() % page_tokens;
    out.rows = up_to(page_tokens - out.first);
    return out;
  }

  // How often each byte of the page is in a run.
  static std::vector<int> covered(const Drawn& drawn, const std::vector<ByteRun>& runs) {
    std::vector<int> bytes(drawn.page.page_bytes);
    for (const ByteRun& run : runs) {
      for (std::uint64_t index = 0; index < run.count; ++index) {
        for (std::uint64_t at = 0; at < run.bytes; ++at) {
          ++bytes.at(run.offset + index * run.pitch + at);
        }
      }
    }
    return bytes;
  }

  static std::vector<bool> asked(const Drawn& drawn) {
    const PageLayout& page = drawn.page;
    std::vector<bool> bytes(page.page_bytes);
    for (std::uint64_t row = drawn.first; row < drawn.first + drawn.rows; ++row) {
      for (std::uint64_t head = 0; head < drawn.layer.kv_heads; ++head) {
        for (std::uint64_t at = 0; at < page.k_row_bytes; ++at) {
          bytes.at(k_row_offset(page, row, head) + at) = true;
        }
        for (std::uint64_t at = 0; page.v_tile_bytes != 0 && at < page.v_row_bytes; ++at) {
          bytes.at(v_row_offset(page, row, head) + at) = true;
        }
      }
    }
    return bytes;
  }

  std::mt19937_64 random_{kSeed};
};

TEST_F(ByteRuns, HoldTheRowsOnceAndOfBegunTilesNothingElse) {
  SCOPED_TRACE("seed 5711");
  for (int round = 0; round < 4000; ++round) {
    const Drawn drawn = draw(16, 1U << (random_() % 5));
    const std::vector<ByteRun> runs = runs_of(drawn.page, drawn.first, drawn.rows);
    ASSERT_LE(runs.size(), kByteRunsMax);
    const std::vector<int> bytes = covered(drawn, runs);
    const std::vector<bool> rows = asked(drawn);
    const std::uint64_t end = drawn.first + drawn.rows;
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const std::uint64_t tile = at / drawn.page.tile_bytes * drawn.page.tile_tokens;
      const bool whole = tile >= drawn.first && tile + drawn.page.tile_tokens <= end;
      ASSERT_EQ(bytes[at], rows[at] || whole ? 1 : 0) << round << ": byte " << at;
    }
  }
}

// What a copy that must be aligned moves are rows of the step and nothing of their neighbours.
TEST_F(ByteRuns, AreAlignedWhereRowsAre) {
  SCOPED_TRACE("seed 5711");
  for (int round = 0; round < 4000; ++round) {
    const std::uint64_t alignment = 1ULL << (random_() % 9);
    const Drawn drawn = draw(std::max<std::uint64_t>(alignment, 16), alignment);
    const std::vector<ByteRun> runs = runs_of(drawn.page, drawn.first, drawn.rows);
    for (const ByteRun& run : runs) {
      ASSERT_EQ(run.offset % alignment, 0U);
      ASSERT_EQ(run.bytes % alignment, 0U);
      ASSERT_EQ(run.pitch % alignment, 0U);
      ASSERT_TRUE(run.count == 1 || run.bytes <= run.pitch);
    }
  }
}

}  // namespace

}  // namespace kvspan
