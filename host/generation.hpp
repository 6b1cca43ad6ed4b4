// SPDX-License-Identifier: Apache-2.0
// One run of the demo engine: prompt in chunks, then greedy tokens, through a kvspan session.
// Not here: options and printing (commands/generate.cpp).
#pragma once

#include "kvspan/core/session/session.hpp"

#include "model/thread_team.hpp"
#include "model/transformer.hpp"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace kvspan::host {

struct GenerationRequest {
  const model::Model* model = nullptr;  // outlives the run
  std::vector<std::uint32_t> prompt;    // ids
  std::uint32_t tokens = 0;             // to generate
  std::vector<std::uint32_t> stop_ids;  // end of text
  SessionOptions session;
};

// Told after every chunk and token.
struct Progress {
  std::string_view phase;
  std::uint64_t done = 0;  // tokens of this phase
  std::uint64_t total = 0;
  std::uint64_t timed_tokens = 0;  // of done, those that the seconds paid for: the first generated
                                   // token comes out of the prompt's last row
  double seconds = 0.0;            // since this phase began
  double resident_share = 0.0;     // of attended pages, so far
};

struct GenerationResult {
  std::vector<std::uint32_t> ids;  // generated
  std::vector<float> logits;       // [generated id, vocabulary] that each was chosen from
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  std::uint64_t decode_steps = 0;
  std::uint64_t history_tokens = 0;  // committed at the end
  std::uint64_t decode_streamed_bytes = 0;
  Plan plan;
  Counters counters;
  bool interrupted = false;
};

// Opens a session, runs it, closes it. `progress` may be empty; `interrupted` is asked between
// steps and stops the run at the last commit. Errors: the session's and the evaluator's.
[[nodiscard]] Result<GenerationResult> generate(
    const Backend& backend,
    model::ThreadTeam& team,
    const GenerationRequest& request,
    const std::function<void(const Progress&)>& progress,
    const std::function<bool()>& interrupted);

}  // namespace kvspan::host
