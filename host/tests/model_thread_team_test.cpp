// SPDX-License-Identifier: Apache-2.0
// The thread team: everyone runs once per call, and what they wrote is seen after it. Under the
// thread sanitizer this also proves that the team's own bookkeeping has no race.
// Read next: model/thread_team.hpp.
#include "model/thread_team.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::model {

namespace {

TEST(ThreadTeam, RunsEveryMemberOncePerCall) {
  for (const std::size_t members : {1u, 2u, 3u, 8u}) {
    auto team = ThreadTeam::create(members);
    ASSERT_TRUE(team) << team.error().message;
    EXPECT_EQ(team->members(), members);
    std::vector<std::size_t> calls(members, 0);  // plain memory: the team must order it
    for (std::size_t round = 1; round <= 500; ++round) {
      team->run([&](std::size_t member) { calls[member] += 1; });
      for (const std::size_t count : calls) {
        ASSERT_EQ(count, round);
      }
    }
  }
}

TEST(ThreadTeam, GivesMemberZeroToTheCaller) {
  auto team = ThreadTeam::create(3).value();
  std::vector<std::thread::id> ids(3);
  team.run([&](std::size_t member) { ids[member] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[2], ids[1]);
}

TEST(ThreadTeam, WorksAfterAMove) {
  auto first = ThreadTeam::create(2).value();
  ThreadTeam second = std::move(first);
  std::size_t sum = 0;
  std::vector<std::size_t> seen(2, 0);
  second.run([&](std::size_t member) { seen[member] = member + 1; });
  for (const std::size_t value : seen) {
    sum += value;
  }
  EXPECT_EQ(sum, 3u);
  second = ThreadTeam::create(4).value();
  EXPECT_EQ(second.members(), 4u);
}

TEST(ThreadTeam, RefusesSizesOutOfRange) {
  EXPECT_EQ(ThreadTeam::create(0).error().code, Errc::invalid_argument);
  EXPECT_EQ(ThreadTeam::create(ThreadTeam::kMaxMembers + 1).error().code, Errc::invalid_argument);
}

TEST(MemberShare, CoversAllItemsInOrder) {
  for (std::size_t members = 1; members <= 7; ++members) {
    for (std::size_t items = 0; items <= 40; ++items) {
      std::size_t next = 0;
      for (std::size_t member = 0; member < members; ++member) {
        const ItemRange mine = member_share(items, member, members);
        ASSERT_EQ(mine.begin, next);
        ASSERT_LE(mine.end - mine.begin, items / members + 1);
        next = mine.end;
      }
      ASSERT_EQ(next, items);
    }
  }
}

}  // namespace

}  // namespace kvspan::model
