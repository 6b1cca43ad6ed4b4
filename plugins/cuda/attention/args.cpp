// SPDX-License-Identifier: Apache-2.0
// Copies the arguments of an attention call into a packet. Only what the call reads is looked at:
// fold knows no spans, finish no queries. Then puts it on a stream. Read first: args.hpp. Not here:
// the work that is made of it, item by item (items.cpp).
#include "attention/args.hpp"

#include "kvspan/sdk/reference/quant.h"

#include <cstring>

namespace kvspan::cuda {

namespace {

bool reads_history(AttentionCall call) {
  return call == AttentionCall::run || call == AttentionCall::advance;
}

bool writes_rows(AttentionCall call) {
  return call == AttentionCall::run || call == AttentionCall::finish;
}

// Splits go side by side where the workspace, which query sized, holds the states of all.
bool goes_side_by_side(const Card& card, const kvspan_attention_args_t& args) {
  const uint64_t most = run_splits_max(card, *args.shape, kernel_of(card, *args.shape));
  if (most <= 1 || args.workspace.memory == nullptr) {
    return false;
  }
  for (uint32_t i = 0; i < args.entry_count; ++i) {
    if (splits_of(args.entries[i]).count > most) {
      return false;
    }
  }
  return true;
}

// The call with as many of its descriptors as fit; those that the arguments do not hold are on
// their way to the queue's room.
cudaError_t hold(const Issue& issue, const AttentionBody& body, HeldCall& call) {
  const bool in_room = body.all_bytes > kHeldBytes && issue.room != nullptr;
  const uint32_t limit = in_room ? kRoomBytes : kHeldBytes;
  call.view = body.view;
  call.view.cancel = issue.cancel;
  call.from = body.descriptors;
  call.bytes = body.all_bytes <= limit     ? static_cast<uint32_t>(body.all_bytes)
               : body.small_bytes <= limit ? body.small_bytes
                                           : 0;
  call.room = in_room && call.bytes != 0 ? issue.room : nullptr;
  if (call.room != nullptr) {
    issue.device.counters.launches.fetch_add(1, std::memory_order_relaxed);
    return launch_store(issue.stream, issue.room, body.descriptors, call.bytes);
  }
  std::memcpy(call.held, body.descriptors, call.bytes);
  return cudaSuccess;
}

cudaError_t issue_run(const Issue& issue, const AttentionBody& body, const HeldCall& view) {
  if (view.view.blocks != 0) {
    const cudaError_t bad = body.kernel != Kernel::f32
                                ? launch_tensor_advance(issue.stream, view, issue.device.card)
                                : launch_advance(issue.stream, view, !body.side_by_side);
    if (bad != cudaSuccess) {
      return bad;
    }
  }
  return body.side_by_side ? launch_fold_and_finish(issue.stream, view, issue.device.card)
                           : cudaSuccess;
}

cudaError_t issue_attention(const Issue& issue, const void* opaque) {
  const AttentionBody& body = *static_cast<const AttentionBody*>(opaque);
  if (body.view.pairs == 0) {
    return cudaSuccess;
  }
  HeldCall view;
  if (const cudaError_t bad = hold(issue, body, view)) {
    return bad;
  }
  const uint64_t launches = body.side_by_side ? 2 : 1;
  issue.device.counters.launches.fetch_add(launches, std::memory_order_relaxed);
  switch (body.call) {
    case AttentionCall::run:
      return issue_run(issue, body, view);
    case AttentionCall::advance:
      return view.view.blocks == 0 ? cudaSuccess
             : body.kernel != Kernel::f32
                 ? launch_tensor_advance(issue.stream, view, issue.device.card)
                 : launch_advance(issue.stream, view, false);
    case AttentionCall::fold:
      return launch_fold(issue.stream, view);
    case AttentionCall::finish:
      break;
  }
  return launch_finish(issue.stream, view);
}

// Rows of a chunk with several split lengths are entries that see the same spans.
bool shares_spans(const kvspan_attention_args_t& args, uint32_t index) {
  return index != 0 && args.entries[index].spans == args.entries[index - 1].spans &&
         args.entries[index].span_count == args.entries[index - 1].span_count;
}

// Whether each row sees one token more than the one before.
bool ascends(const kvspan_entry_t& entry) {
  for (uint32_t row = 1; row < entry.row_count; ++row) {
    if (entry.visible_end[row] != entry.visible_end[0] + row) {
      return false;
    }
  }
  return true;
}

// How many arrays of numbers of its rows are held.
uint64_t row_numbers(const kvspan_entry_t& entry) {
  return uint64_t{!ascends(entry)} + uint64_t{entry.window_begin != nullptr} +
         uint64_t{entry.suffix_mask != nullptr} + uint64_t{entry.positions != nullptr};
}

RowsView view_of(const kvspan_rows_t& rows) {
  return {address_of(rows.memory, rows.offset), rows.row_stride, rows.head_stride, rows.type};
}

}  // namespace

AttentionTask::AttentionTask(const Card& card,
                             const kvspan_attention_args_t& args,
                             AttentionCall call,
                             const AttentionItems& items)
    : card_(card),
      args_(args),
      shape_(*args.shape),
      call_(call),
      items_(items),
      latent_((args.shape->options & KVSPAN_OPTION_V_IN_K) != 0),
      kernel_(kernel_of(card, *args.shape)),
      k_row_bytes_(kvspan_ref_row_bytes(args.shape->k_type, args.shape->head_size_k)),
      v_row_bytes_(kvspan_ref_row_bytes(args.shape->v_type, args.shape->head_size_v)) {
  counts_.entries = args.entry_count;
  counts_.items = items.count;
  counts_.advances = call == AttentionCall::advance ? items.count : 0;
  counts_.ordered = call == AttentionCall::run && args.entry_count > 1 ? args.entry_count : 0;
  counts_.folds = call == AttentionCall::fold ? items.count : 0;
  if (call == AttentionCall::run) {
    side_by_side_ = goes_side_by_side(card, args);
  }
  for (uint32_t i = 0; reads_history(call) && i < args.entry_count; ++i) {
    const kvspan_entry_t& entry = args.entries[i];
    const bool shared = shares_spans(args, i);
    counts_.spans += entry.span_count;
    counts_.rows += entry.row_count;
    counts_.held_spans += shared ? 0 : entry.span_count;
    counts_.held_numbers += entry.row_count * row_numbers(entry);
    for (uint32_t s = 0; s < entry.span_count; ++s) {
      const uint64_t pages = list_entries(entry.spans[s], latent_);
      counts_.pages += pages;
      counts_.held_pages += shared ? 0 : pages;
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
  body.side_by_side = side_by_side_;
  body.kernel = kernel_;
  body.view = {};
  body.view.problem = {shape_.k_type,
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
  body.view.tiled = 1;  // until a span is not
  body.view.entries = arrays_.entries;
  body.view.entry_count = args_.entry_count;
  body.view.advances = call_ == AttentionCall::advance ? arrays_.advances : nullptr;
  body.view.folds = arrays_.folds;
  body.view.accumulators = arrays_.accumulators;
  if (call_ == AttentionCall::run && any) {
    uses.add(args_.workspace.memory);
  }
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
  entry.first_pair = arrays_.body->view.pairs;
  arrays_.body->view.pairs += uint64_t{from.row_count} * shape_.q_heads;
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
  const bool listed = !ascends(from);
  entry.visible_end = listed ? fill_rows(from.visible_end, from.row_count) : nullptr;
  entry.visible_first = listed || from.row_count == 0 ? 0 : from.visible_end[0];
  entry.window_begin = fill_rows(from.window_begin, from.row_count);
  entry.suffix_mask = fill_rows(from.suffix_mask, from.row_count);
  entry.positions = fill_rows(from.positions, from.row_count);
  entry.suffix_count = from.suffix_mask != nullptr ? from.suffix_count : 0;
  entry.span_count = from.span_count;
  if (shares_spans(args_, index)) {
    entry.spans = arrays_.entries[index - 1].spans;
    return;
  }
  entry.spans = next_span_;
  for (uint32_t s = 0; s < from.span_count; ++s) {
    fill_span(from.spans[s], uses);
  }
}

// One tile size for all entries of the call: the bits do not depend on it.
void AttentionTask::choose_tile() {
  AttentionCallView& call = arrays_.body->view;
  if (kernel_ == Kernel::f32) {
    call.tile_pairs = walk_tile_pairs(call.problem, card_);
    return;
  }
  if (kernel_ == Kernel::wide) {
    call.tile_pairs = kWidePairs;
    return;
  }
  uint32_t rows = 0;
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    rows = args_.entries[i].row_count > rows ? args_.entries[i].row_count : rows;
  }
  call.tile_pairs =
      tensor_tile_pairs(call.problem, uint64_t{rows} * call.problem.group, shape_.q_type, card_);
}

void AttentionTask::fill(Packet& packet, Uses& uses) {
  next_span_ = arrays_.spans;
  next_page_ = arrays_.pages;
  next_row_ = arrays_.rows;
  fill_problem(uses);
  choose_tile();
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    fill_entry(i, uses);
  }
  switch (call_) {
    case AttentionCall::run:
      fill_run();
      break;
    case AttentionCall::advance:
      fill_advances(uses);
      break;
    case AttentionCall::fold:
      fill_folds(uses);
      break;
    case AttentionCall::finish:
      fill_accumulators(uses);
      break;
  }
  AttentionBody& body = *arrays_.body;
  body.descriptors = reinterpret_cast<const uint8_t*>(arrays_.entries);
  const auto* const pages = reinterpret_cast<const uint8_t*>(arrays_.pages);
  body.small_bytes = static_cast<uint32_t>(pages - body.descriptors);
  body.all_bytes = body.small_bytes + sizeof(uint32_t) * counts_.held_pages;
  packet.body = arrays_.body;
  // What is held makes the kernels' arguments too.
  packet.body_bytes = body.small_bytes > kHeldBytes ? sizeof body : 0;
  packet.bytes = 0;
  packet.issue = issue_attention;
}

}  // namespace kvspan::cuda
