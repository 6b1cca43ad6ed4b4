// SPDX-License-Identifier: Apache-2.0
// `kvspan bench prefill`: chunks of a prompt behind a random history of which a share is on the
// host, beside the same chunks with everything resident; and both directions of the link at once.
// Not here: options (commands/bench_prefill.cpp).
#pragma once

#include "kvspan/bench/both_ways.hpp"
#include "kvspan/bench/chunk_steps.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvspan::host {

struct PrefillBenchRequest {
  LayerGeometry layer;
  std::uint32_t layers = 16;
  std::uint32_t page_tokens = 256;
  kvspan_type_t query_type = KVSPAN_TYPE_F32;    // or F16
  std::optional<DeviceCalibration> calibration;  // else the link is measured and nothing else known
  std::vector<std::uint64_t> contexts;           // tokens before the first chunk
  std::vector<std::uint32_t> chunk_rows;         // rows a chunk
  std::vector<std::uint32_t> host_percent;       // pages of each layer that are not resident
  std::uint32_t group_pages = 0;
  bench::ChunkTurns turns;
};

// One context, width and share: medians over its timed chunks, and what the largest of them moved.
struct PrefillBenchRow {
  std::uint64_t context = 0;
  std::uint32_t chunk_rows = 0;
  std::uint32_t host_percent = 0;
  bench::ChunkTimes times;
  bench::Spread seconds;
  bench::Spread resident_seconds;
  double link_seconds = 0.0;       // of the bytes up, at the link's rate
  double over_bound = 0.0;         // of the larger of both, chunk by chunk
  double predicted_seconds = 0.0;  // by the cost model, from the link and the resident chunk
};

struct PrefillBenchResult {
  double link_bytes_s = 0.0;  // up, alone
  bench::BothWays both_ways;
  std::vector<PrefillBenchRow> rows;
};

// `told_link` comes once, before the first row; `told` after every row. Errors: the session's;
// `internal` where a value or a count of bytes is wrong.
[[nodiscard]] Result<PrefillBenchResult> bench_prefill(
    const Backend& backend,
    const PrefillBenchRequest& request,
    const std::function<void(const PrefillBenchResult&)>& told_link,
    const std::function<void(const PrefillBenchRow&)>& told);

// Lines for people: of the link, with the heading of the rows; of a row.
[[nodiscard]] std::string prefill_bench_heading(const PrefillBenchResult& result);
[[nodiscard]] std::string prefill_bench_line(const PrefillBenchRow& row);

[[nodiscard]] nlohmann::ordered_json prefill_bench_json(const PrefillBenchRequest& request,
                                                        const PrefillBenchResult& result);

}  // namespace kvspan::host
