// SPDX-License-Identifier: Apache-2.0
// The cost model of a whole prompt: what its chunks move and how long they take, chunk by chunk
// through step_time.hpp. A chunk's rows all attend to the history behind them, so the traffic is
// about tokens^2 / (2 x chunk) x bytes a token: wide chunks move less, and their work covers more
// of the link. Pure; any thread. Not here: which chunk is chosen (memory/budget.hpp). Read next:
// docs/design/policy.md.
#pragma once

#include "kvspan/core/policy/link.hpp"
#include "kvspan/core/policy/placement.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvspan {

struct PromptLayer {
  std::uint64_t page_bytes = 0;
  std::uint64_t window_tokens = 0;  // 0 = full attention
  std::uint64_t rolling_pages = 0;  // resident ones that hold all its rows see; 0 = none do
};

struct PromptLoad {
  std::vector<PromptLayer> layers;
  std::uint64_t tokens = 0;  // of the prompt of each sequence
  std::uint32_t page_tokens = 0;
  std::uint32_t sequences = 1;  // whose chunks are steps together
  Link link;
  double jitter_ns = 0.0;    // by which a group may be late
  double row_ns = 0.0;       // the engine's other work for a row, all layers together
  double row_bytes_s = 0.0;  // K/V bytes attended a second, times rows; 0 = in no time
  double wave_ns = 0.0;      // of attention of a fetched group, beyond its bytes
};

// Numbers of all sequences' prompts together.
struct PromptTime {
  std::uint64_t chunks = 0;
  std::uint64_t up_bytes = 0;    // pages that are not resident, once a chunk that sees them
  std::uint64_t down_bytes = 0;  // every page once
  double time_ns = 0.0;          // never below link_ns, nor work_ns and waves_ns together
  double link_ns = 0.0;          // that the link needs for up_bytes
  double work_ns = 0.0;          // attention and the engine's, the same for every width
  double waves_ns = 0.0;         // beside that, of the groups of all chunks: wide chunks have few
  double last_link_ns = 0.0;     // of the last whole chunk, which is the hardest to cover
  double last_work_ns = 0.0;

  // Whether the link is never waited for.
  [[nodiscard]] bool covered() const { return time_ns <= work_ns + waves_ns; }
};

// Chunks of `rows` rows. up_bytes is
// to the byte what a session with this placement streams, up to 65,536 chunks; beyond, and times
// beyond 32 chunks, are those of as many chunks spread evenly. For one width, more ring or more
// resident pages never make any number larger. tokens, rows, page_tokens and the link's rate are
// above 0; the placement's vectors have the load's layers.
[[nodiscard]] PromptTime predict_prompt(const PromptLoad& load,
                                        const Placement& placement,
                                        std::uint32_t rows);

// Where pages lie while prompts are taken in, and what the prompt takes then.
struct PromptPlacement {
  Placement placement;
  PromptTime time;
};

// The best of some hundred placements in a pool for ring and resident pages: groups, rings of a few
// groups to fifty, quarters of the layers that stream. Of those the one with the least predicted
// time, or, where waves cost nothing, the first that never waits. A larger pool never predicts a
// slower prompt. nullopt where two slots do not fit, and where no placement takes at most
// `most_ns`.
[[nodiscard]] std::optional<PromptPlacement> best_prompt_placement(const PromptLoad& load,
                                                                   const Pool& pool,
                                                                   std::uint32_t rows,
                                                                   double most_ns);

}  // namespace kvspan
