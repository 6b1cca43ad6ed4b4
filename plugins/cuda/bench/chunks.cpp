// SPDX-License-Identifier: Apache-2.0
// P17: chunks of a prompt over a history on the host, through core; and both directions of the link
// at once.
#include "kvspan/bench/step_engine.hpp"

#include "peers.hpp"
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvspan::cuda_bench {

namespace {

using bench::StepCase;
using bench::StepEngine;

constexpr std::uint64_t k = 1024;
constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 30;  // bounded by what is asked for
constexpr std::uint32_t kLayers = 4;
constexpr int kRuns = 5;
constexpr double kTorchShare = 0.6;  // compute counts as at most torch's flash over this

struct ChunkTimes {
  Spread seconds;
  std::uint64_t streamed_bytes = 0;  // a chunk
  std::uint64_t published_bytes = 0;
  std::uint64_t streamed_pages = 0;
  std::vector<float> outputs;
  Plan plan;
};

// The same chunk again and again: each time it is taken back.
ChunkTimes time_chunks(const Bench& bench, const StepCase& asked) {
  StepEngine engine =
      take(StepEngine::open(bench.rig.backend(), bench.pages.of("A"), asked), "opening");
  ChunkTimes out;
  out.plan = engine.session().plan();
  std::vector<double> seconds;
  Counters before;
  for (int run = -1; run < kRuns; ++run) {
    take(engine.truncate(asked.tokens), "taking a chunk back");
    before = engine.session().counters();
    const double took = take(engine.step(asked.chunk_rows, Phase::prefill), "a chunk");
    if (run < 0) {
      out.outputs = take(engine.outputs(), "outputs");
    } else {
      seconds.push_back(took);
    }
  }
  const Counters after = engine.session().counters();
  out.seconds = spread_of(std::move(seconds));
  out.streamed_bytes = after.streamed_bytes - before.streamed_bytes;
  out.streamed_pages = after.streamed_pages - before.streamed_pages;
  out.published_bytes = after.published_bytes - before.published_bytes;
  return out;
}

std::string same(const ChunkTimes& streamed, const ChunkTimes& resident) {
  if (streamed.outputs.size() != resident.outputs.size() ||
      std::memcmp(streamed.outputs.data(),
                  resident.outputs.data(),
                  streamed.outputs.size() * sizeof(float)) != 0) {
    throw Failure("outputs of a chunk differ from those of the resident run");
  }
  if (!std::all_of(streamed.outputs.begin(), streamed.outputs.end(), [](float value) {
        return value >= -1.5F && value <= 1.5F;
      })) {
    throw Failure("an output is no mean of values between -1 and 1");
  }
  return fmt::format("memcmp of {} outputs with resident", streamed.outputs.size());
}

// Pages of 256 tokens that a chunk has to bring, and rows that it has to send down, once each.
Row once(Row row, const char* what, std::uint64_t counted, std::uint64_t once_bytes) {
  row.what += what;
  row.value = static_cast<double>(counted) / static_cast<double>(once_bytes);
  row.unit = "x";
  row.floor = 1.0;
  row.goal = 1.0;
  row.bytes = counted;
  if (counted < once_bytes) {
    row.failure = fmt::format("{} where {} are needed", counted, once_bytes);
  }
  return row;
}

std::vector<Row> chunk(const Bench& bench, std::uint64_t tokens, std::uint32_t rows) {
  StepCase asked;
  asked.layers = kLayers;
  asked.tokens = tokens - rows;
  asked.appended = rows;
  asked.rows_max = 1;
  asked.chunk_rows = rows;
  asked.arena_bytes = kArenaBytes;
  const ChunkTimes resident = time_chunks(bench, asked);
  if (resident.plan.mode != PlanMode::resident) {
    throw Failure("the run to compare with is not resident");
  }
  asked.stream.group_pages = 32;
  asked.stream.resident_pages_max = 0;
  const ChunkTimes streamed = time_chunks(bench, asked);
  const double peer = kLayers * prefill_peer_us("A", tokens, rows) * 1e-6 / kTorchShare;
  const double compute =
      peer == 0.0 ? resident.seconds.median : std::min(resident.seconds.median, peer);
  const double link = static_cast<double>(streamed.streamed_bytes) / bench.limits.link_up;
  Row row;
  row.id = "P17";
  row.what = fmt::format("A chunk of {} ending at {}K", rows, tokens / k);
  row.seconds = streamed.seconds;
  row.bytes = streamed.streamed_bytes + streamed.published_bytes;
  row.value = streamed.seconds.median / std::max(compute, link);
  row.unit = "x";
  row.better = Better::lower;
  row.floor = 1.10;
  row.goal = 1.03;
  row.check = same(streamed, resident);
  row.details = {
      {"resident_us", resident.seconds.median * 1e6},
      {"torch_over_0.6_us", peer * 1e6},
      {"link_us", link * 1e6},
      {"over_own_compute", streamed.seconds.median / std::max(resident.seconds.median, link)},
      {"ring_pages", streamed.plan.ring_slots}};
  const auto& layout = bench.pages.of("A").layout();
  const std::uint64_t history_pages = kLayers * (asked.tokens / kPageTokens);
  return {row,
          once(row,
               " rows down",
               streamed.published_bytes,
               std::uint64_t{kLayers} * rows * (layout.k_token_bytes + layout.v_token_bytes)),
          once(row, " pages up", streamed.streamed_pages, history_pages)};
}

// Groups of 16 MiB to the device while others go the other way, through the copy table.
std::vector<Row> both_ways(const Bench& bench) {
  constexpr std::uint64_t kGroup = std::uint64_t{16} << 20;
  const std::uint64_t groups = bench.small ? 2 : 64;
  const HostMemory up_source = host_memory(bench.rig, groups * kGroup);
  const HostMemory down_target = host_memory(bench.rig, groups * kGroup);
  const DeviceMemory up_target = device_memory(bench.rig, groups * kGroup);
  const DeviceMemory down_source = device_memory(bench.rig, groups * kGroup);
  auto* const words = reinterpret_cast<std::uint64_t*>(up_source.address);
  for (std::uint64_t index = 0; index < groups * kGroup / sizeof *words; ++index) {
    words[index] = index * 0x9e3779b97f4a7c15ULL;
  }
  Line up(bench.rig, KVSPAN_ROLE_UPLOAD);
  Line down(bench.rig, KVSPAN_ROLE_DOWNLOAD);
  const auto whole = [&](kvspan_memory_t* from, kvspan_memory_t* to) {
    return kvspan_segment_t{from, to, 0, 0, groups * kGroup, 1, 0, 0};
  };
  const auto group_at = [&](kvspan_memory_t* from, kvspan_memory_t* to, std::uint64_t index) {
    return kvspan_segment_t{from, to, index * kGroup, index * kGroup, kGroup, 1, 0, 0};
  };
  const kvspan_segment_t fill = whole(up_source.memory.get(), down_source.get());
  up.wait(up.copy({}, {&fill, 1}));
  std::vector<double> seconds;
  std::vector<double> down_shares;
  for (int run = -1; run < 7; ++run) {
    const Clock::time_point start = Clock::now();
    kvspan_point_t last_up{};
    kvspan_point_t last_down{};
    for (std::uint64_t index = 0; index < groups; ++index) {
      const auto lower = group_at(down_source.get(), down_target.memory.get(), index);
      last_down = down.copy({}, {&lower, 1});
      const auto upper = group_at(up_source.memory.get(), up_target.get(), index);
      last_up = up.copy({}, {&upper, 1});
    }
    up.wait(last_up);
    const double took = seconds_since(start);
    down.wait(last_down);
    if (run >= 0) {
      seconds.push_back(took);
      down_shares.push_back(took / seconds_since(start));
    }
  }
  const kvspan_segment_t back = whole(up_target.get(), down_source.get());
  up.wait(up.copy({}, {&back, 1}));
  Row row;
  row.id = "P17";
  row.what = "up beside down";
  row.seconds = spread_of(seconds);
  row.bytes = groups * kGroup;
  row.value = static_cast<double>(row.bytes) / row.seconds.median / bench.limits.link_up;
  row.unit = "of L";
  row.floor = 0.9;
  row.goal = 0.0;
  if (std::memcmp(up_source.address, down_target.address, row.bytes) != 0) {
    throw Failure("what came down has other bytes than what went up");
  }
  const kvspan_segment_t read = whole(down_source.get(), down_target.memory.get());
  std::memset(down_target.address, 0, row.bytes);
  down.wait(down.copy({}, {&read, 1}));
  if (std::memcmp(up_source.address, down_target.address, row.bytes) != 0) {
    throw Failure("what went up beside other copies has other bytes");
  }
  row.check = fmt::format("memcmp of {} bytes each way", row.bytes);
  // Of the time in which something came down, that part went by while copies went up too.
  row.details = {{"up_of_both", spread_of(down_shares).median},
                 {"gbytes_s", static_cast<double>(row.bytes) / row.seconds.median * 1e-9}};
  return {row};
}

}  // namespace

void add_chunks(std::vector<Task>& tasks) {
  struct Size {
    std::uint64_t tokens;
    std::uint32_t rows;
  };

  for (const Size size : {Size{32 * k, 256}, {32 * k, 512}, {32 * k, 2048}, {128 * k, 2048}}) {
    tasks.push_back({"P17",
                     fmt::format("A chunk of {} ending at {}K", size.rows, size.tokens / k),
                     [size](const Bench& bench) {
                       return bench.small ? chunk(bench, 1024, 256)
                                          : chunk(bench, size.tokens, size.rows);
                     }});
  }
  tasks.push_back({"P17", "up beside down", both_ways});
}

}  // namespace kvspan::cuda_bench
