// SPDX-License-Identifier: Apache-2.0
// Ring, tails, prefetch, history: the bookkeeping, without a device.
#include "kvspan/core/history/sequence_history.hpp"
#include "kvspan/core/stream/prefetch.hpp"
#include "kvspan/core/stream/slot_ring.hpp"
#include "kvspan/core/stream/tail_slots.hpp"

#include "failing_new.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <new>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

TEST(SlotRing, HandsOutEachSlotOnceUntilItComesBack) {
  std::mt19937_64 random(5);
  SlotRing ring(10, 7);
  std::deque<std::uint32_t> held;
  for (int round = 0; round < 2000; ++round) {
    if (ring.free() > 0 && random() % 2 == 0) {
      const std::uint32_t slot = ring.take();
      EXPECT_GE(slot, 10U);
      EXPECT_LT(slot, 17U);
      EXPECT_EQ(std::count(held.begin(), held.end(), slot), 0);
      held.push_back(slot);
    } else if (!held.empty()) {
      const auto count = static_cast<std::uint32_t>(random() % held.size() + 1);
      ring.give_back(count);
      held.erase(held.begin(), held.begin() + count);
    }
    EXPECT_EQ(ring.free() + ring.taken(), ring.count());
    EXPECT_EQ(ring.taken(), held.size());
  }
}

// Two pages that follow each other in one slot are ordered by the slot, though their names differ.
TEST(SlotRing, HazardsBelongToThePhysicalSlot) {
  SlotRing ring(0, 1);
  const std::uint32_t slot = ring.take();
  ring.hazard(slot).written = Moment::at(LaneId::upload, 4);
  ring.hazard(slot).read = Moment::at(LaneId::compute, 9);
  ring.give_back(1);
  const std::uint32_t again = ring.take();
  EXPECT_EQ(again, slot);
  EXPECT_EQ(ring.hazard(again).before_write().of(LaneId::compute), 9U);
  EXPECT_EQ(ring.hazard(again).before_write().of(LaneId::upload), 4U);
  EXPECT_EQ(ring.hazard(again).before_read().of(LaneId::compute), 0U);
}

TEST(TailSlots, PinnedPagesStayAndTheOldestUnpinnedGoes) {
  TailSlots tails(3, 2);
  const auto first = tails.take({0, 0, 0});
  const auto second = tails.take({0, 1, 0});
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  tails.pin(*first);
  tails.pin(*second);
  EXPECT_FALSE(tails.take({0, 2, 0}).has_value());
  tails.unpin_all();
  tails.pin(*second);
  const auto third = tails.take({0, 2, 0});
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(*third, *first);
  EXPECT_FALSE(tails.find({0, 0, 0}).has_value());
  EXPECT_TRUE(tails.find({0, 1, 0}).has_value());
  EXPECT_EQ(tails.held(), 2U);
  tails.forget(0, 0);
  EXPECT_EQ(tails.held(), 0U);
}

TEST(TailSlots, ForgetBeforeKeepsTheBegunPage) {
  TailSlots tails(0, 4);
  (void)tails.take({0, 0, 3});
  (void)tails.take({0, 0, 4});
  (void)tails.take({1, 0, 3});
  tails.forget_before(0, 4);
  EXPECT_FALSE(tails.find({0, 0, 3}).has_value());
  EXPECT_TRUE(tails.find({0, 0, 4}).has_value());
  EXPECT_TRUE(tails.find({1, 0, 3}).has_value());
}

std::vector<PageGroup> groups_of(std::uint32_t layers, std::uint32_t pages, std::uint32_t group) {
  std::vector<PageGroup> groups;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t page = 0; page < pages; page += group) {
      PageGroup& added = groups.emplace_back();
      added.layer = layer;
      added.last = page + group >= pages;
      for (std::uint32_t unit = page; unit < std::min(pages, page + group); ++unit) {
        added.units.push_back({unit, 0, 4});
      }
    }
  }
  return groups;
}

TEST(Prefetcher, FetchesInDemandOrderAndNeverIntoATakenSlot) {
  for (const std::uint32_t slots : {3U, 4U, 7U, 40U}) {
    SCOPED_TRACE("slots " + std::to_string(slots));
    SlotRing ring(0, slots);
    std::set<std::uint32_t> in_use;
    std::vector<PageGroup> fetched;
    std::uint64_t value = 0;
    Prefetcher prefetch(ring,
                        [&](const PageGroup& group,
                            const std::vector<std::uint32_t>& into) -> Result<std::uint64_t> {
                          for (const std::uint32_t slot : into) {
                            EXPECT_TRUE(in_use.insert(slot).second)
                                << "slot " << slot << " is still read";
                          }
                          EXPECT_EQ(into.size(), group.units.size());
                          fetched.push_back(group);
                          return ++value;
                        });
    const std::vector<PageGroup> wanted = groups_of(3, 11, 3);
    prefetch.demand(wanted, {});
    ASSERT_TRUE(prefetch.pump().has_value());
    for (const PageGroup& expected : wanted) {
      auto group = prefetch.next(0, expected.layer);
      ASSERT_TRUE(group.has_value());
      EXPECT_EQ(group->group, expected);
      for (const std::uint32_t slot : group->slots) {
        in_use.erase(slot);
      }
      prefetch.release(*group, Moment::at(LaneId::compute, 1));
      ASSERT_TRUE(prefetch.pump().has_value());
    }
    EXPECT_TRUE(prefetch.done());
    EXPECT_EQ(fetched, wanted);
    EXPECT_EQ(ring.free(), slots);
    EXPECT_FALSE(prefetch.next(0, 0).has_value());
  }
}

TEST(Prefetcher, KeepsWhatWasPrimedForTheSameDemandAndDropsTheRest) {
  SlotRing ring(0, 6);
  int fetches = 0;
  Prefetcher prefetch(
      ring, [&](const PageGroup&, const std::vector<std::uint32_t>&) -> Result<std::uint64_t> {
        return static_cast<std::uint64_t>(++fetches);
      });
  prefetch.demand(groups_of(2, 6, 3), {});
  ASSERT_TRUE(prefetch.pump().has_value());
  EXPECT_EQ(fetches, 2);
  prefetch.demand(groups_of(2, 6, 3), {});
  ASSERT_TRUE(prefetch.pump().has_value());
  EXPECT_EQ(fetches, 2);
  prefetch.demand(groups_of(1, 4, 2), {});
  ASSERT_TRUE(prefetch.pump().has_value());
  EXPECT_EQ(fetches, 4);
  EXPECT_EQ(prefetch.next(0, 0)->group, groups_of(1, 4, 2).front());
}

// Of what is to come: the rest of a layer, the layer behind it, and rows of parts of tiles.
TEST(Prefetcher, TellsWhatIsLeftOfALayerAndWhatFollows) {
  SlotRing ring(0, 6);
  Prefetcher prefetch(
      ring, [](const PageGroup&, const std::vector<std::uint32_t>&) -> Result<std::uint64_t> {
        return 1;
      });
  std::vector<PageGroup> wanted = groups_of(2, 8, 3);
  wanted[1].units[0].rows = 3;
  wanted[2].units[1].first_row = 2;
  wanted[3].units[1].rows = 1;
  prefetch.demand(wanted, {});
  for (const std::uint64_t left : {8U, 5U, 2U}) {
    SCOPED_TRACE(left);
    ASSERT_TRUE(prefetch.pump().has_value());
    const PartAhead ahead = prefetch.part_ahead(4);
    EXPECT_EQ(ahead.units, left);
    EXPECT_EQ(ahead.cut_units, left == 2 ? 1U : 2U);
    EXPECT_EQ(ahead.next_units, 8U);
    prefetch.release(*prefetch.next(0, 0), {});
  }
  EXPECT_EQ(prefetch.part_ahead(4).units, 8U);
  EXPECT_EQ(prefetch.part_ahead(4).cut_units, 1U);
  EXPECT_EQ(prefetch.part_ahead(2).cut_units, 1U);
  EXPECT_EQ(prefetch.part_ahead(1).cut_units, 0U);
  EXPECT_EQ(prefetch.part_ahead(4).next_units, 0U);
  prefetch.cancel();
  EXPECT_EQ(prefetch.part_ahead(4).units, 0U);
}

TEST(Prefetcher, AFailedFetchGivesItsSlotsBack) {
  SlotRing ring(0, 4);
  Prefetcher prefetch(
      ring, [](const PageGroup&, const std::vector<std::uint32_t>&) -> Result<std::uint64_t> {
        return tl::unexpected(Error{Errc::device_lost, "gone"});
      });
  prefetch.demand(groups_of(1, 4, 2), {});
  EXPECT_EQ(prefetch.pump().error().code, Errc::device_lost);
  prefetch.cancel();
  EXPECT_EQ(ring.free(), 4U);
}

Moment down(std::uint64_t value) {
  return Moment::at(LaneId::download, value);
}

std::vector<HostClass> one_class(std::uint32_t layers) {
  HostClass of;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    of.layers.push_back(layer);
  }
  return {of};
}

TEST(SequenceHistory, FallsBackToTheNewestCompleteCommit) {
  SequenceHistory history(one_class(2), 4);
  history.commit(10, down(3));
  history.commit(5, down(6));
  history.commit(1, down(9));
  EXPECT_EQ(history.committed_tokens(), 16U);
  history.prove(down(4));
  history.fall_back(down(8));
  EXPECT_EQ(history.committed_tokens(), 15U);
  history.fall_back(down(0));
  EXPECT_EQ(history.committed_tokens(), 15U);
}

// A refused fetch leaves the ring as it was, whether or not anybody gives up because of it.
TEST(Prefetcher, ARefusedFetchTakesNoSlots) {
  SlotRing ring(0, 6);
  bool refuse = true;
  std::vector<std::uint32_t> into;
  Prefetcher prefetch(
      ring,
      [&](const PageGroup&, const std::vector<std::uint32_t>& slots) -> Result<std::uint64_t> {
        if (refuse) {
          return tl::unexpected(Error{Errc::internal, "refused"});
        }
        into.insert(into.end(), slots.begin(), slots.end());
        return 1;
      });
  prefetch.demand(groups_of(2, 6, 3), {});
  EXPECT_FALSE(prefetch.pump().has_value());
  EXPECT_EQ(ring.taken(), 0U);
  refuse = false;
  prefetch.demand(groups_of(2, 6, 3), {});
  ASSERT_TRUE(prefetch.pump().has_value());
  EXPECT_EQ(ring.taken(), 6U);
  EXPECT_EQ(into, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
}

// The wrong layer or sequence is refused, and the group stays.
TEST(Prefetcher, HandsOutAGroupToWhomItIsForOnly) {
  SlotRing ring(0, 6);
  Prefetcher prefetch(
      ring, [](const PageGroup&, const std::vector<std::uint32_t>&) -> Result<std::uint64_t> {
        return 1;
      });
  prefetch.demand(groups_of(2, 3, 3), {});
  EXPECT_EQ(prefetch.next(0, 1).error().code, Errc::internal);
  EXPECT_EQ(prefetch.next(1, 0).error().code, Errc::internal);
  EXPECT_EQ(prefetch.next(0, 0)->group, groups_of(2, 3, 3).front());
  EXPECT_EQ(prefetch.next(0, 0).error().code, Errc::internal);
  EXPECT_EQ(prefetch.next(0, 1)->group, groups_of(2, 3, 3).back());
}

// Any allocation of a demand, of pumping and inside the fetch: no group is lost, none is fetched
// twice, and only what was fetched has slots.
TEST(Prefetcher, AnyAllocationMayFail) {
  std::uint64_t nth = 1;
  for (bool fired = true; fired; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    SlotRing ring(0, 5);
    std::vector<PageGroup> fetched;
    std::uint64_t slots = 0;
    Prefetcher prefetch(ring,
                        [&](const PageGroup& group,
                            const std::vector<std::uint32_t>& into) -> Result<std::uint64_t> {
                          fetched.push_back(group);
                          slots += into.size();
                          return 1;
                        });
    // The first layer is primed, and another one waits; then a demand that keeps what is primed.
    const std::vector<PageGroup> wanted = groups_of(3, 5, 3);
    std::vector<PageGroup> before(wanted.begin(), wanted.begin() + 2);
    before.push_back({0, 1, true, {{7, 0, 4}}});
    prefetch.demand(before, {});
    ASSERT_TRUE(prefetch.pump().has_value());
    bool demanded = false;
    std::vector<PageGroup> again = wanted;
    test::fail_new(nth);
    try {
      prefetch.demand(std::move(again), {});
      demanded = true;
      prefetch.release(*prefetch.next(0, 0), {});
      (void)prefetch.pump();
    } catch (const std::bad_alloc&) {
    }
    fired = test::new_has_failed();
    test::fail_new(0);
    EXPECT_EQ(ring.taken(), slots - (demanded ? 3 : 0));
    if (!demanded) {
      EXPECT_EQ(prefetch.part_ahead(4).units, 5U) << "the primed ones";
      EXPECT_EQ(prefetch.part_ahead(4).next_units, 1U) << "and the one behind them";
      prefetch.demand(wanted, {});
    }
    for (std::size_t index = demanded ? 1 : 0; index < wanted.size(); ++index) {
      auto group = prefetch.next(0, wanted[index].layer);
      ASSERT_TRUE(group.has_value()) << group.error().message;
      EXPECT_EQ(group->group, wanted[index]);
      prefetch.release(*group, {});
      ASSERT_TRUE(prefetch.pump().has_value());
    }
    EXPECT_TRUE(prefetch.done());
    EXPECT_EQ(fetched, wanted);
    EXPECT_EQ(ring.taken(), 0U);
  }
  EXPECT_GT(nth, 5U);
}

// Room was not reserved: nothing is committed.
TEST(SequenceHistory, ACommitWithoutMemoryCommitsNothing) {
  SequenceHistory history(one_class(1), 4);
  test::fail_new(1);
  EXPECT_THROW(history.commit(10, down(6)), std::bad_alloc);
  test::fail_new(0);
  EXPECT_EQ(history.committed_tokens(), 0U);
  history.commit(10, down(6));
  history.fall_back(down(6));
  EXPECT_EQ(history.committed_tokens(), 10U);
}

// What the host wrote itself does not fall with copies from before the history was emptied.
TEST(SequenceHistory, LoadedRowsLastWhateverFails) {
  SequenceHistory history(one_class(1), 4);
  history.commit(10, down(6));
  history.truncate(0);
  history.load(7);
  history.commit(2, down(8));
  history.fall_back(down(0));
  EXPECT_EQ(history.committed_tokens(), 7U);
}

TEST(SequenceHistory, TruncationSurvivesAFallBack) {
  SequenceHistory history(one_class(1), 4);
  history.commit(20, down(1));
  history.commit(20, down(2));
  history.truncate(7);
  history.commit(3, down(3));
  history.fall_back(down(2));
  EXPECT_EQ(history.committed_tokens(), 7U);
}

}  // namespace
}  // namespace kvspan
