// SPDX-License-Identifier: Apache-2.0
// `kvspan bench decode`: steps over a random history of which a share is on the host, against the
// same steps with everything resident. Not here: options (commands/bench.cpp).
#pragma once

#include "kvspan/bench/decode_steps.hpp"

#include "arena_sweep.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvspan::host {

struct DecodeBenchRequest {
  LayerGeometry layer;
  std::uint32_t layers = 16;
  std::uint32_t page_tokens = 256;
  kvspan_type_t query_type = KVSPAN_TYPE_F32;    // or F16
  std::optional<DeviceCalibration> calibration;  // else the link is measured and nothing else known
  std::vector<std::uint64_t> contexts;           // tokens
  std::vector<std::uint32_t> widths;             // rows a step
  std::vector<std::uint32_t> host_percent;       // pages of each layer that are not resident
  std::uint32_t arenas = 0;  // not 0: so many arenas in place of shares, of one context and width
  StreamOptions stream;
  std::uint32_t timed_steps = 9;
  bool wait_each_layer = false;
  bool submission_thread = false;  // the session's calls are made by a thread of core's
};

// One context, width and share.
struct DecodeBenchRow {
  std::uint64_t context = 0;
  std::uint32_t host_percent = 0;
  std::uint64_t arena_bytes = 0;
  std::uint32_t resident_pages = 0;  // of the first layer
  std::uint32_t ring_pages = 0;
  std::uint32_t group_pages = 0;
  bench::StepTimes times;
  bench::Spread resident_seconds;
  double predicted_seconds = 0.0;  // by the cost model, from the link and the resident step
  std::string check;
};

struct DecodeBenchResult {
  double link_bytes_s = 0.0;
  std::vector<DecodeBenchRow> rows;
  std::vector<SweepPoint> arenas;
};

// Told after every row and arena.
struct DecodeBenchListener {
  std::function<void(const DecodeBenchRow&, double link_bytes_s)> row;
  std::function<void(const SweepPoint&, double link_bytes_s)> arena;
};

// Errors: the session's; `internal` where a value or a count of bytes is wrong.
[[nodiscard]] Result<DecodeBenchResult> bench_decode(const Backend& backend,
                                                     const DecodeBenchRequest& request,
                                                     const DecodeBenchListener& told);

// A line for people; the heading comes first.
[[nodiscard]] std::string decode_bench_heading();
[[nodiscard]] std::string decode_bench_line(const DecodeBenchRow& row, double link_bytes_s);

[[nodiscard]] nlohmann::ordered_json decode_bench_json(const DecodeBenchRequest& request,
                                                       const DecodeBenchResult& result);

}  // namespace kvspan::host
