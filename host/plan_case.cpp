// SPDX-License-Identifier: Apache-2.0
// Read first: plan_case.hpp.
#include "plan_case.hpp"

#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/layout/kv_type.hpp"

#include "amount.hpp"
#include "calibration.hpp"
#include "exit_code.hpp"
#include "layer_spec.hpp"
#include "model/gguf.hpp"
#include "model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvspan::host {

namespace {

// Everything that the plan adds up or multiplies stays far below 64 bits.
Result<void> check_size(const SessionOptions& session) {
  constexpr std::uint64_t kHistoryBytesMax = 1ULL << 60;
  const std::uint64_t page = std::max(session.geometry.page_tokens, 1U);
  auto bytes = live_bytes(session.geometry, (session.context_tokens + page - 1) / page * page);
  if (!bytes) {
    return tl::unexpected(std::move(bytes).error());
  }
  const auto all = checked_mul(*bytes, session.sequences);
  if (!all || *all > kHistoryBytesMax) {
    return tl::unexpected(error_of(
        Errc::too_large,
        fmt::format("a history of {} sequences of {} tokens is more than the {} bytes that can be "
                    "planned; use fewer sequences, layers or tokens",
                    session.sequences,
                    session.context_tokens,
                    kHistoryBytesMax),
        "history"));
  }
  return {};
}

// An amount that may be absent.
Result<std::uint64_t> bytes_or(const std::string& text, std::uint64_t otherwise) {
  return text.empty() ? Result<std::uint64_t>(otherwise) : parse_bytes(text, 0);
}

// From the calibration, then what was given beside it.
Result<StreamOptions> stream_options(const PlanOptions& options, const Backend& backend) {
  StreamOptions stream;
  if (!options.calibration.empty()) {
    const auto known = load_calibration(options.calibration, backend);
    if (!known) {
      return tl::unexpected(known.error());
    }
    apply_calibration(*known, stream);
  }
  const auto link = bytes_or(options.link, stream.link_bytes_s);
  const auto attend = bytes_or(options.attend, stream.attend_bytes_s);
  const auto attend_rows = bytes_or(options.attend_rows, 0);
  if (!link || !attend || !attend_rows) {
    return tl::unexpected(!link ? link.error() : (attend ? attend_rows.error() : attend.error()));
  }
  stream.row_ns = options.row_ns;
  stream.row_bytes_s = *attend_rows;
  stream.link_bytes_s = *link;
  stream.attend_bytes_s = *attend;
  stream.gap_ns = options.gap_ns;
  stream.copy_ns = options.copy_ns != 0 ? options.copy_ns : stream.copy_ns;
  stream.jitter_ns = options.jitter_ns != 0 ? options.jitter_ns : stream.jitter_ns;
  stream.wave_ns = options.wave_ns != 0 ? options.wave_ns : stream.wave_ns;
  stream.rule = options.rule == "overlap" ? PlacementRule::overlap : PlacementRule::automatic;
  return stream;
}

// What the device says is free; the largest number where it does not say.
std::uint64_t free_device_bytes(const Backend& backend) {
  std::uint64_t free = UINT64_MAX;
  kvspan_error_t error = empty_error();
  const auto asked = backend.tables().device->free_bytes(backend.device(), &free, &error);
  return asked == KVSPAN_OK && free != KVSPAN_UNKNOWN_AMOUNT ? free : UINT64_MAX;
}

Result<MachineMemory> machine_memory(const PlanOptions& options, const Backend& backend) {
  MachineMemory machine;
  machine.unified = (backend.info().flags & KVSPAN_DEVICE_UNIFIED_MEMORY) != 0;
  const std::pair<const std::string*, std::uint64_t*> amounts[] = {
      {&options.device_memory, &machine.device_bytes},
      {&options.used, &machine.device_used_bytes},
      {&options.reserve, &machine.reserve_bytes},
      {&options.host_memory, &machine.host_bytes}};
  for (const auto& [text, target] : amounts) {
    const auto bytes = bytes_or(*text, *target);
    if (!bytes) {
      return tl::unexpected(bytes.error());
    }
    *target = *bytes;
  }
  if (machine.unified && !options.device_memory.empty()) {
    return tl::unexpected(
        error_of(Errc::invalid_argument,
                 "this device shares the host's memory and has none of its own; say "
                 "how much there is with --host-memory",
                 "device memory"));
  }
  if (machine.unified) {
    machine.host_used_bytes = std::exchange(machine.device_used_bytes, 0);
  } else if (options.device_memory.empty()) {
    machine.device_bytes = free_device_bytes(backend);
  }
  return machine;
}

// The arena that was named, or what the rule makes of what is free. Fills request.arena_bytes.
Result<std::string> set_arena(const PlanOptions& options,
                              const Backend& backend,
                              const Plan& least,
                              PlanRequest& request) {
  if (options.arena != "auto") {
    const auto bytes = parse_bytes(options.arena, least.history_bytes);
    if (!bytes) {
      return tl::unexpected(bytes.error());
    }
    request.arena_bytes = std::max<std::uint64_t>(*bytes, 1);
    return std::string();
  }
  ArenaRule rule;
  const auto free = bytes_or(options.free, free_device_bytes(backend));
  const auto reserve = bytes_or(options.reserve, 0);
  if (!free || !reserve) {
    return tl::unexpected(free ? reserve.error() : free.error());
  }
  if (*free == UINT64_MAX) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "this device does not say how much of its memory is free; give "
                                   "--free, or name the arena in bytes",
                                   "arena"));
  }
  constexpr std::uint64_t kUnbounded = 1ULL << 60;
  PlanRequest whole = request;
  whole.arena_bytes = kUnbounded;
  whole.allocation_bytes_max = UINT64_MAX;
  const auto everything = plan(whole);
  rule.free_bytes = *free;
  rule.reserve_bytes = *reserve;
  rule.minimum_bytes = least.minimum_arena_bytes;
  rule.useful_bytes = everything ? everything->total_bytes() : kUnbounded;
  rule.grain_bytes = least.slot_bytes;
  rule.allocation_bytes_max = request.allocation_bytes_max;
  const auto arena = automatic_arena(rule);
  if (!arena) {
    return tl::unexpected(arena.error());
  }
  request.arena_bytes = arena->arena_bytes;
  return arena->rule;
}

}  // namespace

Result<SessionOptions> session_options(const PlanOptions& options) {
  model::ModelGeometry sizes;
  sizes.layers = options.layers;
  sizes.q_heads = options.q_heads;
  sizes.kv_heads = options.kv_heads;
  sizes.head_size_k = options.head_size_k;
  sizes.head_size_v = options.head_size_v == 0 ? options.head_size_k : options.head_size_v;
  if (!options.model.empty()) {
    const auto file = model::GgufFile::open(options.model);
    if (!file) {
      return tl::unexpected(file.error());
    }
    const auto config = model::read_model_config(*file);
    if (!config) {
      return tl::unexpected(as_bad_file(config.error()));
    }
    sizes = config->geometry;
  } else if (options.layer_specs.empty() && (sizes.layers == 0 || sizes.q_heads == 0 ||
                                             sizes.kv_heads == 0 || sizes.head_size_k == 0)) {
    return tl::unexpected(
        error_of(Errc::invalid_argument,
                 "give --model, or --layers, --q-heads, --kv-heads and --head-size, or --layer for "
                 "layers that differ",
                 "plan"));
  }
  const auto k_type = kv_type_named(options.k_type);
  const auto v_type = kv_type_named(options.v_type);
  if (!k_type || !v_type) {
    return tl::unexpected(k_type ? v_type.error() : k_type.error());
  }
  SessionOptions out;
  const LayerGeometry layer{
      k_type->id, v_type->id, sizes.head_size_k, sizes.head_size_v, sizes.kv_heads, sizes.q_heads};
  out.geometry.layers.assign(options.layer_specs.empty() ? sizes.layers : 0, layer);
  for (const std::string& spec : options.layer_specs) {
    const auto layers = parse_layers(spec, layer);
    if (!layers) {
      return tl::unexpected(layers.error());
    }
    out.geometry.layers.insert(out.geometry.layers.end(), layers->begin(), layers->end());
  }
  out.geometry.page_tokens = options.page_tokens;
  out.context_tokens = options.context_tokens;
  out.sequences = options.sequences;
  out.prefill_rows_max = options.prefill_rows;
  out.decode_rows = options.decode_rows;
  out.placement.phases_take_turns = options.phases_take_turns;
  if (auto checked = check_size(out); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  return out;
}

Result<PlanReport> make_report(const PlanOptions& options,
                               const SessionOptions& session,
                               const Backend& backend) {
  PlanRequest request = plan_request(backend, session);
  const auto stream = stream_options(options, backend);
  const auto pinnable = bytes_or(options.pinnable, UINT64_MAX);
  const auto machine = machine_memory(options, backend);
  if (!stream || !pinnable || !machine) {
    return tl::unexpected(!stream ? stream.error()
                                  : (pinnable ? machine.error() : pinnable.error()));
  }
  SessionOptions streaming = session;
  streaming.stream = request.stream = *stream;
  request.pinnable_bytes = *pinnable;
  request.backend_bytes = prepared_bytes_of(backend, streaming);
  auto found = plan(request);
  if (!found) {
    return tl::unexpected(std::move(found).error());
  }
  PlanReport report;
  report.stream = *stream;
  report.minimum = options.arena.empty();
  if (!report.minimum) {
    auto rule = set_arena(options, backend, *found, request);
    if (!rule) {
      return tl::unexpected(std::move(rule).error());
    }
    report.arena_rule = std::move(*rule);
    found = plan(request);
    if (!found) {
      return tl::unexpected(std::move(found).error());
    }
  }
  report.plan = std::move(*found);
  if (stream->link_bytes_s != 0 && report.plan.mode == PlanMode::streaming) {
    report.ring = ring_need(step_load(request, report.plan), placement_of(report.plan));
  }
  const auto spare = headroom(*machine, report.plan.total_bytes(), report.plan.pinned_bytes);
  if (!spare) {
    return tl::unexpected(spare.error());
  }
  report.spare = *spare;
  request.stream.rule = PlacementRule::overlap;
  if (stream->rule == PlacementRule::automatic && report.plan.mode == PlanMode::streaming) {
    if (auto theirs = plan(request)) {
      report.overlap = std::move(*theirs);
    }
  }
  return report;
}

}  // namespace kvspan::host
