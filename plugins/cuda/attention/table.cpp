// SPDX-License-Identifier: Apache-2.0
// The attention table: each slot checks, copies its arguments into a packet and hands it to the
// queue. Read next: rules.cpp (what is offered), args.cpp (copying, launching), kernel.hpp (doing).
#include "kvspan/attention.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate.hpp"

#include "attention/args.hpp"
#include "attention/rules.hpp"

#include <cstddef>

namespace kvspan::cuda {
namespace {

constexpr const char* kTooLarge =
    "an amount of this shape does not fit 64 bits: ask for fewer rows, heads or entries";

// A call under way.
struct Call {
  Queue& queue;
  const kvspan_attention_args_t* args = nullptr;
  AttentionCall kind = AttentionCall::run;
  kvspan_error_t* error = nullptr;
  const char* where = nullptr;
  kvspan_attention_caps_t caps{};

  [[nodiscard]] auto context() const {
    sdk::Context made(OwnBytes{&queue.device()});
    made.memory_alignment = kMemoryAlignment;
    made.caps = &caps;
    return made;
  }
};

// What query refuses the slots refuse, for the same reasons. Fills call.caps.
kvspan_result_t check_granted(Call& call) {
  if (const kvspan_result_t bad = sdk::take(call.args, call.error, call.where, 2)) {
    return bad;
  }
  if (const kvspan_result_t bad = sdk::check_shape(call.args->shape, call.error, call.where)) {
    return bad;
  }
  if (!answer(call.queue.device().card, *call.args->shape, call.caps)) {
    return sdk::fail_argument(call.error, {2}, call.where, "%s", kTooLarge);
  }
  if (call.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
    return sdk::fail_reasons(call.error,
                             call.where,
                             call.caps.reasons,
                             "this shape is not offered: ask query for the nearest that is");
  }
  return KVSPAN_OK;
}

struct Counted {
  uint64_t Limits::*limit;
  uint64_t required;
  const char* what;
};

kvspan_result_t check_limits(const Call& call, const AttentionCounts& counts) {
  const uint64_t listed = call.kind == AttentionCall::finish ? 0 : counts.items;
  const Counted all[] = {
      {&Limits::spans, counts.spans, "spans"},
      {&Limits::pages, counts.pages, "page list entries"},
      {&Limits::attention_items, listed, "attention items"},
      {&Limits::entries, counts.entries, "entries"},
      {&Limits::rows, counts.rows, "rows over all entries"},
  };
  for (const Counted& counted : all) {
    const kvspan_result_t bad = check_prepared(
        call.queue.device(), counted.limit, counted.required, counted.what, call.error, call.where);
    if (bad != KVSPAN_OK) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

kvspan_result_t check_items(const Call& call, const AttentionItems& items) {
  switch (call.kind) {
    case AttentionCall::run:
      break;
    case AttentionCall::advance:
      return sdk::check_advance_items(
          {items.advances, items.count}, *call.args, call.context(), call.error, call.where);
    case AttentionCall::fold:
      return sdk::check_fold_items(
          {items.folds, items.count}, *call.args, call.context(), call.error, call.where);
    case AttentionCall::finish:
      return sdk::check_finish(
          items.accumulators, *call.args, call.context(), call.error, call.where);
  }
  return KVSPAN_OK;
}

kvspan_result_t submit_attention(kvspan_queue_t* handle,
                                 const kvspan_attention_args_t* args,
                                 AttentionCall kind,
                                 AttentionItems items,
                                 const kvspan_submit_t* submit,
                                 kvspan_error_t* error) {
  static constexpr const char* kWhere[] = {
      "attention.run", "attention.advance", "attention.fold", "attention.finish"};
  const char* const where = kWhere[static_cast<int>(kind)];
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, where, "the queue is NULL: pass one");
  }
  Call call{*queue_of(handle), args, kind, error, where};
  kvspan_result_t bad = check_granted(call);
  if (bad == KVSPAN_OK) {
    bad = kind == AttentionCall::run
              ? sdk::check_run(args, call.context(), error, where)
              : sdk::check_attention_args(args, kind, call.context(), error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_items(call, items);
  }
  if (bad == KVSPAN_OK && (kind == AttentionCall::run || kind == AttentionCall::advance)) {
    bad = sdk::check_span_kinds(
        *args, [](kvspan_memory_t* memory) { return memory_of(memory)->kind; }, error, where);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  if (kind == AttentionCall::finish) {
    items.count = args->entry_count;
  }
  AttentionTask task(call.queue.device().card, *args, kind, items);
  bad = check_limits(call, task.counts());
  const uint32_t argument = kind == AttentionCall::run ? 3 : kind == AttentionCall::finish ? 4 : 5;
  return bad != KVSPAN_OK ? bad : call.queue.submit(task, submit, argument, error, where);
}

kvspan_result_t KVSPAN_CALL attention_query(kvspan_device_t* device,
                                            const kvspan_attention_shape_t* shape,
                                            kvspan_attention_caps_t* out_caps,
                                            kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "attention.query";
  if (device == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  if (const kvspan_result_t bad = sdk::check_shape(shape, error, kWhere)) {
    return bad;
  }
  kvspan_attention_caps_t caps{};
  if (!answer(device_of(device)->card, *shape, caps)) {
    return sdk::fail_argument(error, {2}, kWhere, "%s", kTooLarge);
  }
  return sdk::give(out_caps, caps, error, kWhere, 3);
}

kvspan_result_t KVSPAN_CALL attention_rules_slot(kvspan_device_t* device,
                                                 kvspan_attention_rule_t* out_rules,
                                                 uint32_t capacity,
                                                 uint32_t* out_count,
                                                 kvspan_error_t* error) noexcept {
  const Card card = device != nullptr ? device_of(device)->card : Card{};  // it refuses without
  return sdk::give_rules(
      attention_rules(card), device, out_rules, capacity, out_count, error, "attention.rules");
}

kvspan_result_t KVSPAN_CALL attention_run(kvspan_queue_t* queue,
                                          const kvspan_attention_args_t* args,
                                          const kvspan_submit_t* submit,
                                          kvspan_error_t* error) noexcept {
  return sdk::guard(error, "attention.run", [&] {
    return submit_attention(queue, args, AttentionCall::run, {}, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL attention_advance(kvspan_queue_t* queue,
                                              const kvspan_attention_args_t* args,
                                              const kvspan_advance_item_t* items,
                                              uint32_t count,
                                              const kvspan_submit_t* submit,
                                              kvspan_error_t* error) noexcept {
  return sdk::guard(error, "attention.advance", [&] {
    AttentionItems list;
    list.advances = items;
    list.count = count;
    return submit_attention(queue, args, AttentionCall::advance, list, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL attention_fold(kvspan_queue_t* queue,
                                           const kvspan_attention_args_t* args,
                                           const kvspan_fold_item_t* items,
                                           uint32_t count,
                                           const kvspan_submit_t* submit,
                                           kvspan_error_t* error) noexcept {
  return sdk::guard(error, "attention.fold", [&] {
    AttentionItems list;
    list.folds = items;
    list.count = count;
    return submit_attention(queue, args, AttentionCall::fold, list, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL attention_finish(kvspan_queue_t* queue,
                                             const kvspan_attention_args_t* args,
                                             const kvspan_state_t* accumulators,
                                             const kvspan_submit_t* submit,
                                             kvspan_error_t* error) noexcept {
  return sdk::guard(error, "attention.finish", [&] {
    AttentionItems list;
    list.accumulators = accumulators;
    return submit_attention(queue, args, AttentionCall::finish, list, submit, error);
  });
}

}  // namespace

const kvspan_attention_table_t kAttentionTable = {sizeof(kvspan_attention_table_t),
                                                  0,
                                                  attention_query,
                                                  attention_rules_slot,
                                                  attention_run,
                                                  attention_advance,
                                                  attention_fold,
                                                  attention_finish};

}  // namespace kvspan::cuda
