// SPDX-License-Identifier: Apache-2.0
// Items are begun by their length, whatever order they came in.
#include "attention/order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace kvspan::cuda {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}

  uint64_t pick(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random_);
  }

 private:
  std::mt19937_64 random_;
};

// By what names an item: no two of a call have the same.
uint64_t name_of(const AdvanceWork& item) {
  return item.entry * 10'000ULL + item.first;
}

TEST(Order, ItemsGoByLengthAndNoneIsLost) {
  Random random(61);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("seed 61, round " + std::to_string(round));
    std::vector<AdvanceWork> items(random.pick(0, 40));
    for (uint64_t i = 0; i < items.size(); ++i) {
      items[i].entry = static_cast<uint32_t>(i % 3);
      items[i].first = 64 * (i / 3);
      items[i].end = items[i].first + 64 * random.pick(1, 5);
    }
    std::vector<uint64_t> names;
    for (const AdvanceWork& item : items) {
      names.push_back(name_of(item));
    }
    put_longest_first(items.data(), items.size());
    for (uint64_t i = 1; i < items.size(); ++i) {
      const uint64_t before = items[i - 1].end - items[i - 1].first;
      const uint64_t own = items[i].end - items[i].first;
      ASSERT_GE(before, own);
      ASSERT_TRUE(before != own || name_of(items[i - 1]) < name_of(items[i]));
    }
    std::vector<uint64_t> after;
    for (const AdvanceWork& item : items) {
      after.push_back(name_of(item));
    }
    std::sort(names.begin(), names.end());
    std::sort(after.begin(), after.end());
    EXPECT_EQ(after, names);
  }
}

TEST(Order, EntriesGoByWhatOneOfTheirItemsWalks) {
  Random random(62);
  int kept = 0;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("seed 62, round " + std::to_string(round));
    std::vector<EntryView> entries(random.pick(1, 6));
    std::vector<uint64_t> walked;
    for (EntryView& entry : entries) {
      entry.token_total = random.pick(1, 900);
      entry.split_tokens = 64 * random.pick(1, 4);
      entry.run_count = random.pick(0, 1) * random.pick(1, 9);
      walked.push_back(entry.run_count == 0 ? entry.token_total
                                            : std::min(entry.token_total, entry.split_tokens));
    }
    std::vector<uint32_t> order(entries.size());
    const auto count = static_cast<uint32_t>(entries.size());
    const bool changed = order_entries(entries.data(), count, order.data());
    EXPECT_EQ(changed, !std::is_sorted(walked.rbegin(), walked.rend()));
    kept += changed ? 0 : 1;
    for (uint32_t i = 1; i < count; ++i) {
      ASSERT_GE(walked[order[i - 1]], walked[order[i]]);
      ASSERT_TRUE(walked[order[i - 1]] != walked[order[i]] || order[i - 1] < order[i]);
    }
    std::sort(order.begin(), order.end());
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_EQ(order[i], i);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 500);
}

}  // namespace
}  // namespace kvspan::cuda
