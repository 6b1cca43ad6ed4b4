// SPDX-License-Identifier: Apache-2.0
// The one function that says how many bytes a geometry needs and what an arena of a given size does
// with them: used by the planner, the session and every refusal alike. Needs no device:
// capabilities are handed in. Read next: session/session.hpp (which lays out exactly this),
// memory/arena.hpp.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/history/host_chunk.hpp"
#include "kvspan/core/layout/geometry.hpp"
#include "kvspan/core/policy/prompt_time.hpp"
#include "kvspan/core/policy/step_time.hpp"
#include "kvspan/kvspan.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvspan {

// Told by the engine, never guessed from a count: one token of a prompt is still prefill.
enum class Phase : std::uint8_t { prefill, decode };

[[nodiscard]] const char* name(Phase phase);

// The capability of `layer` for `rows` rows a sequence in `phase`: asked of a backend, or recorded
// earlier.
using CapabilityLookup = std::function<Result<kvspan_attention_caps_t>(
    std::size_t layer, Phase phase, std::uint32_t rows)>;

// A group of this many pages costs the link next to nothing between copies; more slots hide nothing
// and are better resident.
inline constexpr std::uint32_t kGroupPagesMax = 32;

// Who says which pages are resident and how large the ring is.
enum class PlacementRule : std::uint8_t {
  automatic,  // where the link is known the policy; else a third of the room to the ring
  overlap  // the rule of the systems kvspan starts from, for comparison: equal layers, 1 sequence
};

// How history that is not resident comes to the device. The policy decides where the link's rate is
// known, groups are not fixed and residents not limited.
struct StreamOptions {
  // Pages of a wave, and of a copy but where a layer goes at once; 0 = up to 32, in a room of its
  // own for prefill up to 64, as the arena allows.
  std::uint32_t group_pages = 0;
  std::uint64_t gap_ns = 0;        // time in which nobody consumes K/V, between two layers
  std::uint64_t jitter_ns = 0;     // by which a group may be late
  std::uint64_t link_bytes_s = 0;  // rate at which pages come; 0 = not known: no ring for gaps
  std::uint32_t resident_pages_max = UINT32_MAX;  // a layer and sequence
  std::uint64_t copy_ns = 0;                      // of a copy before its first byte
  std::uint64_t attend_bytes_s = 0;  // K/V bytes attended a second where they lie; 0 = in no time
  std::uint64_t wave_ns = 0;         // of attention of a fetched group, beyond its bytes
  // Of prefill rows; with one of them the planner chooses the chunk by them, else the widest.
  std::uint64_t row_ns = 0;       // the engine's other work for a row, all layers together
  std::uint64_t row_bytes_s = 0;  // K/V bytes attended a second, times rows; 0 = in no time
  PlacementRule rule = PlacementRule::automatic;
};

// Pages that arrive while nobody consumes any: what a ring holds beyond its two groups.
[[nodiscard]] std::uint64_t gap_pages(const StreamOptions& stream, std::uint64_t page_bytes);

// Bytes of the arena that the plan itself knows nothing of.
// With a phase: what somebody uses in that phase alone ("draft": a draft model's weights, "graph":
// what a capture needs). Phases are serial, so they share one place; demands of one phase lie
// beside each other, and beside the plan's own scratch where the phase is "prefill" or "decode".
// Without one: held by somebody else in every phase, outside what core allocates.
struct Demand {
  std::string phase;
  std::string component;
  std::uint64_t size_bytes = 0;
};

struct Plan;

// Device memory that the backend takes for itself, in bytes, to be ready for a plan's submits.
// plan() asks for plans that it then does not return, and last for the one that it returns.
using BackendBytes = std::function<Result<std::uint64_t>(const Plan&)>;

struct PlanRequest {
  Geometry geometry;
  std::uint64_t context_tokens = 0;  // longest history of a sequence
  std::uint32_t sequences = 1;
  std::uint32_t prefill_rows_max = 1024;  // rows a sequence and step; the planner may choose fewer
  std::uint32_t prefill_rows_fixed = 0;   // not 0: exactly this many, or refuse
  std::uint32_t decode_rows = 1;          // rows a sequence and step, 1..64
  std::uint64_t rewind_tokens = 64;       // as SessionOptions::rewind_tokens
  std::uint64_t arena_bytes = 0;          // 0 = only tell the minimum
  std::uint64_t pinnable_bytes = UINT64_MAX;  // host memory that the device may reach, measured
  std::uint64_t import_alignment = 1;         // of the device; pinned chunks are multiples of it
  std::uint64_t allocation_bytes_max = UINT64_MAX;  // of the device: the arena is one allocation
  bool phases_take_turns = false;                   // prefill and decode lie one over the other
  StreamOptions stream;
  std::vector<Demand> demands;
  CapabilityLookup capabilities;
  BackendBytes backend_bytes;  // empty: it takes nothing, or there is no device to ask
};

// One part of the arena in one phase.
struct PlanComponent {
  std::string name;
  std::uint64_t size_bytes = 0;
};

// What one phase does with the arena. The components are always the same for the plan's own phases
// ("resident pages", "ring", "tails", "split states", "accumulators", "workspace"), then demands by
// their own names, then "idle": what this phase leaves unused because another one needs it. Their
// sum is exactly Plan::total_bytes() in every phase.
struct PhaseBudget {
  std::string name;  // "load", "prefill", "decode", then those of the demands
  std::vector<PlanComponent> components;

  // Bytes that the phase needs: all but "idle".
  [[nodiscard]] std::uint64_t needed_bytes() const;
};

// Byte sizes of the arena's regions, in their order; each offset is the sum of those before it.
struct PlanRegions {
  std::uint64_t resident_bytes = 0;  // where phases take turns, first what both have
  std::uint64_t slots_bytes = 0;     // ring slots, then tail slots, all of slot_bytes
  std::uint64_t states_bytes = 0;
  std::uint64_t accumulators_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint64_t lent_bytes = 0;  // for demands of a phase, beyond scratch that it leaves alone

  // States, accumulators and workspace, which follow each other: what a phase without attention may
  // use for itself.
  [[nodiscard]] std::uint64_t scratch_bytes() const {
    return states_bytes + accumulators_bytes + workspace_bytes;
  }

  // What core allocates.
  [[nodiscard]] std::uint64_t total_bytes() const {
    return resident_bytes + slots_bytes + scratch_bytes() + lent_bytes;
  }
};

enum class PlanMode : std::uint8_t { resident, streaming };

[[nodiscard]] const char* name(PlanMode mode);

// What keeps prefill chunks from being wider.
enum class ChunkLimit : std::uint8_t {
  nothing_streams,  // everything is resident
  work,             // its work covers the stream: wider ones would not be faster
  prompt,           // the prompt is no longer
  asked,            // prefill_rows_fixed or prefill_rows_max
  arena             // wider ones do not fit, or leave so few pages that the prompt takes longer
};

[[nodiscard]] const char* name(ChunkLimit limit);

// What one phase has of the arena where phases take turns. Both rooms have as many bytes in all.
struct PhaseRoom {
  PlanMode mode = PlanMode::streaming;
  PlanRegions regions;
  std::uint32_t tail_slots = 0;
  Placement placement;
};

// A prompt of context_tokens for every sequence, in the plan's chunks and its room for pages.
struct PromptPlan {
  Placement placement;   // the best one for it; the plan's own is the best for decode
  PromptTime time;       // with that placement; 0 where no link is known
  PromptTime as_placed;  // with the plan's own, which a session has that never changes it
  ChunkLimit limit = ChunkLimit::arena;
  std::string why;  // a sentence; empty where no link is known
};

struct Plan {
  PlanMode mode = PlanMode::streaming;
  PlanRegions regions;
  std::uint64_t reserved_bytes = 0;  // demands of every phase: counted, not allocated by core
  std::vector<PhaseBudget> phases;
  std::vector<PageLayout> pages;             // [layer]
  std::vector<std::uint32_t> visible_pages;  // [layer] of one sequence, in a decode step
  std::vector<std::uint32_t> rolling_pages;  // [layer] that hold all a window's rows see; 0 = none
  // [layer] of every sequence: its first pages; of a window as many as roll, or none.
  std::vector<std::uint32_t> resident_pages;
  std::vector<std::uint64_t>
      resident_offsets;  // [layer] bytes from the start of a sequence's resident part
  std::uint64_t resident_sequence_bytes = 0;  // resident part of one sequence
  // Where phases take turns: prefill's room, then decode's. The plan's own mode, regions, ring,
  // groups, tails and residents are those of `phase`. The first pages of each layer that both rooms
  // have lie before all others and stay where they are; resident_offsets are of those behind them.
  std::vector<PhaseRoom> rooms;
  Phase phase = Phase::decode;
  std::vector<std::uint32_t> kept_pages;    // [layer], at most resident_pages; 0 without rooms
  std::vector<std::uint64_t> kept_offsets;  // [layer] from the start of a sequence's kept part
  std::uint64_t kept_sequence_bytes = 0;
  std::uint64_t slot_bytes = 0;  // the largest page of any layer
  std::uint32_t ring_slots = 0;
  std::uint32_t group_pages = 1;  // pages a fetch
  std::uint32_t tail_slots = 0;
  std::uint32_t prefill_rows = 0;  // rows a sequence and step
  std::uint32_t decode_rows = 0;
  std::uint32_t prefill_splits_in_flight = 1;
  std::uint32_t decode_splits_in_flight = 1;
  std::uint32_t pages_a_sequence = 0;  // of one layer at context_tokens
  std::uint64_t alignment = 0;         // of every region
  std::uint64_t minimum_arena_bytes = 0;
  StepTime predicted;  // of a decode step at context_tokens; 0 where no link is known
  PromptPlan prompt;   // in chunks of prefill_rows
  std::vector<HostClass> host_classes;    // layers whose host pages are given back together
  std::vector<std::uint32_t> host_pages;  // [class] of one sequence, held on the host at most
  std::uint64_t history_bytes = 0;  // host bytes of all sequences at context_tokens, page-padded
  std::uint64_t pinned_bytes = 0;   // of the chunks that hold them: what is pinned at the end
  std::uint64_t pinned_chunk_bytes = 0;  // a chunk of every class: pinned at a time, as they grow

  // What is compared with arena_bytes.
  [[nodiscard]] std::uint64_t total_bytes() const { return regions.total_bytes() + reserved_bytes; }
};

// Exact bytes. With arena_bytes the largest layout that fits; without, the minimum's layout.
// Errors: invalid_argument or unsupported (what the geometry asks); too_large past 64 bits or 2^32
// slots, and when the layout is larger than the device allocates at once: required, provided and
// missing are the allocation's bytes. device_memory when the arena is below the minimum: required =
// minimum, component and message name phase, largest component and shortfall. host_memory when more
// would be pinned than can be. backend_bytes' own. The same request with exactly `required` bytes
// succeeds and with one less fails, what the backend takes included where it can be asked.
[[nodiscard]] Result<Plan> plan(const PlanRequest& request);

// What a decode step at the request's context asks of the device, in the policy's words, with what
// the request says of its link.
[[nodiscard]] StepLoad step_load(const PlanRequest& request, const Plan& plan);

// Whether the request leaves ring, groups and residents to the policy.
[[nodiscard]] bool is_the_policys(const StreamOptions& stream);

// What a plan places: its ring, groups and residents, in the policy's words.
[[nodiscard]] Placement placement_of(const Plan& plan);

// The same plan as it is in a phase: its rooms' bytes, or, without rooms, no other.
[[nodiscard]] Plan entered(const Plan& plan, Phase phase);

// The same plan with another placement in the same bytes, of its phase; its prediction is the old
// one's.
// Errors: invalid_argument for a placement that is not the plan's layers' or has a ring of less
// than two slots or a group; device_memory where it takes more, with what is missing.
[[nodiscard]] Result<Plan> replaced(const Plan& plan,
                                    std::uint32_t sequences,
                                    const Placement& placement);

// Pages of a layer that `rows` new rows of a sequence can see at once: all of the context's without
// a window; else those that `window_tokens + rows - 1` tokens can touch wherever they begin. Pages
// before them retire: no later step reads them.
[[nodiscard]] std::uint64_t visible_pages(std::uint64_t context_tokens,
                                          std::uint64_t window_tokens,
                                          std::uint32_t rows,
                                          std::uint32_t page_tokens);

// Pages of a layer of a class that one sequence holds on the host at most, in steps of up to `rows`
// rows: those that are kept, of a step whose rows are on their way, and of the step behind it.
[[nodiscard]] std::uint64_t kept_pages(std::uint64_t context_tokens,
                                       std::uint64_t kept_tokens,
                                       std::uint32_t rows,
                                       std::uint32_t page_tokens);

// tail(rows) of the contract: ceil((rows + page - 1) / page) + 1 pages a sequence and layer.
[[nodiscard]] constexpr std::uint32_t tail_pages(std::uint32_t rows, std::uint32_t page_tokens) {
  const std::uint64_t span = static_cast<std::uint64_t>(rows) + page_tokens - 1;
  return static_cast<std::uint32_t>((span + page_tokens - 1) / page_tokens + 1);
}

// Rows whose S differs are separate entries with separately aligned states. S grows by a granule
// every N granules of tokens, so a chunk of `rows` rows meets at most this many values.
[[nodiscard]] constexpr std::uint64_t entries_bound(std::uint32_t rows,
                                                    std::uint32_t splits,
                                                    std::uint32_t granule) {
  return (rows - 1) / (static_cast<std::uint64_t>(splits) * granule) + 2;
}

// Splits of so many units and more are whole units: at most an eighth longer.
inline constexpr std::uint64_t kUnitsOfLongSplit = 8;

// S(n): tokens of a split of a history of n visible tokens, N splits, cut at granules; long ones at
// units, a multiple of the granule. Prefill's unit is the page, so that no page lies in two splits;
// decode's the granule, since its splits are as many as run at once and each would be a page
// longer.
[[nodiscard]] constexpr std::uint64_t split_tokens(std::uint64_t visible_tokens,
                                                   std::uint32_t splits,
                                                   std::uint32_t granule,
                                                   std::uint32_t unit = 1) {
  const std::uint64_t each = (visible_tokens + splits - 1) / splits;
  const std::uint64_t step = each >= kUnitsOfLongSplit * unit && unit > granule ? unit : granule;
  const std::uint64_t rounded = (each + step - 1) / step * step;
  return rounded == 0 ? granule : rounded;
}

}  // namespace kvspan
