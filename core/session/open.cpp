// SPDX-License-Identifier: Apache-2.0
// Opening a session: the shapes it will ask for, the plan with what the backend takes for itself,
// the one allocation with its regions and leases, history and streams.
#include "kvspan/core/session/session.hpp"

#include "byte_runs.hpp"
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// Items of one entry in a submit: a backend with more splits open gets several submits. Decode
// keeps all of an entry open, prefill as many as have room.
constexpr std::uint32_t kDecodeItems = 256;
constexpr std::uint32_t kPrefillItems = 16;

// Tiles that a span may list on every backend.
constexpr std::uint32_t kListedTilesMax = 4096;

// Fetched tiles of a submit: with those of a short tail, one list. More than that take any link
// milliseconds: then waves cost nothing beside it.
constexpr std::uint32_t kTilesAtOnceMax = kListedTilesMax / 4 * 3;

// Tokens of a wave lie in at most two spans a fetched unit (rows from the midst of a tile are one
// alone), one for the tail or, where its tiles fill lists, more, and those of the resident pages,
// which come in two pieces at most.
std::uint32_t spans_max(const SessionOptions& options) {
  const std::uint32_t group = std::max(
      kAtOnceGroups * std::max(options.stream.group_pages, kGroupPagesMax), kPromptGroupMax);
  return 2 * group + 2 + tail_lists_max(options) + resident_runs_max(options);
}

// The most that one submit of this session can hold, so that the backend allocates nothing later.
kvspan_prepare_t limits_of(const Plan& plan,
                           std::span<const kvspan_attention_shape_t> shapes,
                           const SessionOptions& options,
                           const kvspan_copy_limits_t& copies) {
  const std::uint32_t rows = std::max(plan.prefill_rows, plan.decode_rows);
  const std::uint32_t sequences = options.sequences;
  const std::uint32_t group = kAtOnceGroups * group_pages_max(plan, options.placement);
  const std::uint32_t tails = tail_pages(rows, plan.pages.front().page_tokens);
  kvspan_prepare_t request{};
  request.struct_size = sizeof request;
  request.segments_max =
      std::min(kByteRunsMax * std::max(group, tails * sequences), copies.segments_max);
  request.codec_items_max = 2 * tails * sequences;
  request.shape_count = static_cast<std::uint32_t>(shapes.size());
  request.shapes = shapes.data();
  std::uint32_t entries = 1;
  for (const kvspan_attention_shape_t& shape : shapes) {
    entries = std::max(entries, shape.entries_max);
    request.attention_items_max = std::max(request.attention_items_max, shape.items_max);
    request.spans_max = std::max(request.spans_max, shape.entries_max * shape.spans_max);
  }
  const PageLayout& page = plan.pages.front();
  const std::uint32_t tiles = page.page_tokens / page.tile_tokens;  // a page, of every layer alike
  Plan widest = plan;                                               // of the rings that it may get
  for (const PhaseRoom& room : plan.rooms) {
    widest.ring_slots = std::max(widest.ring_slots, room.placement.ring_slots);
  }
  if (options.placement.changes) {
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const PlanRegions regions = entered(plan, phase).regions;
      const std::uint64_t pool_bytes = regions.resident_bytes + regions.slots_bytes;
      widest.ring_slots =
          std::max(widest.ring_slots, static_cast<std::uint32_t>(pool_bytes / plan.slot_bytes));
    }
  }
  const std::uint32_t pages = std::max({group, pages_at_once(widest), 1U}) + tails;
  request.page_list_max = 2 * tiles * entries * pages;
  return request;
}

}  // namespace

std::uint32_t tail_lists_max(const SessionOptions& options) {
  const std::uint32_t page = std::max(options.geometry.page_tokens, 1U);
  const std::uint32_t tile = std::max(tile_tokens(page, options.geometry.tile_tokens_max), 1U);
  const std::uint64_t rows = std::max(options.prefill_rows_max, options.decode_rows);
  return static_cast<std::uint32_t>(2 * (rows + 2 * std::uint64_t{page}) / tile / kListedTilesMax);
}

std::uint32_t resident_runs_max(const SessionOptions& options) {
  return options.placement.phases_take_turns ? 3 : 2;
}

std::uint32_t group_pages_max(const Plan& plan, const PlacementOptions& options) {
  std::uint32_t most =
      options.changes ? std::max(plan.group_pages, kGroupPagesMax) : plan.group_pages;
  for (const PhaseRoom& room : plan.rooms) {
    most = std::max(most, room.placement.group_pages);
  }
  return most;
}

std::uint32_t pages_at_once(const Plan& plan) {
  const PageLayout& page = plan.pages.front();
  return std::min(plan.ring_slots / 2, kTilesAtOnceMax / (page.page_tokens / page.tile_tokens));
}

kvspan_attention_shape_t attention_shape(const SessionOptions& options,
                                         std::size_t layer,
                                         Phase phase,
                                         std::uint32_t rows,
                                         std::uint32_t entries) {
  const LayerGeometry& geometry = options.geometry.layers[layer];
  const bool prefill = phase == Phase::prefill;
  kvspan_attention_shape_t shape{};
  shape.struct_size = sizeof shape;
  shape.options = options.attention_options;
  shape.options |= geometry.window_tokens != 0 ? KVSPAN_OPTION_WINDOW : 0;
  shape.options |= geometry.v_in_k ? KVSPAN_OPTION_V_IN_K : 0;
  shape.k_type = geometry.k_type;
  shape.v_type = geometry.v_type;
  shape.q_type = options.q_type;
  shape.out_type = options.out_type;
  shape.head_size_k = geometry.head_size_k;
  shape.head_size_v = geometry.head_size_v;
  shape.q_heads = geometry.q_heads;
  shape.kv_heads = geometry.kv_heads;
  shape.row_class = prefill ? KVSPAN_ROWS_PREFILL : KVSPAN_ROWS_DECODE;
  shape.error_class = options.error_class;
  shape.memory_kinds = 1U << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = rows;
  shape.entries_max = entries;
  shape.items_max = entries * (prefill ? kPrefillItems : kDecodeItems);
  shape.spans_max = spans_max(options);
  shape.tokens_max = options.context_tokens;
  return shape;
}

namespace {

// Asks twice: how many entries the rows can make depends on the splits of the first answer, which
// no number of entries moves.
Result<AskedShape> asked_shape(const Backend& backend,
                               const SessionOptions& options,
                               std::size_t layer,
                               Phase phase,
                               std::uint32_t rows) {
  const auto first = backend.query(attention_shape(options, layer, phase, rows));
  if (!first) {
    return tl::unexpected(first.error());
  }
  const auto entries =
      static_cast<std::uint32_t>(entries_bound(rows, first->split_count, first->span_granule));
  AskedShape asked{attention_shape(options, layer, phase, rows, entries), {}};
  const auto caps = backend.query(asked.shape);
  if (!caps) {
    return tl::unexpected(caps.error());
  }
  asked.caps = *caps;
  return asked;
}

}  // namespace

CapabilityLookup capabilities_of(const Backend& backend, const SessionOptions& options) {
  return
      [backend, options](
          std::size_t layer, Phase phase, std::uint32_t rows) -> Result<kvspan_attention_caps_t> {
        auto asked = asked_shape(backend, options, layer, phase, rows);
        if (!asked) {
          return tl::unexpected(std::move(asked).error());
        }
        return asked->caps;
      };
}

Result<Geometry> aligned_for(const Backend& backend, Geometry geometry) {
  const auto limits = backend.copy_limits();
  if (!limits) {
    return tl::unexpected(limits.error());
  }
  geometry.row_alignment = std::max(geometry.row_alignment, copy_alignment(*limits));
  geometry.alignment =
      std::max({geometry.alignment, geometry.row_alignment, backend.info().memory_alignment});
  return geometry;
}

PlanRequest plan_request(const Backend& backend, const SessionOptions& options) {
  PlanRequest request;
  request.geometry = options.geometry;
  request.context_tokens = options.context_tokens;
  request.sequences = options.sequences;
  request.prefill_rows_max = options.prefill_rows_max;
  request.prefill_rows_fixed = options.prefill_rows_fixed;
  request.decode_rows = options.decode_rows;
  request.rewind_tokens = options.rewind_tokens;
  request.capabilities = capabilities_of(backend, options);
  request.stream = options.stream;
  request.phases_take_turns = options.placement.phases_take_turns;
  request.import_alignment = backend.info().import_alignment;
  request.allocation_bytes_max =
      std::min(backend.info().allocation_bytes_max, backend.info().binding_bytes_max);
  request.pinnable_bytes = options.host_bytes_max;
  return request;
}

namespace {

// What a session with this plan asks of each layer, [layer].
struct PhaseShapes {
  std::vector<AskedShape> prefill;
  std::vector<AskedShape> decode;
};

Result<PhaseShapes> shapes_of(const Backend& backend,
                              const SessionOptions& options,
                              const Plan& plan) {
  PhaseShapes out;
  for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
    auto prefill = asked_shape(backend, options, layer, Phase::prefill, plan.prefill_rows);
    auto decode = asked_shape(backend, options, layer, Phase::decode, plan.decode_rows);
    if (!prefill || !decode) {
      return tl::unexpected(prefill ? decode.error() : prefill.error());
    }
    out.prefill.push_back(*prefill);
    out.decode.push_back(*decode);
  }
  return out;
}

ReservedSubmits submits_of(const SessionOptions& options,
                           const Plan& plan,
                           const PhaseShapes& shapes,
                           const kvspan_copy_limits_t& copies) {
  ReservedSubmits asked;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    asked.shapes.push_back(shapes.prefill[layer].shape);
    asked.shapes.push_back(shapes.decode[layer].shape);
  }
  asked.limits = limits_of(plan, asked.shapes, options, copies);
  asked.limits.depth = options.lanes.depth;
  return asked;
}

}  // namespace

BackendBytes prepared_bytes_of(const Backend& backend, const SessionOptions& options) {
  return [backend, options](const Plan& plan) -> Result<std::uint64_t> {
    const auto shapes = shapes_of(backend, options, plan);
    const auto copies = backend.copy_limits();
    if (!shapes || !copies) {
      return tl::unexpected(shapes ? copies.error() : shapes.error());
    }
    return backend.reservations().ask(
        *backend.tables().device, backend.device(), submits_of(options, plan, *shapes, *copies));
  };
}

Result<std::uint64_t> SessionState::prepare_device(const Plan& of) {
  auto shapes = shapes_of(backend, options, of);
  if (!shapes) {
    return tl::unexpected(std::move(shapes).error());
  }
  auto taken = backend.reservations().reserve(
      *backend.tables().device, backend.device(), this, submits_of(options, of, *shapes, limits));
  if (taken) {
    prefill_shapes = std::move(shapes->prefill);
    decode_shapes = std::move(shapes->decode);
    prepared_device_bytes = *taken;
  }
  return taken;
}

// Plans inside the arena, what the backend takes for itself beside the plan included.
Result<void> SessionState::lay_out() {
  auto copies = backend.copy_limits();
  if (!copies) {
    return tl::unexpected(std::move(copies).error());
  }
  limits = *copies;
  PlanRequest request = plan_request(backend, options);
  request.arena_bytes = options.arena_bytes;
  request.backend_bytes = [this](const Plan& of) { return prepare_device(of); };
  auto planned = kvspan::plan(request);
  if (!planned) {
    return tl::unexpected(std::move(planned).error());
  }
  plan = std::move(*planned);
  return {};
}

Result<void> SessionState::check_alignment() {
  const std::uint64_t needed = backend.info().memory_alignment;
  if (needed > plan.alignment || options.geometry.alignment % needed != 0) {
    std::string message = "planes must be aligned to " + std::to_string(needed) +
                          " bytes on this device; set the geometry's alignment to a multiple";
    return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "session"));
  }
  const std::uint64_t copied = copy_alignment(limits);
  if (copied > plan.alignment || options.geometry.row_alignment % copied != 0) {
    std::string message = "this device copies units of " + std::to_string(copied) +
                          " bytes, and rows of its history must not share one; set the geometry's "
                          "row_alignment to a multiple, and the alignment to as much at least";
    return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "session"));
  }
  return {};
}

// The one allocation; its regions are the turns' to lay out.
Result<void> SessionState::make_arena() {
  auto memory = backend.allocate(KVSPAN_MEMORY_DEVICE, plan.regions.total_bytes());
  if (!memory) {
    return tl::unexpected(std::move(memory).error());
  }
  const kvspan_memory_table_t* const table = backend.tables().memory;
  auto made = Arena::create(
      {memory->get(), memory->size_bytes()}, plan.alignment, [table](kvspan_memory_t* released) {
        (void)table->release(released, nullptr);
      });
  if (!made) {
    return tl::unexpected(std::move(made).error());
  }
  parent = memory->detach();
  arena.emplace(std::move(*made));
  return {};
}

Result<void> SessionState::make_streams() {
  HostPagesOptions host_options;
  host_options.limit_bytes = options.host_bytes_max;
  host_options.classes = plan.host_classes;
  for (const PageLayout& page : plan.pages) {
    host_options.page_bytes.push_back(page.page_bytes);
  }
  host.emplace(backend, std::move(host_options));
  auto created = Lanes::create(backend, options.lanes);
  if (!created) {
    return tl::unexpected(std::move(created).error());
  }
  lanes.emplace(std::move(*created));
  make_calls();
  return {};
}

Places SessionState::places_of(const Plan& of) {
  Places out;
  for (const std::uint32_t pages : of.resident_pages) {
    out.resident_firsts.push_back(out.resident_count);
    out.resident_count += pages;
  }
  out.ring = std::make_unique<SlotRing>(0, of.ring_slots);
  out.tails = std::make_unique<TailSlots>(of.ring_slots, of.tail_slots);
  out.prefetch = std::make_unique<Prefetcher>(
      *out.ring, [this](const PageGroup& group, const std::vector<std::uint32_t>& slots) {
        return fetch(group, slots);
      });
  return out;
}

void SessionState::swap_places(Places& other) {
  ring.swap(other.ring);
  tails.swap(other.tails);
  prefetch.swap(other.prefetch);
  resident_firsts.swap(other.resident_firsts);
}

void SessionState::make_calls() {
  calls.emplace(
      backend,
      limits,
      [this](kvspan_memory_t* memory) {
        if (memory == parent) {
          return plan.regions.total_bytes();
        }
        const std::uint64_t chunk_bytes = host->chunk_bytes(memory);
        return chunk_bytes != 0 ? chunk_bytes : kEngineMemory;
      },
      options.checks);
}

}  // namespace kvspan
