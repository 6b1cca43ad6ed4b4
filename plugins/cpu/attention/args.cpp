// SPDX-License-Identifier: Apache-2.0
// Copies the arguments of an attention call into a packet. Only what the call reads is looked at:
// fold knows no spans, finish no queries. Read first: args.hpp.
#include "attention/args.hpp"

#include "attention/work.hpp"

#include <cstring>

namespace kvspan::cpu {

namespace {

bool reads_history(AttentionCall call) {
  return call == AttentionCall::run || call == AttentionCall::advance;
}

bool writes_rows(AttentionCall call) {
  return call == AttentionCall::run || call == AttentionCall::finish;
}

RowsView view_of(const kvspan_rows_t& rows) {
  return {address_of(rows.memory, rows.offset), rows.row_stride, rows.head_stride, rows.type};
}

}  // namespace

AttentionTask::AttentionTask(const kvspan_attention_args_t& args,
                             AttentionCall call,
                             const AttentionItems& items)
    : args_(args),
      shape_(*args.shape),
      call_(call),
      items_(items),
      latent_((args.shape->options & KVSPAN_OPTION_V_IN_K) != 0) {
  counts_.entries = args.entry_count;
  counts_.advances = call == AttentionCall::advance ? items.count : 0;
  counts_.folds = call == AttentionCall::fold ? items.count : 0;
  for (uint32_t i = 0; reads_history(call) && i < args.entry_count; ++i) {
    const kvspan_entry_t& entry = args.entries[i];
    counts_.spans += entry.span_count;
    counts_.rows += entry.row_count;
    for (uint32_t s = 0; s < entry.span_count; ++s) {
      const kvspan_span_t& span = entry.spans[s];
      counts_.pages += span.k.page_list != nullptr ? span.k.page_count : 0;
      counts_.pages += !latent_ && span.v.page_list != nullptr ? span.v.page_count : 0;
    }
  }
  uses_max = attention_uses(counts_);
}

void AttentionTask::lay_out(Cutter& cutter) {
  cut_attention(cutter, arrays_, counts_);
}

void AttentionTask::fill_problem(Uses& uses) {
  AttentionBody& body = *arrays_.body;
  const bool biased = (shape_.options & KVSPAN_OPTION_ALIBI) != 0 && reads_history(call_);
  const bool sinks = (shape_.options & KVSPAN_OPTION_SINKS) != 0 && writes_rows(call_);
  const bool any = args_.entry_count != 0;
  const auto floats = [&](bool wanted, const kvspan_range_t& range) -> const float* {
    if (!wanted || !any) {
      return nullptr;
    }
    uses.add(range.memory);
    return reinterpret_cast<const float*>(address_of(range.memory, range.offset));
  };
  body.call = call_;
  body.problem = {shape_.k_type,
                  shape_.v_type,
                  shape_.head_size_k,
                  shape_.head_size_v,
                  shape_.q_heads,
                  shape_.kv_heads,
                  shape_.q_heads / shape_.kv_heads,
                  args_.scale,
                  (shape_.options & KVSPAN_OPTION_SOFT_CAP) != 0 ? args_.soft_cap : 0.0f,
                  floats(sinks, args_.sinks),
                  floats(biased, args_.slopes),
                  latent_ ? 1u : 0u};
  body.entries = arrays_.entries;
  body.entry_count = args_.entry_count;
  body.workspace = nullptr;
  body.parallel_splits = false;
  if (call_ == AttentionCall::run && any && args_.workspace.memory != nullptr) {
    body.workspace = address_of(args_.workspace.memory, args_.workspace.offset);
    body.parallel_splits = shape_.row_class == KVSPAN_ROWS_DECODE;
    uses.add(args_.workspace.memory);
  }
}

PlaneView AttentionTask::fill_plane(const kvspan_plane_t& plane, uint64_t tokens, Uses& uses) {
  if (tokens == 0) {
    return {};
  }
  uses.add(plane.memory);
  return sdk::view_of(
      plane, address_of(plane.memory, plane.offset), sdk::keep_list(plane, next_page_));
}

template <class T>
const T* AttentionTask::fill_rows(const T* source, uint32_t count) {
  static_assert(sizeof(T) == sizeof(uint64_t));
  if (source == nullptr) {
    return nullptr;
  }
  auto* const copy = reinterpret_cast<T*>(next_row_);
  std::memcpy(copy, source, sizeof(T) * count);
  next_row_ += count;
  return copy;
}

void AttentionTask::fill_entry(uint32_t index, Uses& uses) {
  const kvspan_entry_t& from = args_.entries[index];
  EntryView& entry = arrays_.entries[index];
  entry = EntryView{};
  entry.row_count = from.row_count;
  entry.token_total = from.token_total;
  entry.split_tokens = from.split_tokens;
  if (from.row_count != 0 && writes_rows(call_)) {
    entry.out = view_of(from.out);
    uses.add(from.out.memory);
    if ((shape_.options & KVSPAN_OPTION_LSE) != 0) {
      entry.lse = reinterpret_cast<float*>(address_of(from.lse.memory, from.lse.offset));
      uses.add(from.lse.memory);
    }
  }
  if (!reads_history(call_)) {
    return;
  }
  if (from.row_count != 0) {
    entry.q = view_of(from.q);
    uses.add(from.q.memory);
  }
  entry.visible_end = fill_rows(from.visible_end, from.row_count);
  entry.window_begin = fill_rows(from.window_begin, from.row_count);
  entry.suffix_mask = fill_rows(from.suffix_mask, from.row_count);
  entry.positions = fill_rows(from.positions, from.row_count);
  entry.suffix_count = from.suffix_mask != nullptr ? from.suffix_count : 0;
  entry.spans = next_span_;
  entry.span_count = from.span_count;
  for (uint32_t s = 0; s < from.span_count; ++s) {
    const kvspan_span_t& span = from.spans[s];
    *next_span_++ = {span.first_token,
                     span.token_count,
                     fill_plane(span.k, span.token_count, uses),
                     fill_plane(span.v, latent_ ? 0 : span.token_count, uses)};
  }
}

StateView AttentionTask::view(const kvspan_state_t& state, Uses& uses) const {
  uses.add(state.memory);
  return {reinterpret_cast<float*>(address_of(state.memory, state.u_offset)),
          reinterpret_cast<float*>(address_of(state.memory, state.ml_offset))};
}

void AttentionTask::fill_items(Uses& uses) {
  AttentionBody& body = *arrays_.body;
  body.advances = arrays_.advances;
  body.folds = arrays_.folds;
  body.accumulators = arrays_.accumulators;
  body.item_count = items_.count;
  for (uint32_t i = 0; i < items_.count; ++i) {
    if (call_ == AttentionCall::advance) {
      const kvspan_advance_item_t& item = items_.advances[i];
      arrays_.advances[i] = {view(item.state, uses),
                             item.first_token,
                             item.first_token + item.token_count,
                             item.entry,
                             (item.flags & KVSPAN_ITEM_FRESH) != 0};
    } else if (call_ == AttentionCall::fold) {
      const kvspan_fold_item_t& item = items_.folds[i];
      arrays_.folds[i] = {view(item.source, uses),
                          view(item.accumulator, uses),
                          item.entry,
                          (item.flags & KVSPAN_ITEM_FRESH) != 0};
    } else {
      arrays_.accumulators[i] = view(items_.accumulators[i], uses);
    }
  }
}

void AttentionTask::fill(Packet& packet, Uses& uses) {
  next_span_ = arrays_.spans;
  next_page_ = arrays_.pages;
  next_row_ = arrays_.rows;
  fill_problem(uses);
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    fill_entry(i, uses);
  }
  fill_items(uses);
  packet.body = arrays_.body;
  packet.bytes = 0;
  packet.execute = run_attention;
}

}  // namespace kvspan::cpu
