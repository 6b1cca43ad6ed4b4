// SPDX-License-Identifier: Apache-2.0
// Arrays of a submit are copied before it returns: each lies at the end of its pages, so that a
// read past it is a crash, and is taken away when the slot returns, while the work still waits, so
// that a later read is one too. The work must then still do what the arrays said.
#include "attention_case.hpp"
#include "worker/case.hpp"
#include "worker/guarded_array.hpp"

#include <algorithm>

namespace kvspan::conformance {
namespace {

/// Holds work back, where the device can wait for the host; else keeps the queue busy in front.
class Gate {
 public:
  explicit Gate(Rig& rig) : rig_(rig) {
    if (rig.has(KVSPAN_DEVICE_WAIT_HOST)) {
      fence_ = rig.fence();
    } else {
      source_ = rig.allocate(KVSPAN_MEMORY_HOST, uint64_t{16} << 20);
      target_ = rig.allocate(KVSPAN_MEMORY_DEVICE, uint64_t{16} << 20);
    }
  }

  /// What the held-back submit waits for; in front of it on the lane, where there is no gate.
  void hold(Lane& lane, std::vector<kvspan_point_t>& waits) {
    if (fence_ != nullptr) {
      waits.push_back({fence_, 1});
      return;
    }
    const kvspan_segment_t segment = {
        source_->memory, target_->memory, 0, 0, source_->bytes(), 1, 0, 0};
    Submit submit;
    submit.signal(lane.next());
    EXPECT_EQ(rig_.calls().copy(lane.queue, &segment, 1, submit.raw(), nullptr), KVSPAN_OK);
  }

  void open() {
    if (fence_ != nullptr) {
      EXPECT_EQ(rig_.tables().fence->signal(fence_, 1, nullptr), KVSPAN_OK);
    }
  }

 private:
  Rig& rig_;
  kvspan_fence_t* fence_ = nullptr;
  Buffer* source_ = nullptr;
  Buffer* target_ = nullptr;
};

/// Submits `work` behind a closed gate with a guarded submit struct, takes all arrays away, opens
/// the gate and waits.
template <class Work>
void hold_and_take_away(Rig& rig, GuardedArrays& arrays, Work&& work) {
  Lane& lane = rig.lane(KVSPAN_ROLE_COMPUTE);
  Gate gate(rig);
  std::vector<kvspan_point_t> waits;
  gate.hold(lane, waits);
  const kvspan_point_t done = lane.next();
  kvspan_submit_t submit = {};
  submit.struct_size = sizeof submit;
  submit.wait_count = static_cast<uint32_t>(waits.size());
  submit.waits = arrays.keep(waits);
  submit.signal_count = 1;
  submit.signals = arrays.keep(&done, 1);
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = work(lane.queue, arrays.keep(&submit, 1), &error);
  arrays.protect();
  gate.open();
  ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
  const kvspan_result_t settled = rig.wait(done, &error);
  ASSERT_EQ(settled, KVSPAN_OK) << told(settled, error);
}

class BorrowedArrays : public PluginTest {};

namespace plain {
KVSPAN_PROFILE(core);

KVSPAN_CASE(BorrowedArrays, OfACopyAreCopied, "KV-SUBMIT-4") {
  Buffer* source = rig().allocate(KVSPAN_MEMORY_HOST, 65536);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_HOST, 65536);
  rig().upload(*source);
  rig().upload(*target);
  std::vector<kvspan_segment_t> segments;
  for (uint64_t i = 0; i < 7; ++i) {
    segments.push_back(
        {source->memory, target->memory, i * 4096, (6 - i) * 8192, 512, 3, 1024, 2048});
    for (uint64_t row = 0; row < 3; ++row) {
      std::copy_n(source->image.data() + i * 4096 + row * 1024,
                  512,
                  target->image.data() + (6 - i) * 8192 + row * 2048);
    }
  }
  GuardedArrays arrays;
  const kvspan_segment_t* kept = arrays.keep(segments);
  hold_and_take_away(rig(), arrays, [&](auto* queue, const auto* submit, auto* error) {
    return rig().calls().copy(queue, kept, 7, submit, error);
  });
  EXPECT_TRUE(rig().unchanged(*target));
}

KVSPAN_CASE(BorrowedArrays, OfAFillAreCopied, "KV-SUBMIT-4") {
  Buffer* target = rig().allocate(KVSPAN_MEMORY_DEVICE, 8192);
  rig().upload(*target);
  const kvspan_range_t range = {target->memory, 4096, 2048};
  std::fill_n(target->image.begin() + 4096, 2048, uint8_t{0x3C});
  GuardedArrays arrays;
  const kvspan_range_t* kept = arrays.keep(&range, 1);
  hold_and_take_away(rig(), arrays, [&](auto* queue, const auto* submit, auto* error) {
    return rig().calls().fill(queue, kept, 0x3C, 1, submit, error);
  });
  EXPECT_TRUE(rig().unchanged(*target));
}

/// Encoded behind the gate and decoded behind another gives the rows again: f32 holds them exactly.
KVSPAN_CASE(BorrowedArrays, OfTheCodecAreCopied, "KV-SUBMIT-4") {
  Buffer* rows = rig().allocate(KVSPAN_MEMORY_HOST, 16384);
  Buffer* plane = rig().allocate(KVSPAN_MEMORY_DEVICE, 65536);
  Buffer* back = rig().allocate(KVSPAN_MEMORY_HOST, 16384);
  for (Buffer* buffer : {rows, plane, back}) {
    rig().upload(*buffer);
  }
  const std::vector<uint32_t> list = {3, 0, 2, 1};
  for (Buffer* side : {rows, back}) {
    GuardedArrays arrays;
    kvspan_codec_item_t item = {};
    item.rows = {side->memory, 0, 512, 256, KVSPAN_TYPE_F32, 0};
    item.plane.memory = plane->memory;
    item.plane.page_stride = 8192;
    item.plane.row_stride = 512;
    item.plane.head_stride = 256;
    item.plane.page_list = arrays.keep(list);
    item.plane.page_count = 4;
    item.plane.page_tokens = 8;
    item.type = KVSPAN_TYPE_F32;
    item.row_count = 32;
    item.head_count = 2;
    item.head_size = 64;
    const kvspan_codec_item_t* kept = arrays.keep(&item, 1);
    hold_and_take_away(rig(), arrays, [&](auto* queue, const auto* submit, auto* error) {
      return side == rows ? rig().calls().encode(queue, kept, 1, submit, error)
                          : rig().calls().decode(queue, kept, 1, submit, error);
    });
  }
  back->image = rows->image;
  EXPECT_TRUE(rig().unchanged(*back));
}
}  // namespace plain

namespace spans {
KVSPAN_PROFILE(attention);

class BorrowedSpans : public AttentionTest {
 protected:
  void SetUp() override {
    AttentionTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    Dice dice(settings(), 41);
    scene_.geometry.q_heads = 4;
    scene_.geometry.kv_heads = 2;
    scene_.shape = shape_of(scene_.geometry);
    scene_.shape.options = KVSPAN_OPTION_LSE | KVSPAN_OPTION_WINDOW;
    prepare(scene_);
    history_ = History::random(scene_.geometry, 128, dice);
    Sequence sequence;
    sequence.history = &history_;
    sequence.rows = rows_over(scene_, 128, 3, dice);
    sequence.rows.window_begin.assign(3, 5);
    scene_.sequences = {sequence};
  }

  /// A stage over a page list, everything uploaded but not run.
  std::unique_ptr<Stage> stage() {
    Dice dice(settings(), 42);
    arenas().reset();
    Piece piece;
    piece.token_count = 128;
    piece.page_tokens = 64;
    piece.listed = true;
    placement_ = std::make_unique<Placement>(
        arenas(), history_, std::vector<Piece>{piece}, std::vector<bool>(), Poison::nan, dice);
    scene_.sequences[0].spans = placement_->spans();
    auto made = std::make_unique<Stage>(arenas(), scene_, dice);
    made->workspace_of(std::max({scene_.caps.run_workspace_bytes,
                                 scene_.caps.advance_workspace_bytes,
                                 scene_.caps.fold_workspace_bytes,
                                 scene_.caps.finish_workspace_bytes}));
    return made;
  }

  /// The arguments of a stage with every array in guarded pages.
  const kvspan_attention_args_t* guarded(GuardedArrays& arrays, Stage& from) {
    kvspan_attention_args_t args = from.args();
    kvspan_entry_t entry = from.entries()[0];
    std::vector<kvspan_span_t> all(entry.spans, entry.spans + entry.span_count);
    for (kvspan_span_t& span : all) {
      span.k.page_list = arrays.keep(span.k.page_list, span.k.page_count);
      span.v.page_list = arrays.keep(span.v.page_list, span.v.page_count);
    }
    entry.spans = arrays.keep(all);
    entry.visible_end = arrays.keep(entry.visible_end, entry.row_count);
    entry.window_begin = arrays.keep(entry.window_begin, entry.row_count);
    args.entries = arrays.keep(&entry, 1);
    args.shape = arrays.keep(args.shape, 1);
    return arrays.keep(&args, 1);
  }

  Scene scene_;
  History history_;
  std::unique_ptr<Placement> placement_;
};

KVSPAN_CASE(BorrowedSpans, OfRunAreCopied, "KV-SUBMIT-4", needs::lse, needs::window) {
  const Outputs plainly = take(scene_, {}, 1);
  const std::unique_ptr<Stage> made = stage();
  made->upload();
  GuardedArrays arrays;
  const kvspan_attention_args_t* args = guarded(arrays, *made);
  hold_and_take_away(rig(), arrays, [&](auto* queue, const auto* submit, auto* error) {
    return rig().calls().run(queue, args, submit, error);
  });
  EXPECT_TRUE(same_bits(plainly, made->outputs()));
}

KVSPAN_CASE(
    BorrowedSpans, OfAdvanceFoldAndFinishAreCopied, "KV-SUBMIT-4", needs::lse, needs::window) {
  const Outputs plainly = take(scene_, {}, 1);
  const std::unique_ptr<Stage> made = stage();
  const uint64_t split_tokens = scene_.sequences[0].rows.split_tokens;
  std::vector<kvspan_advance_item_t> advances;
  std::vector<kvspan_fold_item_t> folds;
  const kvspan_state_t sum = made->accumulator(0);
  for (uint64_t at = 0; at < 128; at += split_tokens) {
    const uint64_t split = at / split_tokens;
    const kvspan_state_t state = made->state(0, split);
    advances.push_back({0, KVSPAN_ITEM_FRESH, split, at, std::min(split_tokens, 128 - at), state});
    folds.push_back({0, at == 0 ? KVSPAN_ITEM_FRESH : 0u, state, sum});
  }
  ASSERT_LE(advances.size(), scene_.shape.items_max);
  made->upload();
  const auto count = static_cast<uint32_t>(advances.size());
  for (int step = 0; step < 3; ++step) {
    GuardedArrays arrays;
    const kvspan_attention_args_t* args = guarded(arrays, *made);
    const auto* items = arrays.keep(advances);
    const auto* fold_items = arrays.keep(folds);
    const auto* sums = arrays.keep(&sum, 1);
    hold_and_take_away(rig(), arrays, [&](auto* queue, const auto* submit, auto* error) {
      return step == 0   ? rig().calls().advance(queue, args, items, count, submit, error)
             : step == 1 ? rig().calls().fold(queue, args, fold_items, count, submit, error)
                         : rig().calls().finish(queue, args, sums, submit, error);
    });
  }
  EXPECT_TRUE(same_bits(plainly, made->outputs()));
}
}  // namespace spans

}  // namespace
}  // namespace kvspan::conformance
