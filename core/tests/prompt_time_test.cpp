// SPDX-License-Identifier: Apache-2.0
// What a whole prompt moves and takes, and the chunk that a plan chooses for it: published figures,
// an oracle that counts pages one by one, sessions that move exactly what was predicted, and every
// arena.
#include "kvspan/core/policy/prompt_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kSeeds = KVSPAN_TEST_SANITIZED != 0 ? 100 : 1000;

// A layer's page of the published geometry, and all 16 of them.
constexpr std::uint64_t kPageBytes = 425984;
constexpr std::uint64_t kBlockBytes = 16 * kPageBytes;

PromptLoad published() {
  PromptLoad load;
  load.layers.assign(16, {kPageBytes, 0, 0});
  load.tokens = 262144;
  load.page_tokens = 256;
  load.link = {2450.0, 49.2e9};
  return load;
}

// `resident` pages of every layer.
Placement resident(std::uint64_t pages) {
  return {240, 32, std::vector<std::uint64_t>(16, pages)};
}

// Chunk k of 256 rows sees k pages: 0 + 1 + ... + 1023. Of 2,048 rows: 0 + 8 + ... + 1016.
TEST(PromptTime, NothingResidentIsTheQuadraticTerm) {
  const PromptTime narrow = predict_prompt(published(), resident(0), 256);
  EXPECT_EQ(narrow.chunks, 1024U);
  EXPECT_EQ(narrow.up_bytes, 1023ULL * 1024 / 2 * kBlockBytes);  // 3.57 TB
  const PromptTime wide = predict_prompt(published(), resident(0), 2048);
  EXPECT_EQ(wide.up_bytes, 8ULL * 127 * 128 / 2 * kBlockBytes);  // 0.44 TB
  // tokens^2 / (2 x chunk) x bytes a token, less half a chunk's worth.
  EXPECT_NEAR(static_cast<double>(narrow.up_bytes), 262144.0 * 262144 / 512 * 26624, 4e9);
  EXPECT_EQ(narrow.down_bytes, 1024 * kBlockBytes);
  EXPECT_EQ(wide.down_bytes, narrow.down_bytes);
}

// With the published run's residents, 330 pages a layer: the sum of k - 330 for k to 1023 is
// 693 x 694 / 2; of 8 k - 330 for k from 42 to 127 it is 8 x 7267 - 86 x 330.
TEST(PromptTime, ChunksOf256RowsMove1640GigabytesAndOf2048Rows200) {
  const PromptTime narrow = predict_prompt(published(), resident(330), 256);
  EXPECT_EQ(narrow.up_bytes, 693ULL * 694 / 2 * kBlockBytes);
  EXPECT_NEAR(static_cast<double>(narrow.up_bytes), 1.64e12, 0.005e12);
  const PromptTime wide = predict_prompt(published(), resident(330), 2048);
  EXPECT_EQ(wide.up_bytes, (8ULL * 7267 - 86ULL * 330) * kBlockBytes);
  EXPECT_NEAR(static_cast<double>(wide.up_bytes), 0.20e12, 0.005e12);
}

// Work alone: N (N + 1) / 2 tokens of 1,664 bytes in 16 layers, and a time a row; all of it waits
// for nobody where chunks are wide.
TEST(PromptTime, WideChunksTakeAsLongAsTheirWork) {
  PromptLoad load = published();
  load.row_ns = 40000.0;
  load.row_bytes_s = 20e12;
  const double work_ns = 262144.0 * 262145 / 2 * 26624 / 20e12 * 1e9 + 262144.0 * 40000;
  const PromptTime wide = predict_prompt(load, resident(330), 2048);
  EXPECT_NEAR(wide.work_ns, work_ns, 1e-9 * work_ns);
  EXPECT_TRUE(wide.covered());
  EXPECT_EQ(wide.time_ns, wide.work_ns);
  const PromptTime narrow = predict_prompt(load, resident(330), 64);
  EXPECT_EQ(narrow.work_ns, wide.work_ns);
  EXPECT_FALSE(narrow.covered());
  EXPECT_GE(narrow.time_ns, narrow.link_ns);
  EXPECT_GT(narrow.last_link_ns, narrow.last_work_ns);
}

// Chunk k of 2,048 rows sees 8 k pages in each of 16 layers, in groups of 32: k / 4 waves, rounded
// up, 4 x (1 + ... + 31) + 3 x 32 = 2,080 of a layer. Of 256 rows it sees k: k / 32 of 1,024
// chunks, 16,368.
TEST(PromptTime, WavesMakeNarrowChunksLonger) {
  PromptLoad load = published();
  load.row_bytes_s = 1e12;  // covers the link at both widths
  load.wave_ns = 60000.0;
  const PromptTime wide = predict_prompt(load, resident(0), 2048);
  const PromptTime narrow = predict_prompt(load, resident(0), 256);
  EXPECT_TRUE(wide.covered() && narrow.covered());
  EXPECT_EQ(narrow.work_ns, wide.work_ns);
  EXPECT_GT(narrow.waves_ns, 7 * wide.waves_ns);
  EXPECT_EQ(narrow.time_ns, narrow.work_ns + narrow.waves_ns);
  load.tokens = 32 * 2048;                     // every chunk is looked at
  const double waves = 4 * 7 * 8 / 2 + 3 * 8;  // of 32 chunks: 0, 1, 1, 1, 1, 2, ... 8, 8, 8
  EXPECT_DOUBLE_EQ(predict_prompt(load, resident(0), 2048).waves_ns, waves * 16 * 60000.0);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}

  std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  PromptLoad load() {
    PromptLoad out;
    out.page_tokens = 1U << pick(0, 5);
    out.tokens = pick(1, 3000);
    out.layers.resize(pick(1, 4));
    for (PromptLayer& layer : out.layers) {
      layer = {pick(1, 100000), pick(0, 2) == 0 ? pick(1, 4000) : 0, 0};
    }
    out.sequences = static_cast<std::uint32_t>(pick(1, 3));
    out.link = {static_cast<double>(pick(0, 3000)), static_cast<double>(pick(1, 100)) * 1e9};
    out.row_ns = static_cast<double>(pick(0, 1) * pick(0, 10000));
    out.row_bytes_s = static_cast<double>(pick(0, 1) * pick(1, 1000)) * 1e10;
    out.jitter_ns = static_cast<double>(pick(0, 1) * pick(0, 10000));
    out.wave_ns = static_cast<double>(pick(0, 1) * pick(0, 100000));
    return out;
  }

  Placement placement(const PromptLoad& load) {
    Placement out{static_cast<std::uint32_t>(pick(2, 200)), 1, {}};
    out.group_pages = static_cast<std::uint32_t>(pick(1, out.ring_slots / 2));
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      out.resident_pages.push_back(pick(0, load.tokens / load.page_tokens));
    }
    return out;
  }

 private:
  std::mt19937_64 random_;
};

// Every chunk, every layer, every page: seen when a row of the chunk sees one of its tokens.
std::uint64_t counted_bytes(const PromptLoad& load,
                            const Placement& placement,
                            std::uint64_t rows) {
  std::uint64_t total = 0;
  for (std::uint64_t tokens = 0; tokens < load.tokens; tokens += rows) {
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      const std::uint64_t window = load.layers[layer].window_tokens;
      for (std::uint64_t page = placement.resident_pages[layer];
           (page + 1) * load.page_tokens <= tokens;
           ++page) {
        const std::uint64_t last = (page + 1) * load.page_tokens - 1;
        // The chunk's first row is token `tokens` and sees the `window` tokens up to itself.
        total += window == 0 || last + window > tokens ? load.layers[layer].page_bytes : 0;
      }
    }
  }
  return total * load.sequences;
}

TEST(PromptTime, CountsWhatCountingPagesCounts) {
  for (std::uint64_t seed = 7300; seed < 7300 + kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const PromptLoad load = random.load();
    const Placement placement = random.placement(load);
    const auto rows = static_cast<std::uint32_t>(random.pick(1, 300));
    const PromptTime time = predict_prompt(load, placement, rows);
    ASSERT_EQ(time.up_bytes, counted_bytes(load, placement, rows));
    ASSERT_GE(time.time_ns, time.link_ns);
    ASSERT_GE(time.time_ns, time.work_ns + time.waves_ns);
  }
}

TEST(PromptTime, MoreRingOrResidentsNeverTakeLonger) {
  for (std::uint64_t seed = 7400; seed < 7400 + kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const PromptLoad load = random.load();
    const Placement placement = random.placement(load);
    const auto rows = static_cast<std::uint32_t>(random.pick(1, 300));
    const PromptTime before = predict_prompt(load, placement, rows);
    Placement more = placement;
    more.ring_slots += static_cast<std::uint32_t>(random.pick(0, 20));
    more.resident_pages[random.pick(0, load.layers.size() - 1)] += random.pick(0, 20);
    const PromptTime after = predict_prompt(load, more, rows);
    ASSERT_LE(after.time_ns, before.time_ns * (1.0 + 1e-9));
    ASSERT_LE(after.up_bytes, before.up_bytes);
  }
}

// Contexts that no loop goes through.
TEST(PromptTime, LongPromptsAreSampled) {
  PromptLoad load = published();
  load.tokens = 1ULL << 30;
  load.row_ns = 1.0;
  const PromptTime time = predict_prompt(load, resident(0), 64);
  EXPECT_GT(time.up_bytes, 7ULL << 60);  // 2.4e20 do not fit 64 bits
  load.tokens = 1ULL << 26;
  const double bytes = 67108864.0 * 67108864.0 / 512 * 26624;
  EXPECT_NEAR(
      static_cast<double>(predict_prompt(load, resident(0), 256).up_bytes), bytes, 1e-3 * bytes);
}

}  // namespace
}  // namespace kvspan::test
