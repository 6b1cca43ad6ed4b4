// SPDX-License-Identifier: Apache-2.0
// Read first: chunk_steps.hpp.
#include "kvspan/bench/chunk_steps.hpp"

#include "kvspan/bench/decode_steps.hpp"

#include <utility>

namespace kvspan::bench {

namespace {

// What a chunk took and moved, of one session.
struct Counted {
  double seconds = 0.0;
  std::uint64_t streamed_bytes = 0;
  std::uint64_t streamed_pages = 0;
  std::uint64_t published_bytes = 0;
};

Error not_once(const Counted& counted, const StepTraffic& traffic, std::uint64_t down_bytes) {
  return error_of(Errc::internal,
                  std::to_string(counted.streamed_pages) + " pages of " +
                      std::to_string(counted.streamed_bytes) + " bytes came up and " +
                      std::to_string(counted.published_bytes) +
                      " bytes went down in a chunk, where " + std::to_string(traffic.pages) +
                      " of " + std::to_string(traffic.bytes_max) + " and " +
                      std::to_string(down_bytes) + " are needed, once each",
                  "bench");
}

// One chunk, whose traffic is exactly what it needs.
Result<Counted> run_chunk(StepEngine& engine, std::uint32_t rows, std::uint64_t down_bytes) {
  const Counters before = engine.session().counters();
  const StepTraffic traffic = engine.traffic();
  const auto took = engine.step(rows, Phase::prefill);
  if (!took) {
    return tl::unexpected(took.error());
  }
  const Counters after = engine.session().counters();
  const Counted counted{*took,
                        after.streamed_bytes - before.streamed_bytes,
                        after.streamed_pages - before.streamed_pages,
                        after.published_bytes - before.published_bytes};
  const bool once =
      counted.streamed_pages == traffic.pages && counted.streamed_bytes >= traffic.bytes_min &&
      counted.streamed_bytes <= traffic.bytes_max && counted.published_bytes == down_bytes;
  return once ? Result<Counted>(counted) : tl::unexpected(not_once(counted, traffic, down_bytes));
}

// A turn of one session: its chunks, and the outputs of the last.
struct Turn {
  std::vector<Counted> chunks;  // the first one is not timed
  std::vector<float> outputs;
};

Result<Turn> run_turn(StepEngine& engine,
                      const StepCase& asked,
                      std::uint32_t timed,
                      std::uint64_t down_bytes) {
  Turn turn;
  for (std::uint32_t chunk = 0; chunk <= timed; ++chunk) {
    const auto counted = run_chunk(engine, asked.chunk_rows, down_bytes);
    if (!counted) {
      return tl::unexpected(counted.error());
    }
    turn.chunks.push_back(*counted);
  }
  auto outputs = engine.outputs();
  if (!outputs) {
    return tl::unexpected(std::move(outputs).error());
  }
  turn.outputs = std::move(*outputs);
  return turn;
}

}  // namespace

Result<ChunkTimes> time_chunks(const Backend& backend,
                               const RandomPages& pages,
                               const StepCase& asked,
                               const ChunkTurns& turns) {
  const auto all_resident = resident_case(backend, pages, asked);
  if (!all_resident) {
    return tl::unexpected(all_resident.error());
  }
  auto resident = StepEngine::open(backend, pages, *all_resident);
  if (!resident) {
    return tl::unexpected(std::move(resident).error());
  }
  auto streamed = StepEngine::open(backend, pages, asked);
  if (!streamed) {
    return tl::unexpected(std::move(streamed).error());
  }
  const std::uint64_t down_bytes =
      std::uint64_t{asked.layers} * asked.chunk_rows * pages.token_bytes();
  ChunkTimes out{streamed->session().plan(), {}, {}};
  std::uint64_t context = asked.tokens;
  for (std::uint32_t index = 0; index < turns.turns; ++index) {
    const auto beside = run_turn(*resident, asked, turns.timed, down_bytes);
    const auto turn = beside ? run_turn(*streamed, asked, turns.timed, down_bytes) : beside;
    if (!turn) {
      return tl::unexpected(turn.error());
    }
    auto same = compare_outputs(turn->outputs, beside->outputs);
    if (!same) {
      return tl::unexpected(std::move(same).error());
    }
    out.check = std::move(*same);
    for (std::size_t chunk = 0; chunk < turn->chunks.size(); ++chunk) {
      const Counted& counted = turn->chunks[chunk];
      if (chunk != 0) {
        out.chunks.push_back({context,
                              counted.seconds,
                              beside->chunks[chunk].seconds,
                              counted.streamed_bytes,
                              counted.streamed_pages,
                              counted.published_bytes});
      }
      context += asked.chunk_rows;
    }
  }
  return out;
}

}  // namespace kvspan::bench
