// SPDX-License-Identifier: Apache-2.0
// Cancelling attention in the middle of a wave: advances of several items, a fold and a finish are
// queued, all with one cancel word, which is set before, or from another thread when a seeded part
// of the work has settled. Every point settles; nothing outside outputs, states and workspace is
// written; the word stays as the host wrote it; and the same work, begun afresh on the same queue
// over the same states, has the bits of a run that nobody cancelled. Copies, fills and rows:
// cancel_test.cpp.
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

using Clock = std::chrono::steady_clock;

/// A thread that sets the cancel word once it sees a fence settled, and some turns of a loop later.
class Watcher {
 public:
  Watcher(const kvspan_fence_table_t& fences, uint32_t* word) : fences_(fences), word_(word) {}

  /// `progress` lives until wait_until_obeyed(); NULL = at once.
  void order(kvspan_fence_t* progress, uint64_t turns) {
    progress_ = progress;
    turns_ = turns;
    ordered_.fetch_add(1, std::memory_order_release);
  }

  void wait_until_obeyed() const {
    while (obeyed_.load(std::memory_order_acquire) != ordered_.load()) {
      std::this_thread::yield();
    }
  }

 private:
  bool settled() const {
    uint64_t value = 0;
    return progress_ == nullptr || fences_.query(progress_, &value, nullptr) != KVSPAN_OK ||
           value != 0;
  }

  void work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const uint32_t now = ordered_.load(std::memory_order_acquire);
      if (now == obeyed_.load()) {
        std::this_thread::yield();
        continue;
      }
      while (!settled()) {
        std::this_thread::yield();
      }
      for (std::atomic<uint64_t> turn = 0; turn < turns_; ++turn) {
      }
      std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release);
      obeyed_.store(now, std::memory_order_release);
    }
  }

  const kvspan_fence_table_t& fences_;
  uint32_t* word_;
  kvspan_fence_t* progress_ = nullptr;
  uint64_t turns_ = 0;
  std::atomic<uint32_t> ordered_ = 0;
  std::atomic<uint32_t> obeyed_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { work(stop); }};  // ends first
};

/// One submit of attention, without queue and submit.
using Work = std::function<kvspan_result_t(
    kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error)>;

/// A scene on its stage, with the work that takes it from FRESH states to outputs.
struct Staged {
  std::vector<std::unique_ptr<Placement>> placements;
  Scene scene;  // with the spans of the placements
  std::unique_ptr<Stage> stage;
  std::vector<std::vector<kvspan_advance_item_t>> waves;
  std::vector<kvspan_fold_item_t> folds;
  std::vector<kvspan_state_t> accumulators;  // [entry]
};

class CancelAttention : public AttentionTest {
 protected:
  void SetUp() override {
    AttentionTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    word_ = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
    ASSERT_NE(word_, nullptr);
    ASSERT_NE(word_->mapped, nullptr);
  }

  uint32_t* word() { return reinterpret_cast<uint32_t*>(word_->mapped); }

  void set_word(uint32_t value) {
    std::atomic_ref<uint32_t>(*word()).store(value, std::memory_order_release);
  }

  struct Size {
    uint32_t sequences, q_heads;
    uint32_t rows_min, rows_max;
    uint64_t tokens_min, tokens_max;
  };

  /// Rows that see all the tokens of their sequence.
  RandomScene some_scene(const Size& size, Dice& dice);
  /// Puts it into the arenas, scattered, and cuts its splits into up to `waves_max` waves.
  void stage(const Scene& scene, uint32_t waves_max, Dice& dice, Staged& out);
  /// The submits of the stage in their order: waves, folds, finish.
  std::vector<Work> work_of(Staged& staged);

  /// Submits all of it, each with a fence of its own and, where asked for, the word.
  std::vector<kvspan_fence_t*> submit(const std::vector<Work>& work, bool with_word);
  /// Waits for all of them and ends them. How many were cancelled; others must be reached.
  uint32_t settle(const std::vector<kvspan_fence_t*>& fences);

  void play(Staged& staged, const Outputs& expected, Watcher& watcher, Dice& dice);
  /// From FRESH states, without the word: the bits of `expected`.
  void expect_bits(Staged& staged, const Outputs& expected, const char* when);

  Buffer* word_ = nullptr;
  uint32_t cancelled_ = 0;  // submits
};

RandomScene CancelAttention::some_scene(const Size& size, Dice& dice) {
  RandomScene made;
  Scene& scene = made.scene;
  do {  // until it is offered, as f16 with head size 64 is
    scene.geometry.k_type = dice.pick<kvspan_type_t>({KVSPAN_TYPE_F16, KVSPAN_TYPE_Q8_0});
    scene.geometry.v_type = scene.geometry.k_type;
    scene.geometry.head_size_k = scene.geometry.head_size_v = dice.pick<uint32_t>({64, 128});
    scene.geometry.kv_heads = 2;
    scene.geometry.q_heads = size.q_heads;
  } while (!offers(scene.geometry));
  scene.shape = shape_of(scene.geometry);
  if (offers(scene.geometry, KVSPAN_OPTION_LSE)) {
    scene.shape.options |= KVSPAN_OPTION_LSE;
  }
  prepare(scene);
  make_room(scene);
  for (uint32_t i = 0; i < size.sequences; ++i) {
    const uint64_t tokens = dice.between(size.tokens_min, size.tokens_max);
    made.histories.push_back(History::random(scene.geometry, tokens, dice));
    Sequence sequence;
    sequence.history = &made.histories.back();
    sequence.rows = rows_over(
        scene, tokens, static_cast<uint32_t>(dice.between(size.rows_min, size.rows_max)), dice);
    scene.sequences.push_back(sequence);
  }
  return made;
}

void CancelAttention::stage(const Scene& scene, uint32_t waves_max, Dice& dice, Staged& out) {
  arenas().reset();
  out.scene = scene;
  const uint64_t granule = scene.caps.span_granule;
  for (Sequence& sequence : out.scene.sequences) {
    out.placements.push_back(std::make_unique<Placement>(
        arenas(),
        *sequence.history,
        random_pieces(
            sequence.history->tokens, scene.caps.span_granule, scene.shape.memory_kinds, dice),
        std::vector<bool>(),
        Poison::nan,
        dice));
    sequence.spans = out.placements.back()->spans();
  }
  out.stage = std::make_unique<Stage>(arenas(), out.scene, dice);
  const kvspan_attention_caps_t& caps = scene.caps;
  out.stage->workspace_of(std::max(
      {caps.advance_workspace_bytes, caps.fold_workspace_bytes, caps.finish_workspace_bytes}));
  const uint64_t wave_count = dice.between(1, waves_max);
  out.waves.resize(wave_count);
  for (uint32_t entry = 0; entry < out.scene.sequences.size(); ++entry) {
    const Rows& rows = out.scene.sequences[entry].rows;
    out.accumulators.push_back(out.stage->accumulator(entry));
    for (uint64_t split = 0; split * rows.split_tokens < rows.token_total; ++split) {
      const uint64_t begin = split * rows.split_tokens;
      const uint64_t end = std::min(begin + rows.split_tokens, rows.token_total);
      const uint64_t granules = (end - begin + granule - 1) / granule;
      const kvspan_state_t state = out.stage->state(entry, split);
      uint64_t at = begin;
      for (uint64_t wave = 0; wave < wave_count; ++wave) {
        const uint64_t stop = std::min(begin + granules * (wave + 1) / wave_count * granule, end);
        if (stop > at) {
          const uint32_t flags = at == begin ? KVSPAN_ITEM_FRESH : 0u;
          out.waves[wave].push_back({entry, flags, split, at, stop - at, state});
          at = stop;
        }
      }
      const uint32_t flags = split == 0 ? KVSPAN_ITEM_FRESH : 0u;
      out.folds.push_back({entry, flags, state, out.accumulators.back()});
    }
  }
}

std::vector<Work> CancelAttention::work_of(Staged& staged) {
  std::vector<Work> all;
  const Calls& calls = rig().calls();
  const kvspan_attention_args_t* args = &staged.stage->args();
  const uint32_t most = staged.scene.shape.items_max;
  const auto parts = [most](const auto& items, const auto& add) {
    for (std::size_t at = 0; at < items.size(); at += most) {
      add(items.data() + at, static_cast<uint32_t>(std::min<std::size_t>(most, items.size() - at)));
    }
  };
  for (const auto& wave : staged.waves) {
    parts(wave, [&](const kvspan_advance_item_t* items, uint32_t count) {
      all.emplace_back([&calls, args, items, count](auto* queue, auto* submit, auto* error) {
        return calls.advance(queue, args, items, count, submit, error);
      });
    });
  }
  parts(staged.folds, [&](const kvspan_fold_item_t* items, uint32_t count) {
    all.emplace_back([&calls, args, items, count](auto* queue, auto* submit, auto* error) {
      return calls.fold(queue, args, items, count, submit, error);
    });
  });
  all.emplace_back([&calls, args, &staged](auto* queue, auto* submit, auto* error) {
    return calls.finish(queue, args, staged.accumulators.data(), submit, error);
  });
  return all;
}

std::vector<kvspan_fence_t*> CancelAttention::submit(const std::vector<Work>& work,
                                                     bool with_word) {
  Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
  std::vector<kvspan_fence_t*> fences;
  for (const Work& one : work) {
    fences.push_back(rig().fence());
    Submit submit;
    submit.signal({fences.back(), 1});
    if (with_word) {
      submit.cancel(*word_, 0);
    }
    submit.fields.submit_id = fences.size();
    kvspan_error_t error = fresh_error();
    kvspan_result_t result = one(lane.queue, submit.raw(), &error);
    for (std::size_t oldest = 0; result == KVSPAN_E_QUEUE_FULL && oldest < fences.size();
         ++oldest) {
      static_cast<void>(rig().wait({fences[oldest], 1}));
      result = one(lane.queue, submit.raw(), &error);
    }
    EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
    if (result != KVSPAN_OK) {
      rig().destroy(fences.back());
      fences.pop_back();
      break;
    }
  }
  return fences;
}

uint32_t CancelAttention::settle(const std::vector<kvspan_fence_t*>& fences) {
  uint32_t cancelled = 0;
  for (std::size_t i = 0; i < fences.size(); ++i) {
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = rig().wait({fences[i], 1}, &error);
    EXPECT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_CANCELLED) << told(result, error);
    EXPECT_TRUE(result == KVSPAN_OK || error.submit_id == i + 1) << "another submit's id";
    cancelled += result == KVSPAN_E_CANCELLED ? 1u : 0u;
  }
  return cancelled;
}

void CancelAttention::expect_bits(Staged& staged, const Outputs& expected, const char* when) {
  const std::vector<kvspan_fence_t*> fences = submit(work_of(staged), false);
  EXPECT_EQ(settle(fences), 0u) << "without a word";
  for (kvspan_fence_t* fence : fences) {
    rig().destroy(fence);
  }
  EXPECT_TRUE(same_bits(staged.stage->outputs(), expected)) << when;
}

void CancelAttention::play(Staged& staged, const Outputs& expected, Watcher& watcher, Dice& dice) {
  set_word(0);
  staged.stage->upload();  // outputs are canaries again
  const std::vector<Work> work = work_of(staged);
  const bool before = dice.hit(5);
  const uint64_t reached = dice.below(work.size());  // so many have settled when the word is set
  const uint64_t turns = dice.below(uint64_t{1} << dice.between(2, 14));
  if (before) {
    set_word(1);
  }
  const std::vector<kvspan_fence_t*> fences = submit(work, true);
  ASSERT_EQ(fences.size(), work.size());
  if (!before) {
    watcher.order(reached == 0 ? nullptr : fences[reached - 1], turns);
  }
  const uint32_t cancelled = settle(fences);
  watcher.wait_until_obeyed();
  for (kvspan_fence_t* fence : fences) {
    rig().destroy(fence);
  }
  cancelled_ += cancelled;
  EXPECT_EQ(std::atomic_ref<uint32_t>(*word()).load(), 1u) << "the plugin wrote the word";
  const Outputs found = staged.stage->outputs();  // fails where anything else has moved
  if (cancelled == 0) {
    EXPECT_TRUE(same_bits(found, expected)) << "every point was reached";
  }
  expect_bits(staged, expected, "begun afresh after it was cancelled");
}

KVSPAN_CASE(CancelAttention,
            AtAnyMomentSettlesAndTheSameWorkHasItsBitsAgain,
            "KV-SUBMIT-7 KV-SUBMIT-2 KV-ATTN-5",
            cost_ms(1500)) {
  constexpr uint32_t kRoundsAScene = 6;
  Watcher watcher(*rig().tables().fence, word());
  for (uint32_t number = 1; number <= cases(settings(), 12, 2) && !HasFailure(); ++number) {
    Dice dice(settings(), 700 + number);
    const RandomScene made = some_scene({2, 4, 1, 4, 300, 1200}, dice);
    if (HasFailure()) {
      return;  // prepare has said why
    }
    const Outputs expected = take(made.scene, {}, number);
    Staged staged;
    stage(made.scene, 4, dice, staged);
    for (uint32_t round = 1; round <= kRoundsAScene && !HasFailure(); ++round) {
      SCOPED_TRACE(testing::Message() << "scene " << number << ", round " << round);
      play(staged, expected, watcher, dice);
    }
  }
  RecordProperty("cancelled", static_cast<int>(cancelled_));
  if (rig().info().cancel == KVSPAN_CANCEL_NONE) {
    EXPECT_EQ(cancelled_, 0u) << "the device says that it never sees the word";
  } else if (cancelled_ == 0 && !HasFailure()) {
    inconclusive("the device was done each time before it could see the word");
  }
}

/// What KVSPAN_CANCEL_ITEM promises: a word that is set in the middle of an advance ends it between
/// two of its items. The wait for the rest is then a part of the whole; the best of some rounds
/// counts, because a machine may be busy.
KVSPAN_CASE(CancelAttention,
            AnAdvanceOfManyItemsEndsBetweenThem,
            "KV-SUBMIT-7",
            needs::cancel_items,
            cost_ms(500)) {
  constexpr uint64_t kLargeArenaBytes = uint64_t{48} << 20;
  constexpr auto kWakeUp = std::chrono::microseconds(250);
  Dice dice(settings(), 800);
  renew_arenas(kLargeArenaBytes);
  const uint64_t tokens = cases(settings(), 4000, 300);  // long work; a sanitizer makes it longer
  const RandomScene made = some_scene({4, 32, 16, 16, tokens * 7 / 8, tokens}, dice);
  if (HasFailure()) {
    return;
  }
  const Outputs expected = take(made.scene, {}, 1);
  Staged staged;
  stage(made.scene, 1, dice, staged);
  staged.stage->upload();
  const std::vector<Work> advance = {work_of(staged).front()};
  auto whole = Clock::duration::max();
  for (uint32_t round = 0; round < 4; ++round) {
    set_word(0);
    const auto begin = Clock::now();
    const std::vector<kvspan_fence_t*> fences = submit(advance, true);
    EXPECT_EQ(settle(fences), 0u);
    whole = std::min(whole, Clock::now() - begin);
    rig().destroy(fences.at(0));
  }
  auto least = Clock::duration::max();
  uint32_t cancelled = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    set_word(0);
    const auto moment = Clock::now() + whole * static_cast<int>(dice.between(1, 4)) / 8;
    const std::vector<kvspan_fence_t*> fences = submit(advance, true);
    while (Clock::now() < moment) {
    }
    const auto begin = Clock::now();
    set_word(1);
    const uint32_t seen = settle(fences);
    least = seen == 0 ? least : std::min(least, Clock::now() - begin);
    cancelled += seen;
    rig().destroy(fences.at(0));
  }
  const auto most = whole / 4 + kWakeUp;
  if (cancelled == 0 && whole < 4 * kWakeUp) {
    inconclusive("the device was done each time before it could see the word");
  } else {
    EXPECT_NE(cancelled, 0u) << "the word was set within the first half of the work, 12 times";
    EXPECT_LE(least.count(), most.count())
        << "ns from the word to the end, the best of " << cancelled << ", of " << whole.count()
        << " ns for " << staged.waves.at(0).size() << " items";
  }
  expect_bits(staged, expected, "begun afresh after it was cancelled");
}

}  // namespace
}  // namespace kvspan::conformance
