// SPDX-License-Identifier: Apache-2.0
// Puts a scene into memory and runs it, in one call or by advance, fold and finish.
#include "kvspan/sdk/reference/quant.h"

#include "scene.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace kvspan::conformance {
namespace {

template <class T>
const T* or_null(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

Stage::Stage(Arenas& arenas, const Scene& scene, Dice& dice)
    : arenas_(arenas), scene_(scene), arena_(arenas.of(KVSPAN_MEMORY_DEVICE)) {
  args_.struct_size = sizeof args_;
  args_.shape = &scene.shape;
  args_.scale = scene.scale;
  args_.soft_cap = scene.soft_cap;
  args_.entry_count = static_cast<uint32_t>(scene.sequences.size());
  entries_.resize(scene.sequences.size());
  args_.entries = entries_.data();
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    stage_rows(i, dice);
  }
  take_floats(scene.sinks, args_.sinks);
  take_floats(scene.slopes, args_.slopes);
}

void Stage::take_floats(const std::vector<float>& values, kvspan_range_t& out) {
  if (values.empty()) {
    return;
  }
  out.memory = arena_.buffer->memory;
  out.bytes = values.size() * 4;
  out.offset = arena_.take(out.bytes);
  std::memcpy(arena_.buffer->image.data() + out.offset, values.data(), out.bytes);
}

void Stage::stage_rows(uint32_t index, Dice& dice) {
  const Sequence& sequence = scene_.sequences[index];
  const Rows& rows = sequence.rows;
  const Geometry& geometry = scene_.geometry;
  kvspan_entry_t& entry = entries_[index];
  entry.spans = sequence.spans.data();
  entry.span_count = static_cast<uint32_t>(sequence.spans.size());
  entry.visible_end = rows.visible_end.data();
  entry.window_begin = or_null(rows.window_begin);
  entry.suffix_mask = or_null(rows.suffix_mask);
  entry.positions = or_null(rows.positions);
  entry.row_count = rows.count;
  entry.suffix_count = rows.suffix_count;
  entry.token_total = rows.token_total;
  entry.split_tokens = rows.split_tokens;
  const auto lay_out = [&](kvspan_rows_t& target, kvspan_type_t type, uint32_t head_size) {
    const uint64_t pad = 4 * dice.below(3);
    target.memory = arena_.buffer->memory;
    target.type = type;
    target.head_stride = kvspan_ref_row_bytes(type, head_size) + pad;
    target.row_stride = target.head_stride * geometry.q_heads + 2 * pad;
    target.offset = arena_.take(std::max(1u, rows.count) * target.row_stride);
  };
  lay_out(entry.q, scene_.shape.q_type, geometry.head_size_k);
  lay_out(entry.out, scene_.shape.out_type, geometry.head_size_v);
  Bytes& image = arena_.buffer->image;
  const uint64_t out_row = kvspan_ref_row_bytes(scene_.shape.out_type, geometry.head_size_v);
  const float* q = rows.q.data();
  for (uint32_t row = 0; row < rows.count; ++row) {
    for (uint32_t head = 0; head < geometry.q_heads; ++head) {
      uint8_t* target =
          image.data() + entry.q.offset + row * entry.q.row_stride + head * entry.q.head_stride;
      kvspan_ref_encode_row(scene_.shape.q_type, q, geometry.head_size_k, target);
      q += geometry.head_size_k;
      const uint64_t out =
          entry.out.offset + row * entry.out.row_stride + head * entry.out.head_stride;
      written_.push_back({out, out + out_row});
    }
  }
  if ((scene_.shape.options & KVSPAN_OPTION_LSE) != 0) {
    entry.lse.memory = arena_.buffer->memory;
    entry.lse.bytes = uint64_t{4} * rows.count * geometry.q_heads;
    entry.lse.offset = arena_.take(entry.lse.bytes);
    written_.push_back({entry.lse.offset, entry.lse.offset + entry.lse.bytes});
  }
}

void Stage::workspace_of(uint64_t bytes) {
  args_.workspace = {};
  if (bytes != 0) {
    args_.workspace = {arena_.buffer->memory, arena_.take(bytes), bytes};
    written_.push_back({args_.workspace.offset, args_.workspace.offset + bytes});
  }
}

void Stage::tolerate(const Stage& other) {
  written_.insert(written_.end(), other.written_.begin(), other.written_.end());
}

kvspan_state_t Stage::make_state() {
  kvspan_state_t state = {};
  state.memory = arena_.buffer->memory;
  state.u_offset = arena_.take(scene_.caps.state_u_bytes);
  state.ml_offset = arena_.take(scene_.caps.state_ml_bytes);
  written_.push_back({state.u_offset, state.u_offset + scene_.caps.state_u_bytes});
  written_.push_back({state.ml_offset, state.ml_offset + scene_.caps.state_ml_bytes});
  return state;
}

kvspan_state_t Stage::state(uint32_t entry, uint64_t split) {
  for (const Made& made : states_) {
    if (made.entry == entry && made.split == split) {
      return made.state;
    }
  }
  states_.push_back({entry, split, make_state()});
  return states_.back().state;
}

kvspan_state_t Stage::accumulator(uint32_t entry) {
  return state(entry, UINT64_MAX);
}

void Stage::stage_neutral(uint32_t entry) {
  const kvspan_state_t neutral = accumulator(entry);
  const uint64_t heads = uint64_t{scene_.sequences[entry].rows.count} * scene_.geometry.q_heads;
  uint8_t* image = arena_.buffer->image.data();
  std::memset(image + neutral.u_offset, 0, heads * scene_.geometry.head_size_v * 4);
  const float ml[2] = {-std::numeric_limits<float>::infinity(), 0.0F};
  for (uint64_t i = 0; i < heads; ++i) {
    std::memcpy(image + neutral.ml_offset + 8 * i, ml, 8);
  }
}

kvspan_result_t Stage::run(kvspan_error_t* error) {
  workspace_of(scene_.caps.run_workspace_bytes);
  arenas_.upload();
  return arenas_.rig().settle(
      KVSPAN_ROLE_COMPUTE,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
        return arenas_.rig().calls().run(queue, &args_, submit, out);
      },
      error);
}

std::vector<Stage::Cursor> Stage::cursors(Dice& dice) const {
  std::vector<Cursor> all;
  const uint64_t granule = scene_.caps.span_granule;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const Rows& rows = scene_.sequences[i].rows;
    uint64_t low = UINT64_MAX;
    uint64_t high = 0;
    for (uint32_t row = 0; row < rows.count; ++row) {
      const uint64_t begin = rows.window_begin.empty() ? 0 : rows.window_begin[row];
      if (begin < rows.visible_end[row]) {
        low = std::min(low, begin);
        high = std::max(high, rows.visible_end[row]);
      }
    }
    const uint64_t s = rows.split_tokens;
    for (uint64_t split = low / s; low < high && split * s < high; ++split) {
      const uint64_t first = std::max(split * s, low / granule * granule);
      const uint64_t begin = dice.hit(3) && first == low / granule * granule ? split * s : first;
      const uint64_t stop = std::min((high + granule - 1) / granule * granule, rows.token_total);
      all.push_back({i, split, begin, std::min((split + 1) * s, stop), true});
    }
  }
  return all;
}

kvspan_result_t Stage::advance_wave(std::vector<Cursor>& all, Dice& dice, kvspan_error_t* error) {
  const uint64_t granule = scene_.caps.span_granule;
  std::vector<kvspan_advance_item_t> items;
  const uint64_t share = dice.between(1, 4);
  for (Cursor& cursor : all) {
    if (cursor.at == cursor.end || items.size() >= scene_.shape.items_max ||
        dice.below(4) >= share) {
      continue;
    }
    const uint64_t left = (cursor.end - cursor.at + granule - 1) / granule;
    const uint64_t granules = dice.hit(3) ? left : dice.between(1, left);
    kvspan_advance_item_t item = {};
    item.entry = cursor.entry;
    item.flags = cursor.fresh ? KVSPAN_ITEM_FRESH : 0u;
    item.split = cursor.split;
    item.first_token = cursor.at;
    item.token_count = std::min(granules * granule, cursor.end - cursor.at);
    item.state = state(cursor.entry, cursor.split);
    items.push_back(item);
    cursor.at += item.token_count;
    cursor.fresh = false;
  }
  if (items.empty()) {
    return KVSPAN_OK;
  }
  dice.shuffle(items);
  // Only the spans that the items read, half of the time: the others' pages need not be there.
  std::vector<kvspan_entry_t> entries = entries_;
  std::vector<std::vector<kvspan_span_t>> spans(entries.size());
  for (uint32_t i = 0; i < entries.size() && dice.hit(2); ++i) {
    for (const kvspan_span_t& span : scene_.sequences[i].spans) {
      const bool read = std::any_of(items.begin(), items.end(), [&](const auto& item) {
        return item.entry == i && item.first_token < span.first_token + span.token_count &&
               span.first_token < item.first_token + item.token_count;
      });
      if (read) {
        spans[i].push_back(span);
      }
    }
    entries[i].spans = spans[i].data();
    entries[i].span_count = static_cast<uint32_t>(spans[i].size());
  }
  kvspan_attention_args_t args = args_;
  args.entries = entries.data();
  return arenas_.rig().settle(
      KVSPAN_ROLE_COMPUTE,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
        return arenas_.rig().calls().advance(
            queue, &args, items.data(), static_cast<uint32_t>(items.size()), submit, out);
      },
      error);
}

kvspan_result_t Stage::fold_all(const std::vector<Cursor>& all, Dice& dice, kvspan_error_t* error) {
  std::size_t at = 0;
  while (at < all.size()) {
    const std::size_t most = std::min<std::size_t>(all.size() - at, scene_.shape.items_max);
    const std::size_t count = dice.between(1, most);
    std::vector<kvspan_fold_item_t> items(count);
    for (std::size_t i = 0; i < count; ++i, ++at) {
      const Cursor& cursor = all[at];
      const bool first = at == 0 || all[at - 1].entry != cursor.entry;
      items[i].entry = cursor.entry;
      items[i].flags = first ? KVSPAN_ITEM_FRESH : 0u;
      items[i].source = state(cursor.entry, cursor.split);
      items[i].accumulator = accumulator(cursor.entry);
    }
    const kvspan_result_t result = arenas_.rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
          return arenas_.rig().calls().fold(
              queue, &args_, items.data(), static_cast<uint32_t>(count), submit, out);
        },
        error);
    if (result != KVSPAN_OK) {
      return result;
    }
  }
  return KVSPAN_OK;
}

/// Makes states and accumulators for the cursors and uploads everything; returns the accumulators.
std::vector<kvspan_state_t> Stage::ready_for(const std::vector<Cursor>& all) {
  const kvspan_attention_caps_t& caps = scene_.caps;
  workspace_of(std::max(
      {caps.advance_workspace_bytes, caps.fold_workspace_bytes, caps.finish_workspace_bytes}));
  for (const Cursor& cursor : all) {
    state(cursor.entry, cursor.split);
  }
  std::vector<kvspan_state_t> accumulators;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    stage_neutral(i);
    accumulators.push_back(accumulator(i));
  }
  arenas_.upload();
  return accumulators;
}

kvspan_result_t Stage::finish(const std::vector<kvspan_state_t>& accumulators,
                              kvspan_error_t* error) {
  return arenas_.rig().settle(
      KVSPAN_ROLE_COMPUTE,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
        return arenas_.rig().calls().finish(queue, &args_, accumulators.data(), submit, out);
      },
      error);
}

kvspan_result_t Stage::by_parts(Dice& dice, kvspan_error_t* error) {
  std::vector<Cursor> all = cursors(dice);
  const std::vector<kvspan_state_t> accumulators = ready_for(all);
  kvspan_result_t result = KVSPAN_OK;
  const auto open = [](const Cursor& cursor) { return cursor.at != cursor.end; };
  while (result == KVSPAN_OK && std::any_of(all.begin(), all.end(), open)) {
    result = advance_wave(all, dice, error);
  }
  if (result == KVSPAN_OK) {
    result = fold_all(all, dice, error);
  }
  return result == KVSPAN_OK ? finish(accumulators, error) : result;
}

kvspan_result_t Stage::advance_piece(const kvspan_advance_item_t& item, kvspan_error_t* error) {
  return arenas_.rig().settle(
      KVSPAN_ROLE_COMPUTE,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
        return arenas_.rig().calls().advance(queue, &args_, &item, 1, submit, out);
      },
      error);
}

kvspan_result_t Stage::by_cut(const std::vector<uint64_t>& ends, kvspan_error_t* error) {
  const uint64_t s = scene_.sequences[0].rows.split_tokens;
  std::vector<Cursor> all;
  for (uint64_t at = 0; at < ends.back(); at += s) {
    all.push_back({0, at / s, at, std::min(at + s, ends.back()), true});
  }
  const std::vector<kvspan_state_t> accumulators = ready_for(all);
  kvspan_result_t result = KVSPAN_OK;
  uint64_t at = 0;
  for (const uint64_t end : ends) {
    while (at < end && result == KVSPAN_OK) {
      const uint64_t stop = std::min(end, (at / s + 1) * s);
      const uint32_t flags = at % s == 0 ? KVSPAN_ITEM_FRESH : 0u;
      result = advance_piece({0, flags, at / s, at, stop - at, state(0, at / s)}, error);
      at = stop;
    }
  }
  Dice dice(ends.size());
  if (result == KVSPAN_OK) {
    result = fold_all(all, dice, error);
  }
  return result == KVSPAN_OK ? finish(accumulators, error) : result;
}

Outputs Stage::outputs() {
  const Bytes now = arenas_.download(KVSPAN_MEMORY_DEVICE);
  for (uint32_t kind = 0; kind < 3; ++kind) {
    if (!arenas_.made(kind)) {
      continue;
    }
    const Bytes other = kind == KVSPAN_MEMORY_DEVICE ? Bytes() : arenas_.download(kind);
    const Bytes& found = kind == KVSPAN_MEMORY_DEVICE ? now : other;
    const Bytes& image = arenas_.of(kind).buffer->image;
    Bytes with_outputs;
    if (kind == KVSPAN_MEMORY_DEVICE) {
      with_outputs.assign(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(found.size()));
      for (const Written& part : written_) {
        std::copy(found.begin() + static_cast<std::ptrdiff_t>(part.begin),
                  found.begin() + static_cast<std::ptrdiff_t>(part.end),
                  with_outputs.begin() + static_cast<std::ptrdiff_t>(part.begin));
      }
    }
    const Bytes& expected = kind == KVSPAN_MEMORY_DEVICE ? with_outputs : image;
    if (!std::equal(found.begin(), found.end(), expected.begin())) {
      const auto differs = std::mismatch(found.begin(), found.end(), expected.begin());
      ADD_FAILURE() << "byte " << differs.first - found.begin() << " of the memory of kind " << kind
                    << " was written, though nothing named it";
    }
  }
  Outputs all;
  for (const kvspan_entry_t& entry : entries_) {
    Output output;
    const uint64_t bytes = kvspan_ref_row_bytes(scene_.shape.out_type, scene_.geometry.head_size_v);
    for (uint32_t row = 0; row < entry.row_count; ++row) {
      for (uint32_t head = 0; head < scene_.geometry.q_heads; ++head) {
        const auto at = static_cast<std::ptrdiff_t>(entry.out.offset + row * entry.out.row_stride +
                                                    head * entry.out.head_stride);
        output.out.insert(output.out.end(),
                          now.begin() + at,
                          now.begin() + at + static_cast<std::ptrdiff_t>(bytes));
      }
    }
    const auto lse = static_cast<std::ptrdiff_t>(entry.lse.offset);
    output.lse.assign(now.begin() + lse,
                      now.begin() + lse + static_cast<std::ptrdiff_t>(entry.lse.bytes));
    all.push_back(output);
  }
  return all;
}

}  // namespace kvspan::conformance
