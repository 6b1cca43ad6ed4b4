// SPDX-License-Identifier: Apache-2.0
// What attention refuses: each broken rule of a call, with the place, and nothing changes; what
// query refuses, with the same reasons; a workspace one byte short, with the exact amount. Not
// here: other tables (refusal_test.cpp), what query and rules answer (capability_test.cpp).
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <functional>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

enum class Slot { run, advance, fold, finish };

constexpr Slot kEverySlot[] = {Slot::run, Slot::advance, Slot::fold, Slot::finish};

class RefusalAttention : public AttentionTest {
 protected:
  /// A right call of every slot over a history in two spans; tests spoil one thing of it.
  struct Call {
    Scene scene;
    History history;
    std::vector<kvspan_span_t> spans;
    std::vector<uint64_t> visible_end;
    std::unique_ptr<Placement> placement;
    std::unique_ptr<Stage> stage;
    kvspan_attention_args_t args = {};
    kvspan_entry_t entry = {};
    kvspan_attention_shape_t shape = {};
    std::vector<kvspan_advance_item_t> items;
    std::vector<kvspan_fold_item_t> folds;
    kvspan_state_t sum = {};
  };

  std::unique_ptr<Call> right(uint32_t options = 0);
  kvspan_result_t send(Call& call,
                       Slot slot,
                       kvspan_queue_t* queue,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error);
  kvspan_result_t settle(Call& call, Slot slot, kvspan_error_t* error);
  uint64_t workspace(const Scene& scene, Slot slot) const;

  void expect_refused(const char* what,
                      const std::vector<Slot>& slots,
                      const std::function<void(Call&)>& spoil,
                      uint32_t options = 0);
};

std::unique_ptr<RefusalAttention::Call> RefusalAttention::right(uint32_t options) {
  arenas().reset();
  Dice dice(settings(), 3);
  auto call = std::make_unique<Call>();
  Scene& scene = call->scene;
  scene.geometry.q_heads = 2;
  scene.shape = shape_of(scene.geometry);
  scene.shape.options = options;
  scene.shape.entries_max = 1;
  prepare(scene);
  const uint64_t half = 2 * uint64_t{scene.caps.span_granule};
  call->history = History::random(scene.geometry, 2 * half, dice);
  Piece front = one_piece(half)[0];
  Piece back = front;
  back.first_token = half;
  back.page_tokens = 4;
  back.listed = true;
  call->placement = std::make_unique<Placement>(arenas(),
                                                call->history,
                                                std::vector<Piece>{front, back},
                                                std::vector<bool>(),
                                                Poison::nan,
                                                dice);
  call->spans = call->placement->spans();
  Sequence sequence;
  sequence.history = &call->history;
  sequence.spans = call->spans;
  sequence.rows = rows_over(scene, 2 * half, 2, dice);
  sequence.rows.split_tokens = half;
  scene.sequences = {sequence};
  call->visible_end = sequence.rows.visible_end;
  call->stage = std::make_unique<Stage>(arenas(), scene, dice);
  call->stage->workspace_of(std::max({workspace(scene, Slot::run),
                                      workspace(scene, Slot::advance),
                                      workspace(scene, Slot::fold),
                                      workspace(scene, Slot::finish)}));
  call->sum = call->stage->accumulator(0);
  for (uint64_t split = 0; split < 2; ++split) {
    const kvspan_state_t state = call->stage->state(0, split);
    call->items.push_back({0, KVSPAN_ITEM_FRESH, split, split * half, half, state});
    call->folds.push_back({0, split == 0 ? KVSPAN_ITEM_FRESH : 0u, state, call->sum});
  }
  call->args = call->stage->args();
  call->entry = call->stage->entries()[0];
  call->entry.spans = call->spans.data();
  call->entry.visible_end = call->visible_end.data();
  call->args.entries = &call->entry;
  call->shape = scene.shape;
  call->args.shape = &call->shape;
  call->stage->upload();
  return call;
}

uint64_t RefusalAttention::workspace(const Scene& scene, Slot slot) const {
  switch (slot) {
    case Slot::run:
      return scene.caps.run_workspace_bytes;
    case Slot::advance:
      return scene.caps.advance_workspace_bytes;
    case Slot::fold:
      return scene.caps.fold_workspace_bytes;
    case Slot::finish:
      break;
  }
  return scene.caps.finish_workspace_bytes;
}

kvspan_result_t RefusalAttention::send(Call& call,
                                       Slot slot,
                                       kvspan_queue_t* queue,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) {
  const Calls& calls = rig().calls();
  const auto items = static_cast<uint32_t>(call.items.size());
  const auto folds = static_cast<uint32_t>(call.folds.size());
  switch (slot) {
    case Slot::run:
      return calls.run(queue, &call.args, submit, error);
    case Slot::advance:
      return calls.advance(queue, &call.args, call.items.data(), items, submit, error);
    case Slot::fold:
      return calls.fold(queue, &call.args, call.folds.data(), folds, submit, error);
    case Slot::finish:
      break;
  }
  return calls.finish(queue, &call.args, &call.sum, submit, error);
}

kvspan_result_t RefusalAttention::settle(Call& call, Slot slot, kvspan_error_t* error) {
  return rig().settle(
      KVSPAN_ROLE_COMPUTE,
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
        return send(call, slot, queue, submit, out);
      },
      error);
}

void RefusalAttention::expect_refused(const char* what,
                                      const std::vector<Slot>& slots,
                                      const std::function<void(Call&)>& spoil,
                                      uint32_t options) {
  if (!offers({}, options)) {
    return;  // without the option there is nothing to spoil
  }
  for (const Slot slot : slots) {
    SCOPED_TRACE(testing::Message() << what << ", slot " << int(slot));
    const std::unique_ptr<Call> call = right(options);
    spoil(*call);
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(settle(*call, slot, &error), KVSPAN_E_INVALID_ARG) << told(0, error);
    EXPECT_EQ(error.code, KVSPAN_E_INVALID_ARG);
    EXPECT_TRUE(error.argument != 0 && error.message[0] != '\0') << told(error.code, error);
    EXPECT_EQ(settle(*call, slot, nullptr), KVSPAN_E_INVALID_ARG) << "and without a place for it";
    Buffer& device = *arenas().of(KVSPAN_MEMORY_DEVICE).buffer;
    const Bytes now = rig().download(device, arenas().of(KVSPAN_MEMORY_DEVICE).used);
    EXPECT_TRUE(std::equal(now.begin(), now.end(), device.image.begin())) << "memory has changed";
  }
}

KVSPAN_CASE(RefusalAttention, TheRightCallIsAccepted, "KV-QUERY-2") {
  const std::unique_ptr<Call> call = right();
  for (const Slot slot : kEverySlot) {
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = settle(*call, slot, &error);
    EXPECT_EQ(result, KVSPAN_OK) << "slot " << int(slot) << ": " << told(result, error);
  }
}

KVSPAN_CASE(RefusalAttention, WorkspacesAreExact, "KV-ERROR-3") {
  for (const Slot slot : kEverySlot) {
    SCOPED_TRACE(testing::Message() << "slot " << int(slot));
    const std::unique_ptr<Call> call = right();
    const uint64_t required = workspace(call->scene, slot);
    if (required == 0) {
      call->args.workspace = {};
    } else {
      call->args.workspace.bytes = required - 1;
      kvspan_error_t error = fresh_error();
      EXPECT_EQ(settle(*call, slot, &error), KVSPAN_E_WORKSPACE);
      EXPECT_EQ(error.resource, KVSPAN_RESOURCE_WORKSPACE);
      EXPECT_EQ(error.required, required);
      EXPECT_EQ(error.provided, required - 1);
      EXPECT_EQ(error.missing, 1u);
      call->args.workspace.bytes = error.required;
    }
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = settle(*call, slot, &error);
    EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  }
}

KVSPAN_CASE(RefusalAttention, SpansThatBreakTheirRules, "KV-ATTN-12") {
  const std::vector<Slot> readers = {Slot::run, Slot::advance};
  expect_refused("descending", readers, [](Call& c) { std::swap(c.spans[0], c.spans[1]); });
  expect_refused(
      "overlapping", readers, [](Call& c) { c.spans[1].first_token -= c.scene.caps.span_granule; });
  expect_refused("a gap at a visible token", {Slot::run}, [](Call& c) {
    c.spans[1].first_token += c.scene.caps.span_granule;
    c.spans[1].token_count -= c.scene.caps.span_granule;
  });
  expect_refused("no spans", readers, [](Call& c) { c.entry.span_count = 0; });
  expect_refused(
      "the last tokens missing", {Slot::run}, [](Call& c) { c.spans[1].token_count -= 1; });
  expect_refused("spans that are NULL", readers, [](Call& c) { c.entry.spans = nullptr; });
  expect_refused("more spans than the shape", readers, [](Call& c) { c.shape.spans_max = 1; });
  const std::unique_ptr<Call> probe = right();
  if (probe->scene.caps.span_granule > 1) {
    expect_refused("a cut off the granule", readers, [](Call& c) {
      c.spans[0].token_count -= 1;
      c.spans[1].first_token -= 1;
      c.spans[1].token_count += 1;
    });
  }
}

KVSPAN_CASE(RefusalAttention, PlanesAndRowsOutsideTheirMemory, "KV-ATTN-12") {
  const std::vector<Slot> readers = {Slot::run, Slot::advance};
  const std::vector<Slot> writers = {Slot::run, Slot::finish};
  const uint64_t end = arenas().of(KVSPAN_MEMORY_DEVICE).buffer->bytes();
  expect_refused("K past the end", readers, [&](Call& c) { c.spans[0].k.offset = end; });
  expect_refused("V past the end", readers, [&](Call& c) { c.spans[1].v.offset = end; });
  expect_refused(
      "K that wraps", readers, [](Call& c) { c.spans[0].k.row_stride = UINT64_MAX / 2 + 1; });
  expect_refused("a page stride that wraps", readers, [](Call& c) {
    c.spans[1].k.page_stride = UINT64_MAX / 2 + 1;
  });
  expect_refused("no K memory", readers, [](Call& c) { c.spans[0].k.memory = nullptr; });
  expect_refused("a short page list", readers, [](Call& c) { c.spans[1].v.page_count = 0; });
  expect_refused("q past the end", readers, [&](Call& c) { c.entry.q.offset = end - 4; });
  expect_refused("out past the end", writers, [&](Call& c) { c.entry.out.offset = end - 4; });
  expect_refused("no q", readers, [](Call& c) { c.entry.q.memory = nullptr; });
  expect_refused("no out", writers, [](Call& c) { c.entry.out.memory = nullptr; });
  expect_refused("q of another type", readers, [](Call& c) { c.entry.q.type = KVSPAN_TYPE_F16; });
  expect_refused(
      "no LSE", writers, [](Call& c) { c.entry.lse = {}; }, KVSPAN_OPTION_LSE);
}

KVSPAN_CASE(RefusalAttention, EntriesBeyondTheirShape, "KV-ATTN-12") {
  const std::vector<Slot> readers = {Slot::run, Slot::advance};
  expect_refused("more rows", readers, [](Call& c) { c.shape.rows_max = 1; });
  expect_refused("more tokens", readers, [](Call& c) { c.shape.tokens_max = 3; });
  expect_refused("an end past the history", readers, [](Call& c) { c.visible_end[1] += 1; });
  expect_refused("no ends", readers, [](Call& c) { c.entry.visible_end = nullptr; });
  expect_refused("no split", readers, [](Call& c) { c.entry.split_tokens = 0; });
  expect_refused("no entries", readers, [](Call& c) { c.args.entries = nullptr; });
  expect_refused("more entries", readers, [](Call& c) { c.args.entry_count = 2; });
  expect_refused(
      "no sinks",
      {Slot::run, Slot::finish},
      [](Call& c) { c.args.sinks = {}; },
      KVSPAN_OPTION_SINKS);
  expect_refused(
      "no cap",
      {Slot::run, Slot::advance},
      [](Call& c) { c.args.soft_cap = 0.0F; },
      KVSPAN_OPTION_SOFT_CAP);
}

KVSPAN_CASE(RefusalAttention, ItemsThatBreakTheirRules, "KV-ATTN-12") {
  const std::vector<Slot> advance = {Slot::advance};
  const std::vector<Slot> fold = {Slot::fold};
  expect_refused("another entry", advance, [](Call& c) { c.items[1].entry = 1; });
  expect_refused("out of its split", advance, [](Call& c) { c.items[0].token_count *= 2; });
  expect_refused("before its split", advance, [](Call& c) { c.items[1].first_token = 0; });
  expect_refused("past the history", advance, [](Call& c) { c.items[1].split = 7; });
  expect_refused("the same split twice", advance, [](Call& c) { c.items[1] = c.items[0]; });
  expect_refused("no state", advance, [](Call& c) { c.items[0].state.memory = nullptr; });
  expect_refused("a state past the end", advance, [](Call& c) {
    c.items[0].state.u_offset = UINT64_MAX / 256 * 256;
  });
  expect_refused("fold of another entry", fold, [](Call& c) { c.folds[1].entry = 1; });
  expect_refused("fold from nowhere", fold, [](Call& c) { c.folds[0].source.memory = nullptr; });
  expect_refused("finish from nowhere", {Slot::finish}, [](Call& c) { c.sum.memory = nullptr; });
  const std::unique_ptr<Call> probe = right();
  if (probe->scene.caps.state_alignment > 1) {
    expect_refused("a misaligned u", advance, [](Call& c) { c.items[0].state.u_offset += 1; });
    expect_refused("a misaligned ml", fold, [](Call& c) { c.folds[0].source.ml_offset += 1; });
    expect_refused("a misaligned sum", {Slot::finish}, [](Call& c) { c.sum.u_offset += 1; });
  }
  if (probe->scene.caps.span_granule > 1) {
    expect_refused("an end off the granule", advance, [](Call& c) { c.items[0].token_count -= 1; });
  }
}

KVSPAN_CASE(RefusalAttention, EverySlotHonoursWhatItWaitsFor, "KV-SUBMIT-9") {
  kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
  for (const Slot slot : kEverySlot) {
    SCOPED_TRACE(testing::Message() << "slot " << int(slot));
    const std::unique_ptr<Call> call = right();
    kvspan_fence_t* failed = rig().fence();
    kvspan_fence_t* done = rig().fence();
    ASSERT_EQ(rig().tables().fence->fail(failed, KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
    Submit submit;
    submit.wait({failed, 1}).signal({done, 1});
    ASSERT_EQ(send(*call, slot, queue, submit.raw(), nullptr), KVSPAN_OK);
    EXPECT_EQ(rig().wait({done, 1}), KVSPAN_E_WAIT_FAILED);
    if (rig().has(KVSPAN_DEVICE_WAIT_HOST)) {
      kvspan_fence_t* gate = rig().fence();
      const kvspan_point_t end = {rig().fence(), 1};
      Submit gated;
      gated.wait({gate, 1}).signal(end);
      ASSERT_EQ(send(*call, slot, queue, gated.raw(), nullptr), KVSPAN_OK);
      EXPECT_EQ(
          rig().tables().fence->wait(rig().device(), &end, 1, KVSPAN_WAIT_ALL, 2'000'000, nullptr),
          KVSPAN_TIMEOUT);
      EXPECT_EQ(rig().tables().fence->signal(gate, 1, nullptr), KVSPAN_OK);
      EXPECT_EQ(rig().wait(end), KVSPAN_OK);
    }
  }
}

KVSPAN_CASE(RefusalAttention,
            WhatQueryRefusesIsRefusedAndTheNearestWorks,
            "KV-QUERY-2 KV-QUERY-4") {
  struct Wrong {
    const char* what;
    uint32_t why;
    std::function<void(kvspan_attention_shape_t&)> change;
  };

  const Wrong wrongs[] = {
      {"a K type nobody knows", KVSPAN_WHY_K_TYPE, [](auto& s) { s.k_type = 99; }},
      {"a V type nobody knows", KVSPAN_WHY_V_TYPE, [](auto& s) { s.v_type = 99; }},
      {"a block that does not divide 80", KVSPAN_WHY_BLOCK, [](auto& s) {
         s.k_type = KVSPAN_TYPE_Q8_0;
         s.head_size_k = 80;
       }}};
  for (const Wrong& wrong : wrongs) {
    SCOPED_TRACE(wrong.what);
    const std::unique_ptr<Call> call = right();
    wrong.change(call->shape);
    const kvspan_attention_caps_t caps = ask(rig(), call->shape);
    ASSERT_EQ(caps.level, KVSPAN_LEVEL_UNSUPPORTED);
    EXPECT_NE(caps.reasons & wrong.why, 0u) << "reasons 0x" << std::hex << caps.reasons;
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(settle(*call, Slot::run, &error), KVSPAN_E_UNSUPPORTED) << told(0, error);
    EXPECT_EQ(error.reasons, caps.reasons);
    kvspan_attention_shape_t near = call->shape;
    near.k_type = caps.nearest_k_type;
    near.v_type = caps.nearest_v_type;
    near.head_size_k = caps.nearest_head_size_k;
    near.head_size_v = caps.nearest_head_size_v;
    near.rows_max = caps.nearest_rows;
    near.error_class = caps.nearest_error_class;
    EXPECT_NE(ask(rig(), near).level, KVSPAN_LEVEL_UNSUPPORTED) << "the nearest does not work";
  }
}

KVSPAN_CASE(RefusalAttention, NullAndMissizedArgumentsOfEverySlot, "KV-STRUCT-3 KV-STRUCT-1") {
  const kvspan_attention_table_t& table = *rig().tables().attention;
  kvspan_attention_shape_t shape = shape_of({});
  kvspan_attention_caps_t caps = {};
  caps.struct_size = sizeof caps;
  EXPECT_EQ(table.query(nullptr, &shape, &caps, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(table.query(rig().device(), nullptr, &caps, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(table.query(rig().device(), &shape, nullptr, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(table.rules(rig().device(), nullptr, 0, nullptr, nullptr), KVSPAN_E_INVALID_ARG);
  for (const uint32_t size : {0u, 4u, uint32_t{sizeof shape} + 8, UINT32_MAX}) {
    shape.struct_size = size;
    EXPECT_EQ(table.query(rig().device(), &shape, &caps, nullptr), KVSPAN_E_BAD_STRUCT_SIZE);
    shape.struct_size = sizeof shape;
  }
  caps.struct_size = 0;
  EXPECT_EQ(table.query(rig().device(), &shape, &caps, nullptr), KVSPAN_E_BAD_STRUCT_SIZE);
  caps.struct_size = sizeof caps;
  for (const auto spoil : {+[](kvspan_attention_shape_t& s) { s.kv_heads = 0; },
                           +[](kvspan_attention_shape_t& s) { s.q_heads = 0; },
                           +[](kvspan_attention_shape_t& s) { s.options = 0x80000000u; },
                           +[](kvspan_attention_shape_t& s) { s.row_class = 9; }}) {
    kvspan_attention_shape_t wrong = shape;
    spoil(wrong);
    EXPECT_EQ(table.query(rig().device(), &wrong, &caps, nullptr), KVSPAN_E_INVALID_ARG);
  }
  const std::unique_ptr<Call> call = right();
  for (const Slot slot : kEverySlot) {
    SCOPED_TRACE(testing::Message() << "slot " << int(slot));
    Call& c = *call;
    c.args.struct_size = 4;
    EXPECT_EQ(settle(c, slot, nullptr), KVSPAN_E_BAD_STRUCT_SIZE);
    c.args.struct_size = sizeof c.args;
    c.args.shape = nullptr;
    EXPECT_EQ(settle(c, slot, nullptr), KVSPAN_E_INVALID_ARG);
    c.args.shape = &c.shape;
  }
}

}  // namespace
}  // namespace kvspan::conformance
