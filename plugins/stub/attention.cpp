// SPDX-License-Identifier: Apache-2.0
// The attention table: every slot checks, copies its arguments and enqueues.
// Read next: attention_rules.hpp (what is offered), attention_work.hpp (what it does).
#include "kvspan/attention.h"

#include "kvspan/sdk/capability.hpp"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate.hpp"

#include "attention_rules.hpp"
#include "attention_work.hpp"
#include "queue.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvspan::stub {
namespace {

using sdk::AttentionCall;

AttentionDials dials_of(const Device& device) {
  return {device.plugin.options.granule, device.plugin.options.split_count};
}

/// A call under way: where it is, what it was asked, what query says to that.
struct Call {
  Queue& queue;
  const kvspan_attention_args_t* args = nullptr;
  AttentionCall kind = AttentionCall::run;
  kvspan_error_t* error = nullptr;
  const char* where = nullptr;
  kvspan_attention_caps_t caps{};

  auto context() const {
    sdk::Context made(OwnBytes{&queue.device});
    made.memory_alignment = kMemoryAlignment;
    made.caps = &caps;
    return made;
  }
};

/// What query refuses the slots refuse, for the same reasons. Fills call.caps.
kvspan_result_t check_granted(Call& call) {
  if (const kvspan_result_t bad = sdk::take(call.args, call.error, call.where, 2)) {
    return bad;
  }
  if (const kvspan_result_t bad = sdk::check_shape(call.args->shape, call.error, call.where)) {
    return bad;
  }
  call.caps = answer(*call.args->shape, dials_of(call.queue.device));
  if (call.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
    return sdk::fail_reasons(call.error,
                             call.where,
                             call.caps.reasons,
                             "this shape is not offered: ask query for the nearest that is");
  }
  return KVSPAN_OK;
}

/// The planes that a span really has.
template <class Visit>
void for_each_plane(const Call& call, const kvspan_span_t& span, Visit&& visit) {
  visit(span.k);
  if ((call.args->shape->options & KVSPAN_OPTION_V_IN_K) == 0) {
    visit(span.v);
  }
}

std::uint32_t kind_of(kvspan_memory_t* memory) {
  return memory_of(memory)->kind;
}

kvspan_result_t check_limits(const Call& call, std::uint64_t item_count) {
  std::uint64_t spans = 0;
  std::uint64_t pages = 0;
  for (std::uint32_t i = 0; i < call.args->entry_count; ++i) {
    const kvspan_entry_t& entry = call.args->entries[i];
    spans += entry.span_count;
    for (std::uint32_t j = 0; j < entry.span_count; ++j) {
      for_each_plane(
          call, entry.spans[j], [&](const kvspan_plane_t& plane) { pages += plane.page_count; });
    }
  }
  const Device& device = call.queue.device;
  kvspan_result_t bad = check_prepared(
      device, {&kvspan_prepare_t::spans_max, "spans"}, spans, call.error, call.where);
  if (bad == KVSPAN_OK) {
    bad = check_prepared(device,
                         {&kvspan_prepare_t::page_list_max, "page list entries"},
                         pages,
                         call.error,
                         call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_prepared(device,
                         {&kvspan_prepare_t::attention_items_max, "attention items"},
                         item_count,
                         call.error,
                         call.where);
  }
  return bad;
}

/// The memories that the call's body touches through its arguments; items add their states.
Job job_of(const Call& call) {
  const kvspan_attention_args_t& args = *call.args;
  const kvspan_attention_shape_t& shape = *args.shape;
  const bool reads = call.kind == AttentionCall::run || call.kind == AttentionCall::advance;
  const bool writes = call.kind == AttentionCall::run || call.kind == AttentionCall::finish;
  Job job;
  for (std::uint32_t i = 0; i < args.entry_count; ++i) {
    const kvspan_entry_t& entry = args.entries[i];
    if (entry.row_count == 0) {
      continue;
    }
    if (reads) {
      job.memories.push_back(entry.q.memory);
      for (std::uint32_t j = 0; j < entry.span_count; ++j) {
        const kvspan_span_t& span = entry.spans[j];
        for_each_plane(call, span, [&](const kvspan_plane_t& plane) {
          job.memories.push_back(span.token_count == 0 ? nullptr : plane.memory);
        });
      }
    }
    if (writes) {
      job.memories.push_back(entry.out.memory);
      const bool lse = (shape.options & KVSPAN_OPTION_LSE) != 0;
      job.memories.push_back(lse ? entry.lse.memory : nullptr);
    }
  }
  if (args.entry_count != 0) {
    const bool sinks = writes && (shape.options & KVSPAN_OPTION_SINKS) != 0;
    const bool slopes = reads && (shape.options & KVSPAN_OPTION_ALIBI) != 0;
    job.memories.push_back(sinks ? args.sinks.memory : nullptr);
    job.memories.push_back(slopes ? args.slopes.memory : nullptr);
    job.memories.push_back(call.kind == AttentionCall::run ? args.workspace.memory : nullptr);
  }
  return job;
}

/// Bytes of K and V of so many tokens, for the virtual duration.
std::uint64_t bytes_of(const Call& call, std::uint64_t tokens) {
  const kvspan_attention_shape_t& shape = *call.args->shape;
  return tokens * shape.kv_heads *
         (kvspan_ref_row_bytes(shape.k_type, shape.head_size_k) +
          kvspan_ref_row_bytes(shape.v_type, shape.head_size_v));
}

kvspan_result_t submit_run(Call call, const kvspan_submit_t* submit) {
  kvspan_result_t bad = check_granted(call);
  if (bad == KVSPAN_OK) {
    bad = sdk::check_run(call.args, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = sdk::check_span_kinds(*call.args, kind_of, call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_limits(call, 0);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Job job = job_of(call);
  for (std::uint32_t i = 0; i < call.args->entry_count; ++i) {
    const kvspan_entry_t& entry = call.args->entries[i];
    for (std::uint32_t j = 0; j < entry.span_count; ++j) {
      job.bytes += bytes_of(call, entry.spans[j].token_count);
    }
  }
  job.body = make_run(*call.args, call.caps.span_granule);
  return enqueue(call.queue, std::move(job), submit, 3, call.error, call.where);
}

kvspan_result_t submit_advance(Call call,
                               const sdk::List<kvspan_advance_item_t>& items,
                               const kvspan_submit_t* submit) {
  kvspan_result_t bad = check_granted(call);
  if (bad == KVSPAN_OK) {
    bad = sdk::check_attention_args(call.args, call.kind, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = sdk::check_advance_items(items, *call.args, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = sdk::check_span_kinds(*call.args, kind_of, call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_limits(call, items.count);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Job job = job_of(call);
  std::vector<kvspan_advance_item_t> kept(items.data, items.data + items.count);
  for (const kvspan_advance_item_t& item : kept) {
    const bool rows = call.args->entries[item.entry].row_count != 0;
    job.memories.push_back(rows ? item.state.memory : nullptr);
    job.bytes += bytes_of(call, item.token_count);
  }
  job.body = make_advance(*call.args, std::move(kept), call.caps.span_granule);
  return enqueue(call.queue, std::move(job), submit, 5, call.error, call.where);
}

kvspan_result_t submit_fold(Call call,
                            const sdk::List<kvspan_fold_item_t>& items,
                            const kvspan_submit_t* submit) {
  kvspan_result_t bad = check_granted(call);
  if (bad == KVSPAN_OK) {
    bad = sdk::check_attention_args(call.args, call.kind, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = sdk::check_fold_items(items, *call.args, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_limits(call, items.count);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Job job = job_of(call);
  std::vector<kvspan_fold_item_t> kept(items.data, items.data + items.count);
  for (const kvspan_fold_item_t& item : kept) {
    const bool rows = call.args->entries[item.entry].row_count != 0;
    job.memories.push_back(rows ? item.source.memory : nullptr);
    job.memories.push_back(rows ? item.accumulator.memory : nullptr);
  }
  job.body = make_fold(*call.args, std::move(kept));
  return enqueue(call.queue, std::move(job), submit, 5, call.error, call.where);
}

kvspan_result_t submit_finish(Call call,
                              const kvspan_state_t* accumulators,
                              const kvspan_submit_t* submit) {
  kvspan_result_t bad = check_granted(call);
  if (bad == KVSPAN_OK) {
    bad = sdk::check_attention_args(call.args, call.kind, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = sdk::check_finish(accumulators, *call.args, call.context(), call.error, call.where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_limits(call, 0);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Job job = job_of(call);
  std::vector<kvspan_state_t> kept(accumulators, accumulators + call.args->entry_count);
  for (std::uint32_t i = 0; i < call.args->entry_count; ++i) {
    job.memories.push_back(call.args->entries[i].row_count != 0 ? kept[i].memory : nullptr);
  }
  job.body = make_finish(*call.args, std::move(kept));
  return enqueue(call.queue, std::move(job), submit, 4, call.error, call.where);
}

/// The frame of the four submitting slots: guard, NULL, lock.
template <class Submit>
kvspan_result_t enter(kvspan_queue_t* handle,
                      kvspan_error_t* error,
                      const char* where,
                      Submit&& submit) noexcept {
  return sdk::guard(error, where, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, where, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    return submit(queue);
  });
}

kvspan_result_t KVSPAN_CALL attention_run(kvspan_queue_t* handle,
                                          const kvspan_attention_args_t* args,
                                          const kvspan_submit_t* submit,
                                          kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.run";
  return enter(handle, error, kWhere, [&](Queue& queue) {
    return submit_run({queue, args, AttentionCall::run, error, kWhere}, submit);
  });
}

kvspan_result_t KVSPAN_CALL attention_advance(kvspan_queue_t* handle,
                                              const kvspan_attention_args_t* args,
                                              const kvspan_advance_item_t* items,
                                              std::uint32_t count,
                                              const kvspan_submit_t* submit,
                                              kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.advance";
  return enter(handle, error, kWhere, [&](Queue& queue) {
    return submit_advance(
        {queue, args, AttentionCall::advance, error, kWhere}, {items, count}, submit);
  });
}

kvspan_result_t KVSPAN_CALL attention_fold(kvspan_queue_t* handle,
                                           const kvspan_attention_args_t* args,
                                           const kvspan_fold_item_t* items,
                                           std::uint32_t count,
                                           const kvspan_submit_t* submit,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.fold";
  return enter(handle, error, kWhere, [&](Queue& queue) {
    return submit_fold({queue, args, AttentionCall::fold, error, kWhere}, {items, count}, submit);
  });
}

kvspan_result_t KVSPAN_CALL attention_finish(kvspan_queue_t* handle,
                                             const kvspan_attention_args_t* args,
                                             const kvspan_state_t* accumulators,
                                             const kvspan_submit_t* submit,
                                             kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.finish";
  return enter(handle, error, kWhere, [&](Queue& queue) {
    return submit_finish({queue, args, AttentionCall::finish, error, kWhere}, accumulators, submit);
  });
}

kvspan_result_t KVSPAN_CALL attention_query(kvspan_device_t* handle,
                                            const kvspan_attention_shape_t* shape,
                                            kvspan_attention_caps_t* out_caps,
                                            kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.query";
  if (handle == nullptr) {
    return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
  }
  if (const kvspan_result_t bad = sdk::check_shape(shape, error, kWhere)) {
    return bad;
  }
  return sdk::give(out_caps, answer(*shape, dials_of(*device_of(handle))), error, kWhere, 3);
}

kvspan_result_t KVSPAN_CALL attention_list_rules(kvspan_device_t* handle,
                                                 kvspan_attention_rule_t* out_rules,
                                                 std::uint32_t capacity,
                                                 std::uint32_t* out_count,
                                                 kvspan_error_t* error) noexcept {
  return sdk::give_rules(
      attention_rules(), handle, out_rules, capacity, out_count, error, "attention.rules");
}

}  // namespace

const kvspan_attention_table_t kAttentionTable = {sizeof(kvspan_attention_table_t),
                                                  0,
                                                  attention_query,
                                                  attention_list_rules,
                                                  attention_run,
                                                  attention_advance,
                                                  attention_fold,
                                                  attention_finish};

}  // namespace kvspan::stub
