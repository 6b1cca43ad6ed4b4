// SPDX-License-Identifier: Apache-2.0
// What `kvspan plan` was asked, as options, and the report of it. Not here: the parser
// (commands/plan.cpp), words (plan_report.hpp).
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/session/session.hpp"

#include "plan_report.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::host {

// Amounts are text as parse_bytes() takes it; empty where nothing was said.
struct PlanOptions {
  std::string plugin = "cpu";
  std::uint32_t device = 0;
  std::string model;
  std::uint32_t layers = 0;
  std::vector<std::string> layer_specs;  // layers that differ, in order; instead of `layers`
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size_k = 0;
  std::uint32_t head_size_v = 0;
  std::uint64_t context_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t page_tokens = 256;
  std::uint32_t prefill_rows = 1024;
  std::uint32_t decode_rows = 1;
  bool phases_take_turns = false;
  std::string k_type = "f16";
  std::string v_type = "f16";
  std::string arena;
  std::string json;

  // The link and the engine: what the policy needs.
  std::string calibration;
  std::string link;
  std::string attend;
  std::uint64_t copy_ns = 0;
  std::uint64_t gap_ns = 0;
  std::uint64_t jitter_ns = 0;
  std::uint64_t wave_ns = 0;
  std::uint64_t row_ns = 0;
  std::string attend_rows;
  std::string rule = "automatic";

  // The machine.
  std::string free;
  std::string reserve = "512MiB";
  std::string used = "0";
  std::string device_memory;
  std::string host_memory;
  std::string pinnable;
};

// The geometry and sizes that were asked for. Errors: invalid_argument (no geometry, unknown
// types), bad_file, too_large.
[[nodiscard]] Result<SessionOptions> session_options(const PlanOptions& options);

// The plan on a backend, in the arena that was named, and what the machine and the other rule make
// of it. Errors: those of plan(), headroom() and automatic_arena(); invalid_argument for amounts.
[[nodiscard]] Result<PlanReport> make_report(const PlanOptions& options,
                                             const SessionOptions& session,
                                             const Backend& backend);

}  // namespace kvspan::host
