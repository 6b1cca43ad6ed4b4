// SPDX-License-Identifier: Apache-2.0
// Attention without arithmetic: every token that a row must see is compared with what must be
// there, and states carry which tokens they walked over, so that a token missed, seen twice or out
// of order shows in the fold or at the end.
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "device.hpp"
#include "tag.hpp"

#include <algorithm>
#include <cstring>

namespace kvspan::sim {

void encode_tags(const kvspan_codec_item_t& item) {
  const std::uint64_t bytes = kvspan_ref_row_bytes(item.type, item.head_size);
  std::byte* const plane = memory_of(item.plane.memory)->data;
  const std::byte* const rows = memory_of(item.rows.memory)->data;
  for (std::uint32_t row = 0; row < item.row_count; ++row) {
    for (std::uint32_t head = 0; head < item.head_count; ++head) {
      const Tag tag = read_tag(rows + kvspan_ref_rows_offset(&item.rows, row, head));
      write_tag(
          plane + kvspan_ref_plane_offset(&item.plane, item.first_token + row, head), bytes, tag);
    }
  }
}

namespace {

// Tokens [begin, end) that a state walked over, for one row and head of one expectation.
struct Walked {
  std::uint32_t expectation = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t place = 0;  // layer, row, head
};

static_assert(sizeof(Walked) == 16);

class TagAttention {
 public:
  TagAttention(Device& device, const Call& call) : device_(device), call_(call) {}

  void go() {
    for (std::uint32_t index = 0; index < call_.entries.size(); ++index) {
      if (!know(call_.entries[index])) {
        return;
      }
      if (call_.kind == CallKind::run) {
        const EntryCopy& copy = call_.entries[index];
        tokens(copy, first_seen(copy), copy.visible_end.back());
        outputs(copy);
      } else if (call_.kind == CallKind::advance) {
        for (const kvspan_advance_item_t& item : call_.advance_items) {
          if (item.entry == index) {
            advance(call_.entries[index], item);
          }
        }
      } else if (call_.kind == CallKind::fold) {
        for (const kvspan_fold_item_t& item : call_.fold_items) {
          if (item.entry == index) {
            fold(call_.entries[index], item);
          }
        }
      } else {
        finish(call_.entries[index], call_.accumulators[index]);
      }
    }
  }

 private:
  static std::uint64_t first_seen(const EntryCopy& copy) {
    return copy.window_begin.empty() ? 0 : copy.window_begin.front();
  }

  std::string where(std::uint64_t row) const {
    return std::string(name(call_.kind)) + " of layer " + std::to_string(layer_) + ", stream " +
           std::to_string(expected_->stream) + ", row " + std::to_string(row) + ": ";
  }

  // Whose rows these are: the queries say it.
  bool know(const EntryCopy& copy) {
    const kvspan_rows_t& q = copy.entry.q;
    const std::byte* const rows = memory_of(q.memory)->data;
    for (std::uint32_t row = 0; row < copy.entry.row_count; ++row) {
      const Tag tag = read_tag(rows + kvspan_ref_rows_offset(&q, row, 0));
      if (row == 0) {
        number_ = tag.generation;
        layer_ = tag.layer;
        expected_ = device_.expectation(number_);
      }
      const bool right = tag.plane == kPlaneQ && expected_ != nullptr &&
                         tag.generation == number_ && tag.layer == layer_ &&
                         tag.stream == expected_->stream &&
                         std::uint64_t{tag.token} + 1 == copy.visible_end[row];
      if (!right) {
        device_.content(std::string(name(call_.kind)) + ": the query of row " +
                        std::to_string(row) + ", which sees " +
                        std::to_string(copy.visible_end[row]) + " tokens, is " + text(tag));
        return false;
      }
    }
    if (copy.entry.token_total != expected_->total) {
      device_.content(where(0) + "the history has " + std::to_string(expected_->total) +
                      " tokens, not " + std::to_string(copy.entry.token_total));
      return false;
    }
    return true;
  }

  void plane(const kvspan_plane_t& rows, std::uint64_t in_span, std::uint64_t bytes, Tag tag) {
    const std::byte* const memory = memory_of(rows.memory)->data;
    for (std::uint32_t head = 0; head < call_.shape.kv_heads; ++head) {
      tag.head = static_cast<std::uint8_t>(head);
      const std::byte* const row = memory + kvspan_ref_plane_offset(&rows, in_span, head);
      ++device_.checked_rows;
      if (!holds_tag(row, bytes, tag)) {
        const Tag found = read_tag(row);
        device_.content(where(0) + "wanted " + text(tag) + ", found " +
                        (found == tag ? "half of it" : text(found)));
        return;
      }
    }
  }

  // Every token of [begin, end) once, in ascending order.
  void tokens(const EntryCopy& copy, std::uint64_t begin, std::uint64_t end) {
    const kvspan_attention_shape_t& shape = call_.shape;
    const std::uint64_t k_bytes = kvspan_ref_row_bytes(shape.k_type, shape.head_size_k);
    const std::uint64_t v_bytes = kvspan_ref_row_bytes(shape.v_type, shape.head_size_v);
    std::size_t index = 0;
    for (std::uint64_t token = begin; token < end; ++token) {
      while (index < copy.spans.size() &&
             copy.spans[index].first_token + copy.spans[index].token_count <= token) {
        ++index;
      }
      if (index == copy.spans.size() || copy.spans[index].first_token > token) {
        device_.content(where(0) + "no span has token " + std::to_string(token));
        return;
      }
      const kvspan_span_t& span = copy.spans[index];
      Tag tag{expected_->stream,
              static_cast<std::uint32_t>(token),
              (*expected_->generations)[token],
              static_cast<std::uint16_t>(layer_),
              kPlaneK,
              0};
      plane(span.k, token - span.first_token, k_bytes, tag);
      if ((shape.options & KVSPAN_OPTION_V_IN_K) == 0) {
        tag.plane = kPlaneV;
        plane(span.v, token - span.first_token, v_bytes, tag);
      }
      if (device_.trouble().found()) {
        return;
      }
    }
  }

  std::uint32_t place(std::uint32_t row, std::uint32_t head) const {
    return (layer_ << 24) | (row << 8) | head;
  }

  std::byte* state_at(const kvspan_state_t& state, std::uint32_t row, std::uint32_t head) const {
    const std::uint64_t pair = std::uint64_t{row} * call_.shape.q_heads + head;
    return memory_of(state.memory)->data + state.u_offset +
           pair * call_.shape.head_size_v * sizeof(float);
  }

  void put(const kvspan_state_t& state,
           std::uint32_t row,
           std::uint32_t head,
           const Walked& walked) {
    const std::uint64_t pair = std::uint64_t{row} * call_.shape.q_heads + head;
    std::memcpy(state_at(state, row, head), &walked, sizeof walked);
    const std::uint64_t sum = mix((std::uint64_t{walked.begin} << 32 | walked.end) + walked.place);
    std::memcpy(
        memory_of(state.memory)->data + state.ml_offset + pair * sizeof sum, &sum, sizeof sum);
  }

  std::string words(const Walked& walked) const {
    const bool poisoned = walked.expectation == 0xEEEEEEEE;
    return poisoned
               ? ", but nothing valid"
               : ", but of step part " + std::to_string(walked.expectation) + " (not " +
                     std::to_string(number_) + "), layer " + std::to_string(walked.place >> 24) +
                     ", row " + std::to_string(walked.place >> 8 & 0xFFFF) + ", tokens [" +
                     std::to_string(walked.begin) + ", " + std::to_string(walked.end) + ")";
  }

  // A state of this entry's row and head, or trouble.
  bool get(const kvspan_state_t& state, std::uint32_t row, std::uint32_t head, Walked* out) {
    const std::uint64_t pair = std::uint64_t{row} * call_.shape.q_heads + head;
    std::memcpy(out, state_at(state, row, head), sizeof *out);
    std::uint64_t sum = 0;
    std::memcpy(
        &sum, memory_of(state.memory)->data + state.ml_offset + pair * sizeof sum, sizeof sum);
    const bool whole = sum == mix((std::uint64_t{out->begin} << 32 | out->end) + out->place);
    if (!whole || out->expectation != number_ || out->place != place(row, head)) {
      device_.content(where(row) + "the state of head " + std::to_string(head) +
                      " is not that of this row, layer and step" + words(*out));
      return false;
    }
    return true;
  }

  template <class Visit>
  void pairs(const EntryCopy& copy, const Visit& visit) {
    for (std::uint32_t row = 0; row < copy.entry.row_count; ++row) {
      for (std::uint32_t head = 0; head < call_.shape.q_heads; ++head) {
        if (!device_.trouble().found()) {
          visit(row, head);
        }
      }
    }
  }

  void advance(const EntryCopy& copy, const kvspan_advance_item_t& item) {
    const std::uint64_t end = item.first_token + item.token_count;
    const std::uint64_t split = copy.entry.split_tokens;
    if (split == 0 || item.first_token / split != item.split || (end - 1) / split != item.split) {
      device_.content(where(0) + "tokens [" + std::to_string(item.first_token) + ", " +
                      std::to_string(end) + ") are not in split " + std::to_string(item.split));
      return;
    }
    tokens(
        copy, std::max(item.first_token, first_seen(copy)), std::min(end, copy.visible_end.back()));
    pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
      Walked walked{number_,
                    static_cast<std::uint32_t>(item.first_token),
                    static_cast<std::uint32_t>(item.first_token),
                    place(row, head)};
      if ((item.flags & KVSPAN_ITEM_FRESH) == 0) {
        if (!get(item.state, row, head, &walked)) {
          return;
        }
        if (walked.end != item.first_token || walked.begin / split != item.split) {
          device_.content(where(row) + "split " + std::to_string(item.split) + " went from " +
                          std::to_string(walked.begin) + " to " + std::to_string(walked.end) +
                          " and goes on at " + std::to_string(item.first_token));
          return;
        }
      }
      walked.end = static_cast<std::uint32_t>(end);
      put(item.state, row, head, walked);
    });
  }

  void fold(const EntryCopy& copy, const kvspan_fold_item_t& item) {
    pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
      Walked source;
      if (!get(item.source, row, head, &source)) {
        return;
      }
      Walked total = source;
      if ((item.flags & KVSPAN_ITEM_FRESH) == 0) {
        if (!get(item.accumulator, row, head, &total)) {
          return;
        }
        if (total.end != source.begin) {
          device_.content(where(row) + "tokens [" + std::to_string(total.begin) + ", " +
                          std::to_string(total.end) + ") were folded, and now [" +
                          std::to_string(source.begin) + ", " + std::to_string(source.end) + ")");
          return;
        }
        total.end = source.end;
      }
      put(item.accumulator, row, head, total);
    });
  }

  void finish(const EntryCopy& copy, const kvspan_state_t& accumulator) {
    pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
      Walked total;
      if (!get(accumulator, row, head, &total)) {
        return;
      }
      const std::uint64_t first = copy.window_begin.empty() ? 0 : copy.window_begin[row];
      if (total.begin > first || total.end < copy.visible_end[row]) {
        device_.content(where(row) + "tokens [" + std::to_string(total.begin) + ", " +
                        std::to_string(total.end) + ") were attended to, but it sees [" +
                        std::to_string(first) + ", " + std::to_string(copy.visible_end[row]) + ")");
      }
    });
    outputs(copy);
  }

  void outputs(const EntryCopy& copy) {
    const kvspan_rows_t& out = copy.entry.out;
    pairs(copy, [&](std::uint32_t row, std::uint32_t head) {
      const Tag tag{expected_->stream,
                    static_cast<std::uint32_t>(copy.visible_end[row] - 1),
                    number_,
                    static_cast<std::uint16_t>(layer_),
                    kPlaneOut,
                    static_cast<std::uint8_t>(head)};
      write_tag(memory_of(out.memory)->data + kvspan_ref_rows_offset(&out, row, head),
                call_.shape.head_size_v * sizeof(float),
                tag);
    });
  }

  Device& device_;
  const Call& call_;
  const Expectation* expected_ = nullptr;
  std::uint32_t number_ = 0;
  std::uint32_t layer_ = 0;
};

}  // namespace

void attend_tags(Device& device, const Call& call) {
  TagAttention(device, call).go();
}

}  // namespace kvspan::sim
