// SPDX-License-Identifier: Apache-2.0
// The submitting tables of the simulated device: arrays that the caller lends are copied into a
// Call. Read next: submit.cpp.
#include "device.hpp"

#include <utility>

namespace kvspan::sim {

namespace {

Call call_of(CallKind kind, const kvspan_submit_t* submit) {
  Call call;
  call.kind = kind;
  call.waits.assign(submit->waits, submit->waits + submit->wait_count);
  call.signals.assign(submit->signals, submit->signals + submit->signal_count);
  call.cancel_memory = submit->cancel_memory;
  call.cancel_offset = submit->cancel_offset;
  call.submit_id = submit->submit_id;
  return call;
}

kvspan_result_t submit_call(kvspan_queue_t* handle, Call call, kvspan_error_t* error) {
  Queue& queue = *queue_of(handle);
  queue.device->host_call();
  return queue.device->submit(queue, std::move(call), error);
}

kvspan_result_t copy(kvspan_queue_t* handle,
                     const kvspan_segment_t* segments,
                     std::uint32_t count,
                     const kvspan_submit_t* submit,
                     kvspan_error_t* error) noexcept {
  Call call = call_of(CallKind::copy, submit);
  call.segments.assign(segments, segments + count);
  const kvspan_result_t result = submit_call(handle, std::move(call), error);
  constexpr std::size_t kMeasuredMax = 100;
  std::deque<kvspan_measurement_t>& measured = queue_of(handle)->measured;
  if (result == KVSPAN_OK && (submit->flags & KVSPAN_SUBMIT_MEASURE) != 0 &&
      measured.size() < kMeasuredMax) {
    measured.push_back({submit->submit_id, queue_of(handle)->device->traits().copy_ns, 0});
    for (std::uint32_t index = 0; index < count; ++index) {
      measured.back().bytes += segments[index].bytes * segments[index].rows;
    }
  }
  return result;
}

// A device whose clock has one answer: the policy must live with it.
kvspan_result_t feedback(kvspan_queue_t* handle,
                         kvspan_measurement_t* out,
                         std::uint32_t capacity,
                         std::uint32_t* out_count,
                         kvspan_error_t*) noexcept {
  std::deque<kvspan_measurement_t>& measured = queue_of(handle)->measured;
  for (*out_count = 0; *out_count < capacity && !measured.empty(); ++*out_count) {
    out[*out_count] = measured.front();
    measured.pop_front();
  }
  return KVSPAN_OK;
}

kvspan_result_t limits(kvspan_device_t* handle,
                       kvspan_copy_limits_t* out,
                       kvspan_error_t*) noexcept {
  const std::uint64_t alignment = device_of(handle).traits().copy_alignment;
  *out = {sizeof *out, 4096, alignment, alignment, alignment, alignment, alignment, 1ULL << 40};
  return KVSPAN_OK;
}

kvspan_result_t encode(kvspan_queue_t* handle,
                       const kvspan_codec_item_t* items,
                       std::uint32_t count,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) noexcept {
  Call call = call_of(CallKind::encode, submit);
  call.codec_items.assign(items, items + count);
  return submit_call(handle, std::move(call), error);
}

kvspan_result_t query(kvspan_device_t* handle,
                      const kvspan_attention_shape_t* shape,
                      kvspan_attention_caps_t* out,
                      kvspan_error_t*) noexcept {
  const DeviceTraits& traits = device_of(handle).traits();
  const std::uint64_t pairs = std::uint64_t{shape->rows_max} * shape->q_heads;
  *out = {};
  out->struct_size = sizeof *out;
  out->level = KVSPAN_LEVEL_NATIVE;
  out->error_class = KVSPAN_ERROR_E0;
  out->span_granule = traits.granule;
  out->split_count =
      shape->row_class == KVSPAN_ROWS_DECODE ? traits.decode_splits : traits.prefill_splits;
  out->spans_max = 4096;
  out->span_pages_max = 65536;
  out->workspace_alignment = out->state_alignment = traits.state_alignment;
  out->run_workspace_bytes = out->advance_workspace_bytes = traits.workspace_bytes;
  out->state_u_bytes = pairs * shape->head_size_v * sizeof(float);
  out->state_ml_bytes = pairs * 2 * sizeof(float);
  return KVSPAN_OK;
}

EntryCopy entry_of(const kvspan_entry_t& entry) {
  EntryCopy copy;
  copy.entry = entry;
  copy.visible_end.assign(entry.visible_end, entry.visible_end + entry.row_count);
  if (entry.window_begin != nullptr) {
    copy.window_begin.assign(entry.window_begin, entry.window_begin + entry.row_count);
  }
  copy.spans.assign(entry.spans, entry.spans + entry.span_count);
  for (const kvspan_span_t& span : copy.spans) {
    std::vector<std::uint32_t>& list = copy.lists.emplace_back();
    if (span.k.page_list != nullptr) {
      list.assign(span.k.page_list, span.k.page_list + span.k.page_count);
    }
  }
  copy.bind();
  return copy;
}

Call attention_call(CallKind kind,
                    const kvspan_attention_args_t* args,
                    const kvspan_submit_t* submit) {
  Call call = call_of(kind, submit);
  call.shape = *args->shape;
  call.scale = args->scale;
  call.workspace = args->workspace;
  for (std::uint32_t index = 0; index < args->entry_count; ++index) {
    call.entries.push_back(entry_of(args->entries[index]));
  }
  return call;
}

kvspan_result_t submit_attention(kvspan_queue_t* handle, Call call, kvspan_error_t* error) {
  Queue& queue = *queue_of(handle);
  Device& device = *queue.device;
  device.host_call();
  const bool works = call.kind == CallKind::run || call.kind == CallKind::advance;
  if (works && call.workspace.bytes < device.traits().workspace_bytes) {
    device.trouble().report("workspace", "attention was given too little workspace");
    return refuse(error, KVSPAN_E_WORKSPACE, "too little workspace");
  }
  return device.submit(queue, std::move(call), error);
}

kvspan_result_t run(kvspan_queue_t* handle,
                    const kvspan_attention_args_t* args,
                    const kvspan_submit_t* submit,
                    kvspan_error_t* error) noexcept {
  return submit_attention(handle, attention_call(CallKind::run, args, submit), error);
}

kvspan_result_t advance(kvspan_queue_t* handle,
                        const kvspan_attention_args_t* args,
                        const kvspan_advance_item_t* items,
                        std::uint32_t count,
                        const kvspan_submit_t* submit,
                        kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::advance, args, submit);
  call.advance_items.assign(items, items + count);
  return submit_attention(handle, std::move(call), error);
}

kvspan_result_t fold(kvspan_queue_t* handle,
                     const kvspan_attention_args_t* args,
                     const kvspan_fold_item_t* items,
                     std::uint32_t count,
                     const kvspan_submit_t* submit,
                     kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::fold, args, submit);
  call.fold_items.assign(items, items + count);
  return submit_attention(handle, std::move(call), error);
}

kvspan_result_t finish(kvspan_queue_t* handle,
                       const kvspan_attention_args_t* args,
                       const kvspan_state_t* accumulators,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) noexcept {
  Call call = attention_call(CallKind::finish, args, submit);
  call.accumulators.assign(accumulators, accumulators + args->entry_count);
  return submit_attention(handle, std::move(call), error);
}

const auto kCopy = table_with<kvspan_copy_table_t>([](kvspan_copy_table_t& table) {
  table.copy = copy;
  table.limits = limits;
  table.feedback = feedback;
});
const auto kCodec =
    table_with<kvspan_codec_table_t>([](kvspan_codec_table_t& table) { table.encode = encode; });
const auto kAttention = table_with<kvspan_attention_table_t>([](kvspan_attention_table_t& table) {
  table.query = query;
  table.run = run;
  table.advance = advance;
  table.fold = fold;
  table.finish = finish;
});

}  // namespace

const kvspan_copy_table_t& copy_table() {
  return kCopy;
}

const kvspan_codec_table_t& codec_table() {
  return kCodec;
}

const kvspan_attention_table_t& attention_table() {
  return kAttention;
}

}  // namespace kvspan::sim
