// SPDX-License-Identifier: Apache-2.0
// Read first: chunk.hpp.
#include "memory/budget/chunk.hpp"

#include "memory/budget/placing.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

namespace {

PromptLoad load_of(const Basis& basis, const Plan& plan) {
  const PlanRequest& request = basis.request;
  const StreamOptions& stream = request.stream;
  PromptLoad load;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    load.layers.push_back({basis.pages[layer].page_bytes,
                           request.geometry.layers[layer].window_tokens,
                           plan.rolling_pages[layer]});
  }
  load.tokens = request.context_tokens;
  load.page_tokens = request.geometry.page_tokens;
  load.sequences = request.sequences;
  load.link = {static_cast<double>(stream.copy_ns), static_cast<double>(stream.link_bytes_s)};
  load.jitter_ns = static_cast<double>(stream.jitter_ns);
  load.row_ns = static_cast<double>(stream.row_ns);
  load.row_bytes_s = static_cast<double>(stream.row_bytes_s);
  load.wave_ns = static_cast<double>(stream.wave_ns);
  return load;
}

// "1.234 ms" without a locale.
std::string milliseconds(double time_ns) {
  const auto microseconds = static_cast<std::uint64_t>(std::llround(time_ns * 1e-3));
  const std::string fraction = std::to_string(microseconds % 1000);
  return std::to_string(microseconds / 1000) + "." + std::string(3 - fraction.size(), '0') +
         fraction + " ms";
}

std::string last_chunk(const PromptTime& time) {
  return "the last chunk works for " + milliseconds(time.last_work_ns) + " while the link needs " +
         milliseconds(time.last_link_ns);
}

ChunkLimit limit_of(const PlanRequest& request, bool wider, const Plan& plan) {
  if (plan.mode == PlanMode::resident) {
    return ChunkLimit::nothing_streams;
  }
  if (request.prefill_rows_fixed != 0) {
    return ChunkLimit::asked;
  }
  // Where waves cost something, wider ones are faster still.
  if (knows_rows(request.stream) && plan.prompt.time.covered() && request.stream.wave_ns == 0) {
    return ChunkLimit::work;
  }
  if (wider) {
    return ChunkLimit::arena;
  }
  return plan.prefill_rows > request.context_tokens / 2 ? ChunkLimit::prompt : ChunkLimit::asked;
}

std::string reason_of(const PlanRequest& request, const Plan& plan) {
  const PromptTime& time = plan.prompt.time;
  const std::string rows = "chunks of " + std::to_string(plan.prefill_rows) + " rows: ";
  const std::string shortfall = knows_rows(request.stream)
                                    ? "; " + last_chunk(time)
                                    : "; how long a row's work takes is not known, so that the "
                                      "widest chunk moves least";
  switch (plan.prompt.limit) {
    case ChunkLimit::nothing_streams:
      return rows + "everything is resident, nothing streams";
    case ChunkLimit::work:
      return rows + "the narrowest whose work covers the stream; " + last_chunk(time);
    case ChunkLimit::prompt:
      return rows + "the prompt has no room for wider ones" + shortfall;
    case ChunkLimit::asked:
      return rows + "no others were asked for" + shortfall;
    case ChunkLimit::arena:
      break;
  }
  return rows + "wider ones leave the arena too few pages, or do not fit it" + shortfall;
}

}  // namespace

const char* name(ChunkLimit limit) {
  switch (limit) {
    case ChunkLimit::nothing_streams:
      return "nothing streams";
    case ChunkLimit::work:
      return "work";
    case ChunkLimit::prompt:
      return "prompt";
    case ChunkLimit::asked:
      return "asked";
    case ChunkLimit::arena:
      break;
  }
  return "arena";
}

bool knows_rows(const StreamOptions& stream) {
  return stream.link_bytes_s != 0 && (stream.row_ns != 0 || stream.row_bytes_s != 0);
}

bool set_prompt(const Basis& basis, std::uint64_t pool_bytes, double most_ns, Plan& plan) {
  const StreamOptions& stream = basis.request.stream;
  if (stream.link_bytes_s == 0) {
    return true;
  }
  const PromptLoad load = load_of(basis, plan);
  PromptPlan out;
  out.placement = placement_of(plan);
  out.as_placed = predict_prompt(load, out.placement, plan.prefill_rows);
  out.time = out.as_placed;
  if (plan.mode == PlanMode::streaming && is_the_policys(stream)) {
    auto best =
        best_prompt_placement(load, {pool_bytes, basis.slot_bytes}, plan.prefill_rows, most_ns);
    if (!best) {
      return false;
    }
    out.placement = std::move(best->placement);
    out.time = best->time;
  }
  if (out.time.time_ns > most_ns) {
    return false;
  }
  plan.prompt = std::move(out);
  return true;
}

void set_chunk_reason(const Basis& basis, bool wider, Plan& plan) {
  if (basis.request.stream.link_bytes_s == 0) {
    return;
  }
  plan.prompt.limit = limit_of(basis.request, wider, plan);
  plan.prompt.why = reason_of(basis.request, plan);
}

}  // namespace kvspan
