// SPDX-License-Identifier: Apache-2.0
// A layer's new rows: encoded into their pages on the device, then sent down to the host behind
// that encode.
#include "byte_runs.hpp"
#include "calls.hpp"
#include "copy_parts.hpp"
#include "on_exit.hpp"
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

namespace {

kvspan_codec_item_t codec_item(const kvspan_rows_t& rows,
                               const PageRows& page,
                               const PageLayout& layout,
                               kvspan_memory_t* memory) {
  kvspan_codec_item_t item{};
  item.rows = rows;
  item.rows.offset += page.engine_row * rows.row_stride;
  item.plane.memory = memory;
  item.plane.page_tokens = layout.tile_tokens;
  item.plane.page_stride = layout.tile_bytes;
  item.first_token = page.first_row;
  item.row_count = page.rows;
  return item;
}

}  // namespace

DevicePage SessionState::device_page(const PageKey& key, std::uint32_t slot) {
  if (key.page < resident_end(key.layer)) {
    return resident_page(key.sequence, key.layer, key.page);
  }
  return {slots_lease.range().offset + slot * plan.slot_bytes, &tails->hazard(slot)};
}

// One submit, or as many as the device's limits ask for; the last one's value covers them all.
Result<std::uint64_t> SessionState::copy(LaneId lane,
                                         const Waits& waits,
                                         const std::vector<kvspan_segment_t>& segments) {
  const auto submit_of = [&](const std::vector<kvspan_segment_t>& part) {
    return lanes->submit(
        lane,
        waits,
        [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
          return calls->copy(queue, part, submit, error);
        });
  };
  if (fits_one_copy(segments, limits)) {
    return submit_of(segments);
  }
  Result<std::uint64_t> value;
  bool begun = false;
  // What was enqueued writes into places that the caller takes for untouched.
  OnExit spoilt([&] { failed = failed || begun; });
  for (const std::vector<kvspan_segment_t>& part : copy_parts(segments, limits)) {
    value = submit_of(part);
    if (!value) {
      return value;
    }
    begun = true;
  }
  spoilt.dismiss();
  return value;
}

// A begun page whose slot went to somebody else: its committed rows come back from the host.
Result<void> SessionState::refetch_tail(const PageKey& key,
                                        std::uint32_t slot,
                                        std::uint64_t rows) {
  SequenceHistory& history = sequences[key.sequence].history;
  const auto source = host_page(key.sequence, key.layer, key.page);
  if (!source) {
    return tl::unexpected(source.error());
  }
  const DevicePage target = device_page(key, slot);
  std::vector<kvspan_segment_t> segments;
  for (const ByteRun& run : runs_of(plan.pages[key.layer], 0, rows)) {
    segments.push_back(segment_of({source->memory, source->offset, parent, target.offset}, run));
    counters.refetched_tail_bytes += run.count * run.bytes;
  }
  Waits waits;
  waits.moment = history.hazard(key.layer, key.page).before_read();
  waits.moment.merge(target.hazard->before_write());
  auto value = copy(LaneId::upload, waits, segments);
  if (!value) {
    return tl::unexpected(std::move(value).error());
  }
  const Moment done = Moment::at(LaneId::upload, *value);
  history.hazard(key.layer, key.page).read.merge(done);
  *target.hazard = Hazard{done, {}};
  return {};
}

// The device page that rows of the step go to, with the page's committed rows on the device.
Result<DevicePage> SessionState::tail_page(const StepPart& part,
                                           std::uint32_t layer,
                                           std::uint64_t page) {
  const PageKey key{part.sequence, layer, page};
  if (page < resident_end(layer)) {
    note_rolled(part.sequence, layer, page);
    return device_page(key, 0);
  }
  auto slot = tails->find(key);
  if (!slot) {
    slot = tails->take(key);
    if (!slot) {
      return tl::unexpected(error_of(Errc::internal,
                                     "no tail slot is left for layer " + std::to_string(layer) +
                                         ", page " + std::to_string(page) +
                                         ": the plan gave too few; report this bug",
                                     "tails"));
    }
    const std::uint64_t begun = part.first_token % page_tokens();
    if (page == part.first_token / page_tokens() && begun != 0) {
      if (auto fetched = refetch_tail(key, *slot, begun); !fetched) {
        return tl::unexpected(std::move(fetched).error());
      }
    }
  }
  tails->pin(*slot);
  return device_page(key, *slot);
}

// The pages that the step's rows of this layer go to, each with its committed rows on the device.
Result<std::vector<PageRows>> SessionState::pages_to_write(std::uint32_t layer) {
  std::vector<PageRows> pages;
  for (const StepPart& part : step->parts) {
    std::uint64_t token = part.first_token;
    const std::uint64_t end = token + part.rows;
    while (token < end) {
      const std::uint64_t page = token / page_tokens();
      const std::uint64_t page_end = std::min(end, (page + 1) * page_tokens());
      auto device = tail_page(part, layer, page);
      if (!device) {
        return tl::unexpected(std::move(device).error());
      }
      pages.push_back({{part.sequence, layer, page},
                       *device,
                       token % page_tokens(),
                       static_cast<std::uint32_t>(page_end - token),
                       part.first_row + static_cast<std::uint32_t>(token - part.first_token)});
      token = page_end;
    }
  }
  return pages;
}

// One submit encodes K and V of every page.
Result<std::uint64_t> SessionState::encode(std::uint32_t layer,
                                           const WriteRows& rows,
                                           const std::vector<PageRows>& pages) {
  const LayerGeometry& geometry = options.geometry.layers[layer];
  const PageLayout& layout = plan.pages[layer];
  std::vector<kvspan_codec_item_t> items;
  Waits waits;
  waits.points = rows.ready;
  for (const PageRows& page : pages) {
    waits.moment.merge(page.device.hazard->before_write());
    kvspan_codec_item_t k = codec_item(rows.k, page, layout, parent);
    k.plane.offset = page.device.offset;
    k.plane.row_stride = layout.k_row_bytes;
    k.plane.head_stride = layout.k_head_bytes;
    k.type = geometry.k_type;
    k.head_count = geometry.kv_heads;
    k.head_size = geometry.head_size_k;
    items.push_back(k);
    if (geometry.v_in_k) {
      continue;
    }
    kvspan_codec_item_t v = codec_item(rows.v, page, layout, parent);
    v.plane.offset = page.device.offset + layout.v_offset;
    v.plane.row_stride = layout.v_row_bytes;
    v.plane.head_stride = layout.v_head_bytes;
    v.type = geometry.v_type;
    v.head_count = geometry.kv_heads;
    v.head_size = geometry.head_size_v;
    items.push_back(v);
  }
  auto value = lanes->submit(
      LaneId::compute,
      waits,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        return calls->encode(queue, items, submit, error);
      });
  if (value) {
    for (const PageRows& page : pages) {
      page.device.hazard->written.merge(Moment::at(LaneId::compute, *value));
    }
  }
  return value;
}

// The lane that sends a layer's new rows down. A few rows beside pages that come up, of whatever
// layer: the one that encoded them. A queue that waits for their encode beside one that copies
// makes each of its copies begin later (docs/measuring). Many rows, or nothing to disturb: the lane
// for it, beside attention.
LaneId SessionState::publishing_lane() const {
  return step->phase == Phase::decode && step->streams ? LaneId::compute : LaneId::download;
}

// One submit sends the new rows down, behind their encode.
Result<Moment> SessionState::publish(std::uint32_t layer, const std::vector<PageRows>& pages) {
  std::vector<kvspan_segment_t> segments;
  Waits behind;
  for (const PageRows& page : pages) {
    SequenceHistory& history = sequences[page.key.sequence].history;
    const HostPage target = host->page(history.block(layer, page.key.page), layer);
    behind.moment.merge(page.device.hazard->before_read());
    behind.moment.merge(history.hazard(layer, page.key.page).before_write());
    for (const ByteRun& run : runs_of(plan.pages[layer], page.first_row, page.rows)) {
      segments.push_back(
          segment_of({parent, page.device.offset, target.memory, target.offset}, run));
      counters.published_bytes += run.count * run.bytes;
    }
  }
  const LaneId lane = publishing_lane();
  const auto value = copy(lane, behind, segments);
  if (!value) {
    return tl::unexpected(value.error());
  }
  const Moment down = Moment::at(lane, *value);
  for (const PageRows& page : pages) {
    page.device.hazard->read.merge(down);
    sequences[page.key.sequence].history.hazard(layer, page.key.page).written.merge(down);
  }
  return down;
}

Result<void> SessionState::write_layer(std::uint32_t layer, const WriteRows& rows) {
  const auto pages = pages_to_write(layer);
  if (!pages) {
    return tl::unexpected(pages.error());
  }
  if (auto encoded = encode(layer, rows, *pages); !encoded) {
    return tl::unexpected(std::move(encoded).error());
  }
  auto sent = publish(layer, *pages);
  if (!sent) {
    return tl::unexpected(std::move(sent).error());
  }
  step->published.merge(*sent);
  return {};
}

Result<void> unguarded::write(SessionState& state, std::uint32_t layer, const WriteRows& rows) {
  const bool in_order = state.step && state.step->layers_written == layer &&
                        state.step->layers_attended == layer && layer < state.plan.pages.size();
  if (!in_order) {
    return tl::unexpected(
        error_of(Errc::invalid_argument,
                 "layer " + std::to_string(layer) +
                     " cannot be written now: layers ascend from 0 in an open step, "
                     "each written, then attended",
                 "session"));
  }
  if (auto written = state.write_layer(layer, rows); !written) {
    return tl::unexpected(state.fail_step(std::move(written).error()));
  }
  ++state.step->layers_written;
  return {};
}

}  // namespace kvspan
