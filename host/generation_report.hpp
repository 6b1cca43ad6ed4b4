// SPDX-License-Identifier: Apache-2.0
// What `generate` says at the end: text, summary, verification, JSON. Read next: generation.hpp.
#pragma once

#include "kvspan/core/policy/link.hpp"

#include "generation.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace kvspan::host {

// An arena that no history fills: everything resident; the session allocates what the plan says,
// not this much.
inline constexpr std::uint64_t kWholeHistoryArena = 1ULL << 62;

// The streamed run against the resident one.
struct Verification {
  bool equal = false;
  bool interrupted = false;
  std::uint64_t first_difference =
      0;  // index of the first generated token that differs in id or logits
  std::uint64_t compared_tokens = 0;
  std::uint32_t chunk_rows = 0;  // of both runs
};

struct GenerationReport {
  std::string plugin;
  std::uint64_t arena_bytes = 0;
  std::optional<DeviceCalibration> calibration;  // that pages were placed by
  std::string text;
  GenerationResult run;
  std::optional<Verification> verified;
};

// Bit for bit: ids and every logit.
[[nodiscard]] Verification compare(const GenerationResult& streamed,
                                   const GenerationResult& resident);

// For people: several lines, each with its line end.
[[nodiscard]] std::string generation_summary(const GenerationReport& report);

// The same and more for programs. `logits_hash` is a hash of all logits' bytes.
[[nodiscard]] nlohmann::ordered_json generation_json(const GenerationReport& report);

}  // namespace kvspan::host
