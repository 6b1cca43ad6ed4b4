// SPDX-License-Identifier: Apache-2.0
// plan(): candidate layouts from wide prefill chunks to narrow ones, the first that fits wins.
// Order of the regions: resident pages, slots (ring, tails), split states, accumulators, workspace.
#include "kvspan/core/memory/budget.hpp"

#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/layout/kv_type.hpp"

#include <algorithm>
#include <numeric>

namespace kvspan {

const char* name(Phase phase) {
  return phase == Phase::prefill ? "prefill" : "decode";
}

const char* name(PlanMode mode) {
  return mode == PlanMode::resident ? "resident" : "streaming";
}

namespace {

// Regions start at multiples of this: the largest memory alignment that a device may ask for.
constexpr std::uint64_t kRegionAlignment = 256;

// Two groups in flight: one that is read while the other arrives. Fewer slots would stop the link
// at every wave.
constexpr std::uint32_t kRingSlotsMin = 2;

// The ring's share of the slots that a small arena has left after tails and scratch.
constexpr std::uint32_t kRingShare = 3;

// Scratch (states, accumulators, workspace) and tails may take at most this part of a streaming
// arena before the chunk is narrowed: the rest holds pages, which is what the arena is for.
constexpr std::uint64_t kScratchShare = 2;

// A chunk below this many rows is only taken when nothing wider fits.
constexpr std::uint32_t kNarrowRows = 64;

// What one phase needs at a number of rows.
struct Scratch {
  std::uint64_t states_bytes = 0;
  std::uint64_t accumulators_bytes = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t splits_in_flight = 1;

  [[nodiscard]] std::uint64_t total_bytes() const {
    return states_bytes + accumulators_bytes + workspace_bytes;
  }
};

// Facts of the request that do not change while candidates are tried.
struct Basis {
  const PlanRequest& request;
  std::vector<PageLayout> pages;
  std::uint64_t slot_bytes = 0;
  std::uint64_t page_row_bytes = 0;  // one page of every layer
  std::uint32_t pages_a_sequence = 0;
};

// Splits that decode rows touch at most: N, one more where a row's first token lies inside a split,
// and with a window those that the last row sees further than the first.
std::uint32_t splits_open(const kvspan_attention_caps_t& caps,
                          std::uint64_t window_tokens,
                          std::uint32_t rows) {
  const std::uint64_t further =
      window_tokens == 0
          ? 0
          : (rows - 1) / split_tokens(window_tokens, caps.split_count, caps.span_granule) + 1;
  return caps.split_count + 1 + static_cast<std::uint32_t>(further);
}

Result<Scratch> scratch(const Basis& basis, Phase phase, std::uint32_t rows) {
  Scratch total;
  std::uint64_t run_bytes = 0;
  std::uint64_t state_max = 0;  // of any layer: every layer's splits lie in the same places
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    const LayerGeometry& geometry = basis.request.geometry.layers[layer];
    auto caps = basis.request.capabilities(layer, phase, rows);
    if (!caps) {
      Error error = std::move(caps).error();
      error.message = "layer " + std::to_string(layer) + ", " + name(phase) + ": " + error.message;
      return tl::unexpected(std::move(error));
    }
    const std::uint64_t alignment = std::max<std::uint64_t>(caps->state_alignment, 1);
    const std::uint64_t heads = geometry.q_heads;
    const std::uint64_t state =
        rows * heads * geometry.head_size_v * sizeof(float) + rows * heads * 2 * sizeof(float) +
        2 * alignment * entries_bound(rows, caps->split_count, caps->span_granule);
    // Prefill walks its splits one after another; decode keeps them all open, which costs little at
    // so few rows and lets one wave feed every split.
    const std::uint32_t in_flight =
        phase == Phase::decode ? splits_open(*caps, geometry.window_tokens, rows) : 1;
    total.splits_in_flight = std::max(total.splits_in_flight, in_flight);
    state_max = std::max(state_max, state);
    total.accumulators_bytes =
        std::max(total.accumulators_bytes, align_up(state, kRegionAlignment));
    const std::uint64_t workspace = std::max(
        {caps->advance_workspace_bytes, caps->fold_workspace_bytes, caps->finish_workspace_bytes});
    total.workspace_bytes = std::max(total.workspace_bytes, align_up(workspace, kRegionAlignment));
    run_bytes = std::max(run_bytes, align_up(caps->run_workspace_bytes, kRegionAlignment));
  }
  total.states_bytes = align_up(total.splits_in_flight * state_max, kRegionAlignment);
  // Where everything is on the device, one call does all of a layer. It uses the places of states
  // and accumulators, which are not in use then, and what it needs beyond them.
  const std::uint64_t shared_bytes = total.states_bytes + total.accumulators_bytes;
  if (run_bytes > shared_bytes) {
    total.workspace_bytes = std::max(total.workspace_bytes, run_bytes - shared_bytes);
  }
  return total;
}

struct Candidate {
  std::uint32_t prefill_rows = 0;
  Scratch prefill;
  Scratch decode;
  std::uint32_t prefill_tails = 0;
  std::uint32_t decode_tails = 0;

  [[nodiscard]] std::uint32_t tail_slots() const { return std::max(prefill_tails, decode_tails); }
};

Result<Candidate> candidate(const Basis& basis, std::uint32_t rows) {
  const PlanRequest& request = basis.request;
  const std::uint32_t page = request.geometry.page_tokens;
  auto prefill = scratch(basis, Phase::prefill, rows);
  if (!prefill) {
    return tl::unexpected(std::move(prefill).error());
  }
  auto decode = scratch(basis, Phase::decode, request.decode_rows);
  if (!decode) {
    return tl::unexpected(std::move(decode).error());
  }
  Candidate out{rows, *prefill, *decode, 0, 0};
  // Prefill tails belong to the running layer only and are free once their host copy is complete;
  // decode tails of every layer stay, so that a token does not fetch its own page again.
  out.prefill_tails = request.sequences * tail_pages(rows, page);
  out.decode_tails = request.sequences * static_cast<std::uint32_t>(basis.pages.size()) *
                     tail_pages(request.decode_rows, page);
  return out;
}

std::uint64_t resident_sequence_bytes(const Basis& basis,
                                      const std::vector<std::uint32_t>& counts) {
  std::uint64_t total_bytes = 0;
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    total_bytes += counts[layer] * basis.pages[layer].page_bytes;
  }
  return align_up(total_bytes, kRegionAlignment);
}

void set_regions(const Basis& basis, const Candidate& rows, Plan& out) {
  out.pages = basis.pages;
  out.slot_bytes = basis.slot_bytes;
  out.pages_a_sequence = basis.pages_a_sequence;
  out.alignment = kRegionAlignment;
  out.prefill_rows = rows.prefill_rows;
  out.decode_rows = basis.request.decode_rows;
  out.prefill_splits_in_flight = rows.prefill.splits_in_flight;
  out.decode_splits_in_flight = rows.decode.splits_in_flight;
  out.resident_sequence_bytes = resident_sequence_bytes(basis, out.resident_pages);
  out.resident_offsets.assign(basis.pages.size(), 0);
  std::uint64_t offset = 0;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    out.resident_offsets[layer] = offset;
    offset += out.resident_pages[layer] * basis.pages[layer].page_bytes;
  }
  PlanRegions& regions = out.regions;
  regions.resident_bytes = basis.request.sequences * out.resident_sequence_bytes;
  regions.slots_bytes =
      align_up((static_cast<std::uint64_t>(out.ring_slots) + out.tail_slots) * basis.slot_bytes,
               kRegionAlignment);
  regions.states_bytes = std::max(rows.prefill.states_bytes, rows.decode.states_bytes);
  regions.accumulators_bytes =
      std::max(rows.prefill.accumulators_bytes, rows.decode.accumulators_bytes);
  regions.workspace_bytes = std::max(rows.prefill.workspace_bytes, rows.decode.workspace_bytes);
}

void set_components(const Basis& basis, const Candidate& rows, Plan& out) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const bool prefill = phase == Phase::prefill;
    const Scratch& part = prefill ? rows.prefill : rows.decode;
    const std::uint64_t tails =
        out.mode == PlanMode::resident ? 0 : (prefill ? rows.prefill_tails : rows.decode_tails);
    out.components.push_back({"resident pages", phase, out.regions.resident_bytes});
    out.components.push_back({"ring", phase, out.ring_slots * basis.slot_bytes});
    out.components.push_back({"tails", phase, tails * basis.slot_bytes});
    out.components.push_back({"split states", phase, part.states_bytes});
    out.components.push_back({"accumulators", phase, part.accumulators_bytes});
    out.components.push_back({"workspace", phase, part.workspace_bytes});
  }
}

// Every page of the context resident: no ring, no tails.
Plan resident_layout(const Basis& basis, const Candidate& rows) {
  Plan out;
  out.mode = PlanMode::resident;
  out.resident_pages.assign(basis.pages.size(), basis.pages_a_sequence);
  set_regions(basis, rows, out);
  set_components(basis, rows, out);
  return out;
}

// The least that streams: two ring slots, tails, nothing resident.
Plan streaming_minimum(const Basis& basis, const Candidate& rows) {
  Plan out;
  out.resident_pages.assign(basis.pages.size(), 0);
  out.ring_slots = kRingSlotsMin;
  out.tail_slots = rows.tail_slots();
  set_regions(basis, rows, out);
  return out;
}

// Two groups, and what arrives in a gap. Groups are as asked for; else as large as a third of the
// page room allows.
void set_ring(const Basis& basis, std::uint64_t spare_slots, Plan& out) {
  const StreamOptions& stream = basis.request.stream;
  const std::uint64_t room = spare_slots + kRingSlotsMin;
  const std::uint64_t extra = gap_pages(stream, basis.slot_bytes);
  const std::uint64_t share = stream.group_pages != 0 ? room : room / kRingShare;
  const std::uint64_t group_max =
      stream.group_pages != 0 ? stream.group_pages : std::uint64_t{kGroupPagesMax};
  const std::uint64_t useful = std::max(basis.pages_a_sequence, 1U);
  const std::uint64_t group = std::clamp<std::uint64_t>(
      (share - std::min(share, extra)) / 2, 1, std::min(group_max, useful));
  out.group_pages = static_cast<std::uint32_t>(group);
  out.ring_slots = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      2 * group + extra, kRingSlotsMin, std::max<std::uint64_t>(share, 2)));
}

// The ring first; the rest resident, evenly over layers and sequences, one page more for the first
// layers while it fits.
Plan streaming_layout(const Basis& basis, const Candidate& rows) {
  const PlanRequest& request = basis.request;
  Plan out = streaming_minimum(basis, rows);
  // Regions end on their alignment: what the arena has behind its last multiple is no room.
  const std::uint64_t usable_bytes = request.arena_bytes / kRegionAlignment * kRegionAlignment;
  const std::uint64_t spare_bytes = usable_bytes - out.regions.total_bytes();
  const std::uint64_t spare_slots = spare_bytes / basis.slot_bytes;
  set_ring(basis, spare_slots, out);
  const std::uint32_t resident_max =
      std::min(basis.pages_a_sequence, request.stream.resident_pages_max);
  set_regions(basis, rows, out);
  for (;;) {
    bool grown = false;
    for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
      if (out.resident_pages[layer] >= resident_max) {
        continue;
      }
      ++out.resident_pages[layer];
      const std::uint64_t bytes =
          request.sequences * resident_sequence_bytes(basis, out.resident_pages);
      if (out.regions.total_bytes() - out.regions.resident_bytes + bytes > request.arena_bytes) {
        --out.resident_pages[layer];
        continue;
      }
      set_regions(basis, rows, out);
      grown = true;
    }
    if (!grown) {
      break;
    }
  }
  set_components(basis, rows, out);
  return out;
}

std::vector<std::uint32_t> row_ladder(const PlanRequest& request) {
  if (request.prefill_rows_fixed != 0) {
    return {request.prefill_rows_fixed};
  }
  std::vector<std::uint32_t> ladder;
  const std::uint64_t most = std::min<std::uint64_t>(
      std::max(request.prefill_rows_max, 1U), std::max<std::uint64_t>(request.context_tokens, 1));
  std::uint32_t rows = 1;
  while (rows <= most / 2) {
    rows *= 2;
  }
  for (; rows >= 1; rows /= 2) {
    ladder.push_back(rows);
  }
  return ladder;
}

Result<void> check(const PlanRequest& request) {
  const auto refuse = [](std::string message) {
    return tl::unexpected(Error{Errc::invalid_argument, std::move(message), 0, 0, 0, "plan"});
  };
  if (request.geometry.layers.empty()) {
    return refuse("the geometry has no layers; give at least one");
  }
  if (request.context_tokens == 0 || request.sequences == 0) {
    return refuse("context tokens and sequences must be at least 1");
  }
  if (request.decode_rows == 0 || request.decode_rows > 64) {
    return refuse("decode rows are 1 to 64, not " + std::to_string(request.decode_rows));
  }
  if (!request.capabilities) {
    return refuse("no capabilities were given; query a backend or hand in recorded ones");
  }
  const std::uint64_t pages = request.context_tokens / request.geometry.page_tokens + 1;
  if (pages > UINT32_MAX) {
    return refuse("a context of " + std::to_string(request.context_tokens) +
                  " tokens has more than " + std::to_string(UINT32_MAX) +
                  " pages; use larger pages");
  }
  for (std::size_t layer = 0; layer < request.geometry.layers.size(); ++layer) {
    const auto caps = request.capabilities(layer, Phase::decode, request.decode_rows);
    if (!caps) {
      return tl::unexpected(caps.error());
    }
    if (request.geometry.page_tokens % caps->span_granule != 0) {
      return refuse("pages of " + std::to_string(request.geometry.page_tokens) +
                    " tokens are not a multiple of the backend's granule of " +
                    std::to_string(caps->span_granule) + " tokens; choose a multiple");
    }
  }
  return {};
}

Error too_small(const Basis& basis, const Plan& least, const Candidate& rows) {
  Plan detail = least;
  set_components(basis, rows, detail);
  const auto largest = std::max_element(
      detail.components.begin(),
      detail.components.end(),
      [](const PlanComponent& a, const PlanComponent& b) { return a.size_bytes < b.size_bytes; });
  const std::uint64_t required = least.regions.total_bytes();
  const std::uint64_t provided = basis.request.arena_bytes;
  const std::uint64_t missing = required - provided;
  std::string message = "the arena of " + std::to_string(provided) + " bytes is " +
                        std::to_string(missing) + " bytes below the minimum of " +
                        std::to_string(required) + " bytes; phase " + name(largest->phase) +
                        ", largest component " + largest->name + " with " +
                        std::to_string(largest->size_bytes) +
                        " bytes; give at least the minimum, or use smaller pages";
  if (basis.request.prefill_rows_fixed != 0) {
    message += ", or allow narrower prefill chunks than " +
               std::to_string(basis.request.prefill_rows_fixed) + " rows";
  }
  return Error{Errc::device_memory, std::move(message), required, provided, missing, largest->name};
}

Result<Plan> choose(const Basis& basis, const std::vector<Candidate>& candidates) {
  const std::uint64_t arena_bytes = basis.request.arena_bytes;
  const Candidate& narrowest = candidates.back();
  const Plan least_resident = resident_layout(basis, narrowest);
  const Plan least_streaming = streaming_minimum(basis, narrowest);
  const bool may_be_resident = basis.request.stream.resident_pages_max >= basis.pages_a_sequence;
  const bool resident_is_less = may_be_resident && least_resident.regions.total_bytes() <=
                                                       least_streaming.regions.total_bytes();
  const Plan& least = resident_is_less ? least_resident : least_streaming;
  const std::uint64_t minimum_bytes = least.regions.total_bytes();
  if (arena_bytes != 0 && arena_bytes < minimum_bytes) {
    return tl::unexpected(too_small(basis, least, narrowest));
  }
  const auto finish = [&](Plan found) {
    found.minimum_arena_bytes = minimum_bytes;
    return found;
  };
  if (arena_bytes == 0) {
    Plan found = least;
    found.components.clear();
    set_components(basis, narrowest, found);
    return finish(std::move(found));
  }
  for (const Candidate& rows : candidates) {
    const bool wide = rows.prefill_rows >= std::min(kNarrowRows, candidates.front().prefill_rows);
    Plan resident = resident_layout(basis, rows);
    if (may_be_resident && resident.regions.total_bytes() <= arena_bytes && wide) {
      return finish(std::move(resident));
    }
  }
  for (const Candidate& rows : candidates) {
    const Plan smallest = streaming_minimum(basis, rows);
    const std::uint64_t scratch_bytes =
        rows.prefill.total_bytes() + rows.prefill_tails * basis.slot_bytes;
    const bool narrow_enough = scratch_bytes <= arena_bytes / kScratchShare / 2;
    const bool last = &rows == &narrowest;
    if (smallest.regions.total_bytes() <= arena_bytes && (narrow_enough || last)) {
      return finish(streaming_layout(basis, rows));
    }
  }
  // Only a resident layout with a narrow chunk is left: a short context in a small arena.
  for (const Candidate& rows : candidates) {
    Plan resident = resident_layout(basis, rows);
    if (may_be_resident && resident.regions.total_bytes() <= arena_bytes) {
      return finish(std::move(resident));
    }
  }
  return tl::unexpected(too_small(basis, least, narrowest));
}

}  // namespace

std::uint64_t gap_pages(const StreamOptions& stream, std::uint64_t page_bytes) {
  constexpr std::uint64_t kNanoseconds = 1'000'000'000;
  // A gap of a minute at 1 TB/s: more is as good as no limit, and the product stays in 64 bits.
  constexpr std::uint64_t kGapMax = 60 * kNanoseconds;
  const std::uint64_t gap_ns =
      std::min(kGapMax, stream.gap_ns) + std::min(kGapMax, stream.jitter_ns);
  const std::uint64_t kilobytes_s = std::min<std::uint64_t>(stream.link_bytes_s / 1000, 1ULL << 30);
  const std::uint64_t bytes = kilobytes_s * ((gap_ns + 999) / 1000) / 1000;
  return page_bytes == 0 ? 0 : (bytes + page_bytes - 1) / page_bytes;
}

Result<Plan> plan(const PlanRequest& request) {
  auto layouts = page_layouts(request.geometry);
  if (!layouts) {
    return tl::unexpected(std::move(layouts).error());
  }
  if (auto checked = check(request); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  Basis basis{request, std::move(*layouts), 0, 0, 0};
  for (const PageLayout& page : basis.pages) {
    basis.slot_bytes = std::max(basis.slot_bytes, page.page_bytes);
    basis.page_row_bytes += page.page_bytes;
  }
  const std::uint64_t page = request.geometry.page_tokens;
  basis.pages_a_sequence = static_cast<std::uint32_t>((request.context_tokens + page - 1) / page);
  std::vector<Candidate> candidates;
  for (const std::uint32_t rows : row_ladder(request)) {
    auto next = candidate(basis, rows);
    if (!next) {
      return tl::unexpected(std::move(next).error());
    }
    candidates.push_back(*next);
  }
  auto found = choose(basis, candidates);
  if (found) {
    found->history_bytes = static_cast<std::uint64_t>(request.sequences) * basis.pages_a_sequence *
                           basis.page_row_bytes;
  }
  return found;
}

}  // namespace kvspan
