// SPDX-License-Identifier: Apache-2.0
// The needle: a history of 64 pages of 256 tokens streamed through a ring of 4 pages. All K are 0
// and all V too, but for one row of 16,384: the mean over 16,384 equal weights is exactly 1.0
// whichever page and row holds it, if every page is attended once and none while its slot changes.
// A slot is copied into again behind the point of the wave that read it; nothing waits on the host.
#include "kvspan/sdk/reference/half.h"

#include "attention_case.hpp"
#include "worker/case.hpp"

#include <cstring>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(stream);

constexpr uint64_t kPages = 64;
constexpr uint64_t kPageTokens = 256;
constexpr uint64_t kRingSlots = 4;
constexpr uint32_t kElements = 64;
constexpr uint64_t kRowBytes = kElements * 2;
constexpr uint64_t kPlaneBytes = kPageTokens * kRowBytes;  // K or V of a page; V lies behind K
constexpr uint64_t kPageBytes = 2 * kPlaneBytes;

class Needle : public AttentionTest {
 protected:
  void SetUp() override {
    AttentionTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    scene_.shape = shape_of(scene_.geometry);
    scene_.caps = ask(rig(), scene_.shape);
    history_ = History(scene_.geometry, 0);
    new_ring();
  }

  void new_ring() {
    pages_ = rig().allocate(KVSPAN_MEMORY_HOST, page_count_ * kPageBytes);
    ring_ = rig().allocate(KVSPAN_MEMORY_DEVICE, kRingSlots * kPageBytes);
    ASSERT_NE(pages_, nullptr);
    ASSERT_NE(ring_, nullptr);
    std::fill(pages_->image.begin(), pages_->image.end(), uint8_t{0});
    rig().upload(*pages_);
  }

  uint64_t tokens() const { return page_count_ * kPageTokens; }

  /// Writes V row `token` of the host's pages.
  void set_row(uint64_t token, float value) {
    const uint64_t at =
        token / kPageTokens * kPageBytes + kPlaneBytes + token % kPageTokens * kRowBytes;
    const uint16_t bits = kvspan_ref_f16_from_f32(value);
    for (uint32_t e = 0; e < kElements; ++e) {
      std::memcpy(pages_->mapped + at + 2 * e, &bits, 2);
    }
  }

  /// Streams every page once and returns the output row. `order` deals the pages to the waves.
  Output stream(uint64_t seed);

  struct Wave {
    std::vector<uint64_t> pages;  // at most kRingSlots, each the next one of its split
  };

  std::vector<Wave> waves(uint64_t split_tokens, Dice& dice) const;
  kvspan_result_t send_wave(const Wave& wave, Stage& stage, kvspan_error_t* error);

  uint64_t page_count_ = kPages;
  Buffer* pages_ = nullptr;
  Buffer* ring_ = nullptr;
  Scene scene_;
  History history_;
};

std::vector<Needle::Wave> Needle::waves(uint64_t split_tokens, Dice& dice) const {
  const uint64_t split_pages = split_tokens / kPageTokens;
  std::vector<uint64_t> next;  // page that each split needs next
  for (uint64_t page = 0; page < page_count_; page += split_pages) {
    next.push_back(page);
  }
  std::vector<Wave> all;
  uint64_t left = page_count_;
  while (left != 0) {
    Wave wave;
    std::vector<uint64_t> splits(next.size());
    for (uint64_t i = 0; i < splits.size(); ++i) {
      splits[i] = i;
    }
    dice.shuffle(splits);
    for (const uint64_t split : splits) {
      const uint64_t end = std::min((split + 1) * split_pages, page_count_);
      if (next[split] < end && wave.pages.size() < kRingSlots) {
        wave.pages.push_back(next[split]++);
        --left;
      }
    }
    all.push_back(wave);
  }
  return all;
}

kvspan_result_t Needle::send_wave(const Wave& wave, Stage& stage, kvspan_error_t* error) {
  Lane& upload = rig().lane(KVSPAN_ROLE_UPLOAD);
  Lane& compute = rig().lane(KVSPAN_ROLE_COMPUTE);
  const auto count = static_cast<uint32_t>(wave.pages.size());
  std::vector<kvspan_segment_t> segments;
  std::vector<kvspan_span_t> spans;
  std::vector<kvspan_advance_item_t> items;
  std::vector<uint64_t> ascending = wave.pages;
  std::sort(ascending.begin(), ascending.end());
  const uint64_t split_tokens = scene_.sequences[0].rows.split_tokens;
  for (uint64_t slot = 0; slot < count; ++slot) {
    const uint64_t page = ascending[slot];
    const uint64_t first = page * kPageTokens;
    segments.push_back(
        {pages_->memory, ring_->memory, page * kPageBytes, slot * kPageBytes, kPageBytes, 1, 0, 0});
    kvspan_span_t span = {};
    span.first_token = first;
    span.token_count = kPageTokens;
    span.k.memory = span.v.memory = ring_->memory;
    span.k.row_stride = span.v.row_stride = kRowBytes;
    span.k.head_stride = span.v.head_stride = kRowBytes;
    span.k.offset = slot * kPageBytes;
    span.v.offset = span.k.offset + kPlaneBytes;
    spans.push_back(span);
    const uint64_t split = first / split_tokens;
    const bool fresh = first % split_tokens == 0;
    items.push_back(
        {0, fresh ? KVSPAN_ITEM_FRESH : 0u, split, first, kPageTokens, stage.state(0, split)});
  }
  Submit copy;
  const kvspan_point_t there = upload.next();
  copy.wait(compute.last()).signal(there);  // the readers of these slots
  kvspan_result_t result =
      rig().calls().copy(upload.queue, segments.data(), count, copy.raw(), error);
  if (result != KVSPAN_OK) {
    return result;
  }
  kvspan_entry_t entry = stage.entries()[0];
  entry.spans = spans.data();
  entry.span_count = count;
  kvspan_attention_args_t args = stage.args();
  args.entries = &entry;
  Submit advance;
  advance.wait(there).signal(compute.next());
  result = rig().calls().advance(compute.queue, &args, items.data(), count, advance.raw(), error);
  // Few enough in flight for any queue depth: settle every eighth wave.
  return result == KVSPAN_OK && compute.value % 8 == 0 ? rig().wait(compute.last(), error) : result;
}

Output Needle::stream(uint64_t seed) {
  Dice dice(settings(), seed);
  arenas().reset();
  Sequence sequence;
  sequence.history = &history_;
  Rows& rows = sequence.rows = rows_over(scene_, tokens(), 1, dice);
  rows.split_tokens = (rows.split_tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
  scene_.sequences = {sequence};
  Stage stage(arenas(), scene_, dice);
  stage.workspace_of(std::max({scene_.caps.advance_workspace_bytes,
                               scene_.caps.fold_workspace_bytes,
                               scene_.caps.finish_workspace_bytes}));
  const uint64_t splits = (tokens() + rows.split_tokens - 1) / rows.split_tokens;
  std::vector<kvspan_fold_item_t> folds;
  const kvspan_state_t sum = stage.accumulator(0);
  for (uint64_t split = 0; split < splits; ++split) {
    folds.push_back({0, split == 0 ? KVSPAN_ITEM_FRESH : 0u, stage.state(0, split), sum});
  }
  stage.upload();
  kvspan_error_t error = fresh_error();
  kvspan_result_t result = rig().wait(rig().lane(KVSPAN_ROLE_UPLOAD).last(), &error);
  for (const Wave& wave : waves(rows.split_tokens, dice)) {
    if (result == KVSPAN_OK) {
      result = send_wave(wave, stage, &error);
    }
  }
  const uint32_t fold_max = scene_.shape.items_max;
  for (uint64_t at = 0; result == KVSPAN_OK && at < folds.size(); at += fold_max) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(fold_max, folds.size() - at));
    result = rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().fold(queue, &stage.args(), &folds[at], count, submit, out);
        },
        &error);
  }
  if (result == KVSPAN_OK) {
    result = rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().finish(queue, &stage.args(), &sum, submit, out);
        },
        &error);
  }
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  const Outputs outputs = result == KVSPAN_OK ? stage.outputs() : Outputs();
  return outputs.empty() ? Output() : outputs[0];
}

KVSPAN_CASE(Needle, IsFoundInEveryPageThroughARingOfFour, "KV-SUBMIT-9 KV-ATTN-5") {
  const uint32_t stride = 64 / cases(settings(), 64, 6);
  for (uint64_t page = 0; page < kPages && !HasFailure(); page += stride) {
    Dice dice(settings(), page);
    const uint64_t token = page * kPageTokens + dice.below(kPageTokens);
    SCOPED_TRACE(testing::Message() << "page " << page << ", token " << token);
    set_row(token, static_cast<float>(tokens()));
    const std::vector<float> values = values_of(stream(page), KVSPAN_TYPE_F32);
    set_row(token, 0.0F);
    ASSERT_EQ(values.size(), kElements);
    for (const float value : values) {
      ASSERT_EQ(value, 1.0F);
    }
  }
}

KVSPAN_CASE(Needle, IsFoundInTheFirstAndTheLastToken, "KV-SUBMIT-9 KV-ATTN-5") {
  for (const uint64_t token : {uint64_t{0}, tokens() - 1}) {
    SCOPED_TRACE(testing::Message() << "token " << token);
    set_row(token, static_cast<float>(tokens()));
    const std::vector<float> values = values_of(stream(token), KVSPAN_TYPE_F32);
    set_row(token, 0.0F);
    ASSERT_EQ(values, std::vector<float>(kElements, 1.0F));
  }
}

// Every order that the stub's scheduler finds for the same submits gives the same bytes.
KVSPAN_CASE(Needle,
            EverySeedOfTheSchedulerGivesTheSameBits,
            "KV-SUBMIT-9 KV-BITS-3",
            needs::scheduler_seed) {
  page_count_ = 8;
  reopen("queues", "shuffled");
  Output first;
  for (uint32_t seed = 1; seed <= cases(settings(), 200, 20) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "scheduler seed " << seed);
    reopen("seed", std::to_string(seed));
    renew_arenas(uint64_t{2} << 20);
    new_ring();
    Dice dice(settings(), 1);
    for (uint64_t token = 0; token < tokens(); ++token) {
      set_row(token, dice.normal());
    }
    const Output now = stream(7);
    ASSERT_FALSE(now.out.empty());
    if (seed == 1) {
      first = now;
    }
    ASSERT_TRUE(same_bits({first}, {now}));
  }
}

}  // namespace
}  // namespace kvspan::conformance
