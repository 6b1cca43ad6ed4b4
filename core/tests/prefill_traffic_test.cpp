// SPDX-License-Identifier: Apache-2.0
// The bytes of a prefill, counted in front of the stub: every byte of a page goes down once,
// whatever the chunks; a chunk brings each visible page that is not resident up once, whatever its
// rows and sequences; nothing is brought ahead in vain. Not here: how long that takes
// (prefill_arena_test.cpp).
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>

namespace kvspan::test {
namespace {

struct Traffic {
  std::uint64_t up_bytes = 0;
  std::uint64_t down_bytes = 0;
  std::map<const kvspan_memory_t*, std::vector<std::uint8_t>> written;  // [byte] of a host chunk

  void note(const kvspan_segment_t& segment) {
    if (WatchedRig::goes_up(segment)) {
      up_bytes += segment.rows * segment.bytes;
      return;
    }
    down_bytes += segment.rows * segment.bytes;
    std::vector<std::uint8_t>& bytes = written[segment.target];
    for (std::uint64_t row = 0; row < segment.rows; ++row) {
      const std::uint64_t first = segment.target_offset + row * segment.target_pitch;
      bytes.resize(std::max<std::size_t>(bytes.size(), first + segment.bytes), 0);
      for (std::uint64_t at = first; at < first + segment.bytes; ++at) {
        ++bytes[at];
      }
    }
  }

  [[nodiscard]] std::uint64_t written_once() const { return written_times(1, 1); }

  [[nodiscard]] std::uint64_t written_again() const { return written_times(2, UINT8_MAX); }

 private:
  [[nodiscard]] std::uint64_t written_times(std::uint8_t least, std::uint8_t most) const {
    std::uint64_t total = 0;
    for (const auto& [memory, bytes] : written) {
      total += static_cast<std::uint64_t>(std::count_if(
          bytes.begin(), bytes.end(), [&](std::uint8_t n) { return n >= least && n <= most; }));
    }
    return total;
  }
};

// A plugin whose copies are counted, into a Traffic of its own.
class CountedRig : public WatchedRig {
 public:
  explicit CountedRig(const std::string& plugin)
      : WatchedRig(plugin, [this](std::span<const kvspan_segment_t> segments) {
          for (const kvspan_segment_t& segment : segments) {
            counted_.note(segment);
          }
        }) {}

  CountedRig(const CountedRig&) = delete;
  CountedRig& operator=(const CountedRig&) = delete;
  CountedRig(CountedRig&&) = delete;
  CountedRig& operator=(CountedRig&&) = delete;
  ~CountedRig() = default;

  [[nodiscard]] const Traffic& counted() const { return counted_; }

 private:
  Traffic counted_;
};

// Tokens of a tile are those of a page where that is at most 64.
std::uint64_t rows_bytes(const PageLayout& page, std::uint64_t rows) {
  return rows / page.tile_tokens * page.tile_bytes +
         rows % page.tile_tokens * (page.k_token_bytes + page.v_token_bytes);
}

// What a step of these rows must move, from lengths and the plan alone.
struct Expected {
  std::uint64_t pages = 0;       // up: visible, complete, not resident
  std::uint64_t streamed = 0;    // their bytes
  std::uint64_t tails_most = 0;  // up: rows of begun pages that are appended to
  std::uint64_t down_rows = 0;   // bytes of the rows themselves
  std::uint64_t attended = 0;    // pages that rows see, the step's own included
};

void add_expected(const Plan& plan,
                  const SessionOptions& options,
                  std::uint64_t tokens,
                  std::uint64_t rows,
                  Expected& out) {
  const std::uint64_t page = options.geometry.page_tokens;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    const PageLayout& layout = plan.pages[layer];
    const std::uint64_t window = options.geometry.layers[layer].window_tokens;
    const std::uint64_t first =
        window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / page;
    // A window whose resident places hold all that it comes to rolls over them.
    const bool rolls =
        plan.rolling_pages[layer] != 0 && plan.resident_pages[layer] >= plan.rolling_pages[layer];
    const std::uint64_t resident = rolls ? UINT64_MAX : plan.resident_pages[layer];
    const std::uint64_t begin = std::max(first, resident);
    const std::uint64_t pages = tokens / page > begin ? tokens / page - begin : 0;
    out.pages += pages;
    out.streamed += pages * layout.page_bytes;
    if (tokens % page != 0 && tokens / page >= resident) {
      out.tails_most += rows_bytes(layout, tokens % page);
    }
    out.down_rows += rows * (layout.k_token_bytes + layout.v_token_bytes);
    out.attended += (tokens + rows + page - 1) / page - first;
  }
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}

  std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  // Multiples of the backend's granule, tiles and pages of more than one tile.
  std::uint32_t page_tokens(const std::string& plugin) {
    const std::uint32_t least = plugin == "cpu" ? 32 : 8;
    return least << pick(0, 1);
  }

  SessionOptions options(std::uint32_t page_tokens) {
    SessionOptions out;
    out.geometry.layers = {
        {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4},
        {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4},
        {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 16, 1, 4, 5ULL * page_tokens},
    };
    out.geometry.layers.resize(pick(1, 3));
    out.geometry.page_tokens = page_tokens;
    out.geometry.tile_tokens_max = static_cast<std::uint32_t>(8U << pick(0, 2));
    out.context_tokens = 24ULL * page_tokens;
    out.prefill_rows_max = page_tokens * static_cast<std::uint32_t>(pick(1, 4));
    out.prefill_rows_fixed = out.prefill_rows_max;
    out.arena_bytes = kResidentArena;
    out.stream.group_pages = static_cast<std::uint32_t>(pick(1, 6));
    out.stream.resident_pages_max = static_cast<std::uint32_t>(pick(0, 9));
    // A link that brings some slots in a gap: rings of up to a whole layer twice.
    out.stream.link_bytes_s = 1'000'000'000;
    out.stream.gap_ns = pick(0, 1) * pick(0, 600'000);
    return out;
  }

 private:
  std::mt19937_64 random_;
};

// Steps of all sequences together, in chunks of `rows_of` rows each, up to the context.
template <class RowsOf>
void prefill_all(const CountedRig& rig,
                 const SessionOptions& options,
                 const RowsOf& rows_of,
                 Session& session,
                 std::uint64_t length) {
  Engine engine(rig.backend(), session, options, options.sequences * options.prefill_rows_max);
  std::vector<EngineRows> parts;
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    parts.push_back({*session.add_sequence(), index + 1, 0, 0});
  }
  const std::uint64_t page = options.geometry.page_tokens;
  for (std::uint64_t at = 0; at < length;) {
    const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(rows_of(), length - at));
    Expected expected;
    for (EngineRows& part : parts) {
      part.first_token = at;
      part.rows = rows;
      add_expected(session.plan(), options, at, rows, expected);
    }
    const Counters before = session.counters();
    const std::uint64_t down_before = rig.counted().down_bytes;
    const auto done = engine.step(parts, Phase::prefill, nullptr);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    const Counters after = session.counters();
    SCOPED_TRACE("chunk of " + std::to_string(rows) + " rows behind " + std::to_string(at));
    ASSERT_EQ(after.streamed_pages - before.streamed_pages, expected.pages);
    ASSERT_EQ(after.streamed_bytes - before.streamed_bytes, expected.streamed);
    ASSERT_EQ(after.attended_pages - before.attended_pages, expected.attended);
    ASSERT_LE(after.refetched_tail_bytes - before.refetched_tail_bytes, expected.tails_most);
    if (at % page == 0) {
      ASSERT_EQ(after.refetched_tail_bytes, before.refetched_tail_bytes);
    }
    const std::uint64_t down = rig.counted().down_bytes - down_before;
    ASSERT_EQ(after.published_bytes - before.published_bytes, down);
    ASSERT_GE(down, expected.down_rows);
    at += rows;
  }
}

// Whether no host page is given back behind a window, and written for a later page.
bool keeps_all(const SessionOptions& options) {
  return std::all_of(options.geometry.layers.begin(),
                     options.geometry.layers.end(),
                     [](const LayerGeometry& layer) { return layer.window_tokens == 0; });
}

// Bytes of every page of every sequence behind `tokens` tokens, which are whole pages.
std::uint64_t history_bytes(const Plan& plan, const SessionOptions& options, std::uint64_t tokens) {
  std::uint64_t total = 0;
  for (const PageLayout& page : plan.pages) {
    total += options.sequences * (tokens / options.geometry.page_tokens) * page.page_bytes;
  }
  return total;
}

std::uint64_t payload_bytes(const Plan& plan, const SessionOptions& options, std::uint64_t tokens) {
  std::uint64_t total = 0;
  for (const PageLayout& page : plan.pages) {
    total += options.sequences * tokens * (page.k_token_bytes + page.v_token_bytes);
  }
  return total;
}

class PrefillTraffic : public testing::TestWithParam<const char*> {};

// Chunks are whole pages: padding included, each byte of each page is written once, and read once
// by each chunk that needs it. What came up beyond that lies in the ring for the next step.
TEST_P(PrefillTraffic, WholePagesGoDownOnceAndComeUpOnceAChunk) {
  for (int round = 0; round < seeds(40); ++round) {
    SCOPED_TRACE("seed " + std::to_string(7100 + round));
    Random random(7100 + static_cast<std::uint64_t>(round));
    const std::uint32_t page = random.page_tokens(GetParam());
    SessionOptions options = random.options(page);
    options.sequences = static_cast<std::uint32_t>(random.pick(1, 3));
    const CountedRig rig(GetParam());
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const std::uint64_t length = page * random.pick(1, 24);
    const auto rows_of = [&] { return page * random.pick(1, options.prefill_rows_max / page); };
    ASSERT_NO_FATAL_FAILURE(prefill_all(rig, options, rows_of, *session, length));
    const Counters counters = session->counters();
    const std::uint64_t bytes = history_bytes(session->plan(), options, length);
    EXPECT_EQ(rig.counted().down_bytes, bytes);
    if (keeps_all(options)) {
      EXPECT_EQ(rig.counted().written_once(), bytes);
      EXPECT_EQ(rig.counted().written_again(), 0U);
    }
    EXPECT_EQ(counters.published_bytes, bytes);
    EXPECT_EQ(counters.refetched_tail_bytes, 0U);
    EXPECT_EQ(counters.primed_pages_dropped, 0U);
    EXPECT_LE(rig.counted().up_bytes,
              counters.streamed_bytes + session->plan().ring_slots * session->plan().slot_bytes);
    EXPECT_GE(rig.counted().up_bytes, counters.streamed_bytes);
  }
}

// Chunks of any rows: no byte of a row goes down twice, padding of a tile with at most one chunk.
// A begun page comes up once a chunk that appends to it.
TEST_P(PrefillTraffic, AnyChunksSendEachRowDownOnce) {
  for (int round = 0; round < seeds(40); ++round) {
    SCOPED_TRACE("seed " + std::to_string(7200 + round));
    Random random(7200 + static_cast<std::uint64_t>(round));
    const std::uint32_t page = random.page_tokens(GetParam());
    SessionOptions options = random.options(page);
    options.sequences = static_cast<std::uint32_t>(random.pick(1, 3));
    const CountedRig rig(GetParam());
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const std::uint64_t length = random.pick(1, 24ULL * page);
    const auto rows_of = [&] { return random.pick(1, options.prefill_rows_max); };
    ASSERT_NO_FATAL_FAILURE(prefill_all(rig, options, rows_of, *session, length));
    const Counters counters = session->counters();
    const Plan& plan = session->plan();
    EXPECT_EQ(counters.published_bytes, rig.counted().down_bytes);
    if (keeps_all(options)) {
      EXPECT_EQ(rig.counted().written_again(), 0U);
      EXPECT_EQ(rig.counted().written_once(), rig.counted().down_bytes);
    }
    EXPECT_GE(counters.published_bytes, payload_bytes(plan, options, length));
    EXPECT_LE(counters.published_bytes,
              history_bytes(plan, options, (length + page - 1) / page * page));
    EXPECT_EQ(counters.primed_pages_dropped, 0U);
    EXPECT_GE(rig.counted().up_bytes, counters.streamed_bytes + counters.refetched_tail_bytes);
    EXPECT_LE(rig.counted().up_bytes,
              counters.streamed_bytes + counters.refetched_tail_bytes +
                  plan.ring_slots * plan.slot_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PrefillTraffic, testing::Values("stub", "cpu"));

// Alike layers, pages of 16 tokens of which three are resident, and a ring of two groups.
SessionOptions plain_options(std::size_t layers,
                             std::uint32_t rows_max,
                             std::uint32_t group_pages) {
  SessionOptions options = Random(1).options(16);
  options.geometry.layers = std::vector(layers, options.geometry.layers.front());
  options.context_tokens = 1024;
  options.prefill_rows_max = options.prefill_rows_fixed = rows_max;
  options.stream.resident_pages_max = 3;
  options.stream.group_pages = group_pages;
  options.stream.gap_ns = 0;
  return options;
}

// Wider rows multiply nothing: the same pages behind the same tokens, from one row to a whole
// chunk, one sequence or three.
TEST(PrefillTrafficOfWidths, RowsNeverMultiplyUploads) {
  for (const std::uint32_t sequences : {1U, 3U}) {
    std::optional<std::uint64_t> a_sequence;
    for (const std::uint32_t rows : {1U, 7U, 16U, 63U, 128U}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(sequences) + " sequences");
      const CountedRig rig("stub");
      SessionOptions options = plain_options(1, 128, 4);
      options.sequences = sequences;
      auto session = Session::open(rig.backend(), options);
      ASSERT_TRUE(session.has_value()) << session.error().message;
      Engine engine(rig.backend(), *session, options, sequences * 128);
      std::vector<EngineRows> parts;
      for (std::uint32_t index = 0; index < sequences; ++index) {
        parts.push_back({*session->add_sequence(), index + 1, 0, 100});
      }
      while (parts.front().first_token < 800) {  // together, so that what is ahead is of use
        ASSERT_TRUE(engine.step(parts, Phase::prefill, nullptr).has_value());
        for (EngineRows& part : parts) {
          part.first_token += part.rows;
        }
      }
      for (EngineRows& part : parts) {
        part.rows = rows;
      }
      // Counted where copies pass. What lies in the ring for the step came before it, as much as it
      // leaves there for the next.
      const Counters before = session->counters();
      const std::uint64_t up_before = rig.counted().up_bytes;
      ASSERT_TRUE(engine.step(parts, Phase::prefill, nullptr).has_value());
      const std::uint64_t bytes = rig.counted().up_bytes - up_before;
      EXPECT_EQ(session->counters().slots_in_flight, before.slots_in_flight);
      EXPECT_EQ(bytes, sequences * 47ULL * session->plan().pages.front().page_bytes);
      EXPECT_EQ(bytes, session->counters().streamed_bytes - before.streamed_bytes);
      EXPECT_EQ(bytes / sequences, a_sequence.value_or(bytes / sequences));
      a_sequence = bytes / sequences;
    }
  }
}

// 47 pages a layer in groups of at most 10: no small one at the end, which would hold the link up.
TEST(PrefillTrafficOfGroups, GroupsOfAPrefillAreAlike) {
  std::vector<std::uint64_t> sizes;  // pages of each copy up
  std::uint64_t page_bytes = 0;
  const WatchedRig rig("stub", [&](std::span<const kvspan_segment_t> segments) {
    std::uint64_t bytes = 0;
    for (const kvspan_segment_t& segment : segments) {
      bytes += WatchedRig::goes_up(segment) ? segment.rows * segment.bytes : 0;
    }
    if (page_bytes != 0 && bytes != 0) {
      sizes.push_back(bytes / page_bytes);
    }
  });
  const SessionOptions options = plain_options(4, 16, 10);
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  ASSERT_EQ(session->plan().group_pages, 10U);
  const SequenceId sequence = *session->add_sequence();
  ASSERT_TRUE(session->load(sequence, 800, random_page).has_value());
  Engine engine(rig.backend(), *session, options, 16);
  page_bytes = session->plan().pages.front().page_bytes;
  ASSERT_TRUE(engine.step({{sequence, 1, 800, 16}}, Phase::prefill, nullptr).has_value());
  ASSERT_GE(sizes.size(), 15U);
  for (std::size_t group = 0; group < 15; ++group) {  // of three layers
    EXPECT_EQ(sizes[group], group % 5 < 2 ? 10U : 9U) << "group " << group;
  }
}

}  // namespace
}  // namespace kvspan::test
