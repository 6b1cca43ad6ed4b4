// SPDX-License-Identifier: Apache-2.0
// What leases keep, what commits refuse, and when the parent goes back. No device: the parent is an
// address that nobody touches and a callback that counts.
#include "kvspan/core/memory/arena.hpp"

#include "kvspan/core/error.hpp"
#include "kvspan/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<Lease> && !std::is_copy_assignable_v<Lease>);
static_assert(!std::is_copy_constructible_v<Arena> && !std::is_copy_assignable_v<Arena>);
static_assert(std::is_nothrow_move_constructible_v<Lease>);
static_assert(std::is_nothrow_move_assignable_v<Lease>);

constexpr std::uint64_t kArenaBytes = 4096;

// A parent of kArenaBytes, and how often it was released.
struct FakeParent {
  std::uint64_t object = 0;
  std::atomic<int> releases = 0;

  kvspan_memory_t* memory() { return reinterpret_cast<kvspan_memory_t*>(&object); }

  Arena arena() {
    return std::move(Arena::create({memory(), kArenaBytes}, 64, [this](kvspan_memory_t* released) {
                       EXPECT_EQ(released, memory());
                       ++releases;
                     }).value());
  }
};

// Region 1 is scratch, region 2 is persistent.
void commit_two(Arena& arena) {
  ASSERT_TRUE(arena.begin());
  ASSERT_TRUE(arena.reserve(1, 256, 64));
  ASSERT_TRUE(arena.reserve(2, 512, 64, {.persistent = true}));
  ASSERT_TRUE(arena.commit());
}

TEST(Arena, RefusesAParentThatItCannotUseAndLeavesItAlone) {
  FakeParent parent;
  const auto count = [&parent](kvspan_memory_t*) { ++parent.releases; };
  EXPECT_EQ(Arena::create({nullptr, 64}, 64, count).error().code, Errc::invalid_argument);
  EXPECT_EQ(Arena::create({parent.memory(), 0}, 64, count).error().code, Errc::invalid_argument);
  EXPECT_EQ(Arena::create({parent.memory(), 64}, 65, count).error().code, Errc::invalid_argument);
  EXPECT_EQ(Arena::create({parent.memory(), 64}, 64, {}).error().code, Errc::invalid_argument);
  EXPECT_EQ(parent.releases, 0);
}

TEST(Arena, ReleasesItsParentOnce) {
  FakeParent parent;
  {
    Arena arena = parent.arena();
    const Arena moved = std::move(arena);
    EXPECT_EQ(moved.capacity_bytes(), kArenaBytes);
    EXPECT_EQ(parent.releases, 0);
  }
  EXPECT_EQ(parent.releases, 1);
}

TEST(Arena, LeaseNamesTheRegionsBytes) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  const Lease lease = arena.acquire(2).value();
  EXPECT_TRUE(lease);
  EXPECT_EQ(lease.range().memory, parent.memory());
  EXPECT_EQ(lease.range().offset, 256u);
  EXPECT_EQ(lease.range().bytes, 512u);
  EXPECT_EQ(lease.region(), arena.find(2).value());
  EXPECT_EQ(lease.generation(), 1u);
}

TEST(Arena, EmptyLeaseNamesNothing) {
  Lease lease;
  EXPECT_FALSE(lease);
  EXPECT_EQ(lease.range().memory, nullptr);
  EXPECT_EQ(lease.range().bytes, 0u);
  lease.release();
}

TEST(Arena, OnlyCommittedRegionsAreLeased) {
  FakeParent parent;
  Arena arena = parent.arena();
  ASSERT_TRUE(arena.begin() && arena.reserve(1, 64, 64));
  EXPECT_EQ(arena.acquire(1).error().code, Errc::not_found);
  ASSERT_TRUE(arena.rollback());
  EXPECT_EQ(arena.acquire(1).error().code, Errc::not_found);
}

TEST(Arena, LeasesAreCountedAndMovesKeepTheCount) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  Lease first = arena.acquire(1).value();
  Lease second = arena.acquire(1).value();
  Lease third = arena.acquire(2).value();
  EXPECT_EQ(arena.lease_count(), 3u);
  EXPECT_EQ(arena.lease_count(1), 2u);
  Lease moved = std::move(first);
  EXPECT_EQ(arena.lease_count(1), 2u);
  second = std::move(moved);  // what `second` held is given back
  EXPECT_EQ(arena.lease_count(1), 1u);
  second.release();
  second.release();
  EXPECT_EQ(arena.lease_count(1), 0u);
  EXPECT_EQ(arena.lease_count(), 1u);
  third = Lease();
  EXPECT_EQ(arena.lease_count(), 0u);
}

TEST(Arena, CommitThatDropsALeasedRegionIsRefused) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  Lease lease = arena.acquire(2).value();
  ASSERT_TRUE(arena.begin());
  const auto committed = arena.commit();
  ASSERT_FALSE(committed);
  EXPECT_EQ(committed.error().code, Errc::busy);
  EXPECT_EQ(committed.error().component, "region 2");
  EXPECT_EQ(arena.generation(), 1u);
  EXPECT_EQ(arena.committed().size(), 2u);
  lease.release();
  EXPECT_TRUE(arena.commit());  // the plan was still open
  EXPECT_EQ(arena.generation(), 2u);
}

TEST(Arena, CommitWithALeaseOnAScratchRegionIsRefusedEvenIfItReappears) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  const Lease lease = arena.acquire(1).value();
  ASSERT_TRUE(arena.begin() && arena.keep_persistent());
  ASSERT_EQ(arena.reserve(1, 256, 64).value(), lease.region());
  const auto committed = arena.commit();
  ASSERT_FALSE(committed);
  EXPECT_THAT(committed.error().message, HasSubstr("region 1 has 1 live leases"));
  ASSERT_TRUE(arena.rollback());
  EXPECT_EQ(arena.find(1).value(), lease.region());
}

TEST(Arena, LeasedPersistentRegionMustReappearIdenticalInEveryField) {
  struct Changed {
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint64_t alignment;
    bool persistent;
    bool accepted;
  };

  const std::vector<Changed> changes = {
      {256, 512, 64, true, true},
      {320, 512, 64, true, false},
      {256, 448, 64, true, false},
      {256, 512, 128, true, false},
      {256, 512, 64, false, false},
  };
  for (const Changed& change : changes) {
    SCOPED_TRACE(&change - changes.data());
    FakeParent parent;
    Arena arena = parent.arena();
    commit_two(arena);
    const Lease lease = arena.acquire(2).value();
    ASSERT_TRUE(arena.begin());
    ASSERT_TRUE(arena.reserve_at(
        2, change.offset, change.bytes, change.alignment, {.persistent = change.persistent}));
    EXPECT_EQ(arena.commit().has_value(), change.accepted);
    EXPECT_EQ(arena.find(2).value(), lease.region());
  }
}

TEST(Arena, IdenticalPersistentRegionKeepsItsLeases) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  const Lease lease = arena.acquire(2).value();
  const kvspan_range_t before = lease.range();
  ASSERT_TRUE(arena.begin() && arena.keep_persistent() && arena.reserve(3, 1024, 64));
  ASSERT_TRUE(arena.commit());
  EXPECT_EQ(arena.generation(), 2u);
  EXPECT_EQ(lease.generation(), 1u);
  EXPECT_EQ(arena.lease_count(2), 1u);
  EXPECT_EQ(lease.range().offset, before.offset);
  EXPECT_EQ(arena.acquire(2)->generation(), 2u);
}

TEST(Arena, CommitWithoutAPlanIsNotBlamedOnLeases) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  const Lease lease = arena.acquire(1).value();
  EXPECT_EQ(arena.commit().error().code, Errc::invalid_argument);
}

TEST(Arena, QuiesceClosesAdmissionOnly) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  EXPECT_EQ(arena.admission(), Admission::open);
  Lease lease = arena.acquire(1).value();
  arena.quiesce();
  EXPECT_EQ(arena.admission(), Admission::draining);
  EXPECT_EQ(arena.acquire(1).error().code, Errc::busy);
  EXPECT_EQ(lease.range().bytes, 256u);
  ASSERT_TRUE(arena.begin() && arena.reserve(9, 64, 64) && arena.rollback());
  lease.release();
  EXPECT_EQ(arena.admission(), Admission::quiescent);
  ASSERT_TRUE(arena.begin() && arena.reserve(9, 64, 64) && arena.commit());
  EXPECT_EQ(arena.admission(), Admission::quiescent);
  EXPECT_EQ(arena.acquire(9).error().code, Errc::busy);
  arena.reopen();
  EXPECT_EQ(arena.admission(), Admission::open);
  EXPECT_TRUE(arena.acquire(9));
}

TEST(Arena, QuiesceWithoutLeasesIsQuiescentAtOnce) {
  FakeParent parent;
  Arena arena = parent.arena();
  arena.quiesce();
  EXPECT_EQ(arena.admission(), Admission::quiescent);
  arena.quiesce();
  EXPECT_EQ(arena.admission(), Admission::quiescent);
}

TEST(Arena, ReopenWhileDrainingAdmitsAgain) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  const Lease lease = arena.acquire(1).value();
  arena.quiesce();
  arena.reopen();
  EXPECT_TRUE(arena.acquire(1));
}

TEST(Arena, LeaseOutlivesTheArenaAndKeepsTheParent) {
  FakeParent parent;
  std::optional<Arena> arena = parent.arena();
  commit_two(*arena);
  Lease lease = arena->acquire(2).value();
  Lease other = arena->acquire(1).value();
  arena.reset();
  EXPECT_EQ(parent.releases, 0);
  EXPECT_EQ(lease.range().memory, parent.memory());
  EXPECT_EQ(lease.range().offset, 256u);
  lease.release();
  EXPECT_EQ(parent.releases, 0);
  const Lease last = std::move(other);
  EXPECT_EQ(parent.releases, 0);
  other = Lease();
  EXPECT_EQ(parent.releases, 0);
  lease = Lease();
  EXPECT_EQ(parent.releases, 0);
}

TEST(Arena, LastLeaseReleasesTheParentOfAnArenaThatIsGone) {
  FakeParent parent;
  {
    std::optional<Arena> arena = parent.arena();
    commit_two(*arena);
    const Lease lease = arena->acquire(2).value();
    arena.reset();
    EXPECT_EQ(parent.releases, 0);
  }
  EXPECT_EQ(parent.releases, 1);
}

TEST(Arena, CommitsNeverMoveALeasedRegionWhateverTheHistory) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    FakeParent parent;
    Arena arena = parent.arena();
    std::vector<Lease> leases;
    int refused = 0;
    for (int step = 0; step < 120; ++step) {
      const std::uint64_t id = random() % 6;
      if (auto lease = arena.acquire(id)) {
        leases.push_back(std::move(*lease));
      }
      while (!leases.empty() && random() % 3 != 0) {
        leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(random() % leases.size()));
      }
      ASSERT_TRUE(arena.begin());
      if (random() % 4 != 0) {
        ASSERT_TRUE(arena.keep_persistent());
      }
      const RegionOptions options{.persistent = random() % 2 == 0};
      static_cast<void>(arena.reserve(random() % 6, 1 + random() % 900, 64, options).has_value());
      if (!arena.commit()) {
        ++refused;
        ASSERT_TRUE(arena.rollback());
      }
      ASSERT_EQ(arena.lease_count(), leases.size());
      for (const Lease& lease : leases) {
        ASSERT_EQ(arena.find(lease.region().id).value(), lease.region());
      }
    }
    EXPECT_GT(refused, 0);
  }
}

TEST(Arena, EightThreadsLeaseTenThousandTimesEach) {
  FakeParent parent;
  std::optional<Arena> arena = parent.arena();
  commit_two(*arena);
  Arena& shared = *arena;
  std::atomic<int> acquired = 0;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (std::uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&shared, &acquired, thread] {
      for (std::uint64_t round = 0; round < 10000; ++round) {
        Lease lease = std::move(*shared.acquire(1 + (thread + round) % 2));
        acquired += lease.range().bytes >= 256 ? 1 : 0;
        const Lease moved = std::move(lease);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(acquired, 80000);
  EXPECT_EQ(shared.lease_count(), 0u);
  EXPECT_EQ(parent.releases, 0);
  arena.reset();
  EXPECT_EQ(parent.releases, 1);
}

TEST(Arena, PlanningBesideLeasingThreadsKeepsBothSound) {
  FakeParent parent;
  Arena arena = parent.arena();
  commit_two(arena);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      while (!stop) {
        if (auto lease = arena.acquire(2)) {
          wrong += lease->range().offset == 256 ? 0 : 1;
        }
        static_cast<void>(arena.admission());
      }
    });
  }
  for (std::uint64_t round = 0; round < 500; ++round) {
    ASSERT_TRUE(arena.begin() && arena.keep_persistent());
    ASSERT_TRUE(arena.reserve(100 + round, 64 + round, 64));
    ASSERT_TRUE(arena.commit());
    arena.quiesce();
    arena.reopen();
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(arena.generation(), 501u);
}

TEST(Arena, ParentIsReleasedByWhicheverThreadIsLast) {
  FakeParent parent;
  std::optional<Arena> arena = parent.arena();
  commit_two(*arena);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([lease = std::move(arena->acquire(2).value())]() mutable {
      EXPECT_EQ(lease.range().bytes, 512u);
      lease.release();
    });
  }
  arena.reset();
  for (std::thread& thread : threads) {
    thread.join();
  }
  threads.clear();
  EXPECT_EQ(parent.releases, 1);
}

}  // namespace
}  // namespace kvspan
