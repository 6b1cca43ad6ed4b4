// SPDX-License-Identifier: Apache-2.0
// Grants to the byte, pieces that never touch each other or what lies beside the region, and what
// keeps a region in its place.
#include "kvspan/core/memory/workspace.hpp"

#include "kvspan/core/memory/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

constexpr std::uint64_t kParentBytes = 8192;

// Region 1 of 1,000 bytes at 128, between regions 2 and 3.
class WorkspaceTest : public ::testing::Test {
 protected:
  WorkspaceTest() : bytes_(kParentBytes), arena_(make()) {}

  Arena make() {
    auto made = Arena::create({reinterpret_cast<kvspan_memory_t*>(bytes_.data()), kParentBytes},
                              64,
                              [](kvspan_memory_t*) {});
    EXPECT_TRUE(made->begin() && made->reserve_at(2, 0, 128, 64) &&
                made->reserve_at(1, 128, 1000, 64, {true}) && made->reserve_at(3, 1152, 64, 64) &&
                made->commit());
    return std::move(*made);
  }

  Lease lease(std::uint64_t id = 1) { return std::move(arena_.acquire(id).value()); }

  Workspace attached() {
    Workspace workspace;
    Lease grant = lease();
    EXPECT_TRUE(workspace.attach(grant, 1000, Grant::exact).has_value());
    EXPECT_FALSE(grant);
    return workspace;
  }

  std::vector<std::byte> bytes_;
  Arena arena_;
};

TEST_F(WorkspaceTest, AnExactGrantIsExact) {
  Workspace workspace;
  Lease grant = lease();
  EXPECT_EQ(workspace.attach(grant, 999, Grant::exact).error().code, Errc::invalid_argument);
  EXPECT_TRUE(grant) << "the caller keeps it";
  ASSERT_TRUE(workspace.attach(grant, 1000, Grant::exact).has_value());
  EXPECT_EQ(workspace.capacity_bytes(), 1000U);
}

TEST_F(WorkspaceTest, ALargerGrantIsTakenWhereItIsAllowed) {
  Workspace workspace;
  Lease grant = lease();
  EXPECT_TRUE(workspace.attach(grant, 10, Grant::at_least).has_value());
  EXPECT_EQ(workspace.capacity_bytes(), 1000U);
}

TEST_F(WorkspaceTest, OneByteShortIsRefusedToTheByte) {
  for (const Grant size : {Grant::exact, Grant::at_least}) {
    Workspace workspace;
    Lease grant = lease();
    const auto attached = workspace.attach(grant, 1001, size);
    ASSERT_FALSE(attached.has_value());
    EXPECT_EQ(attached.error().code, Errc::workspace);
    EXPECT_EQ(attached.error().required, 1001U);
    EXPECT_EQ(attached.error().missing, 1U);
    EXPECT_TRUE(grant);
  }
}

TEST_F(WorkspaceTest, WhatIsNoGrantIsRefused) {
  Workspace workspace;
  Lease nothing;
  EXPECT_EQ(workspace.attach(nothing, 0, Grant::at_least).error().code, Errc::invalid_argument);
  EXPECT_EQ(workspace.take({8, 1}).error().code, Errc::invalid_argument);
  EXPECT_FALSE(workspace.detach());
  workspace = attached();
  EXPECT_EQ(workspace.take({0, 1}).error().code, Errc::invalid_argument);
  EXPECT_EQ(workspace.take({8, 0}).error().code, Errc::invalid_argument);
  EXPECT_EQ(workspace.take({8, 12}).error().code, Errc::invalid_argument);
  EXPECT_EQ(workspace.used_bytes(), 0U);
}

TEST_F(WorkspaceTest, SizesPastCountingAreRefused) {
  Workspace workspace = attached();
  EXPECT_EQ(workspace.take({UINT64_MAX, 1}).error().code, Errc::too_large);
  EXPECT_EQ(workspace.take({1, std::uint64_t{1} << 63}).error().code, Errc::workspace);
  const WorkspacePiece most[] = {{UINT64_MAX, 1}, {1, 1}};
  EXPECT_EQ(workspace_bytes(most).error().code, Errc::too_large);
  EXPECT_EQ(workspace_bytes({}).value(), 0U);
}

// What is out is somebody's: another grant comes only before the first piece or after a reset.
TEST_F(WorkspaceTest, GrantsChangeOnlyWhileNothingIsOut) {
  Workspace workspace;
  Lease first = lease(3);
  ASSERT_TRUE(workspace.attach(first, 64, Grant::exact).has_value());
  Lease larger = lease();
  ASSERT_TRUE(workspace.attach(larger, 1000, Grant::exact).has_value()) << "before the first piece";
  EXPECT_EQ(arena_.lease_count(3), 0U);
  ASSERT_TRUE(workspace.take({8, 1}).has_value());
  Lease other = lease(3);
  EXPECT_EQ(workspace.attach(other, 64, Grant::exact).error().code, Errc::busy);
  EXPECT_TRUE(other);
  workspace.reset();
  EXPECT_TRUE(workspace.attach(other, 64, Grant::exact).has_value());
  const Lease back = workspace.detach();
  EXPECT_EQ(back.region().id, 3U);
  EXPECT_EQ(workspace.capacity_bytes(), 0U);
  EXPECT_EQ(workspace.take({8, 1}).error().code, Errc::invalid_argument);
  workspace = attached();
  ASSERT_TRUE(workspace.take({8, 1}).has_value());
  (void)workspace.detach();
  EXPECT_EQ(workspace.used_bytes(), 0U);
  workspace = attached();
  EXPECT_EQ(workspace.take({1000, 1})->offset, 128U);
}

TEST_F(WorkspaceTest, WhileItIsAttachedItsRegionStays) {
  Workspace workspace = attached();
  const Workspace moved = std::move(workspace);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): it holds nothing now
  EXPECT_EQ(workspace.capacity_bytes(), 0U);
  ASSERT_TRUE(arena_.begin() && arena_.reserve_at(1, 128, 2000, 64, {true}));
  EXPECT_EQ(arena_.commit().error().code, Errc::busy);
}

TEST_F(WorkspaceTest, NoPieceFitsTwice) {
  Workspace workspace = attached();
  const auto first = workspace.take({600, 64});
  const auto second = workspace.take({401, 1});
  ASSERT_TRUE(first.has_value());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().required, 1001U);
  EXPECT_EQ(second.error().missing, 1U);
  EXPECT_TRUE(workspace.take({400, 1}).has_value());
  EXPECT_EQ(workspace.used_bytes(), 1000U);
}

// Bytes outside the region and of other pieces keep their value; and what was planned fits exactly.
TEST_F(WorkspaceTest, PiecesTouchNobody) {
  constexpr std::uint64_t kSeed = 20261203;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    std::vector<WorkspacePiece> pieces;
    for (std::uint64_t count = 1 + random() % 6; count != 0; --count) {
      pieces.push_back({1 + random() % 120, std::uint64_t{1} << (random() % 7)});
    }
    const std::uint64_t planned = workspace_bytes(pieces, 128).value();
    ASSERT_LE(planned, 1000U);
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0xEE});
    Workspace workspace;
    Lease grant = lease();
    ASSERT_TRUE(workspace.attach(grant, planned, Grant::at_least).has_value());
    std::vector<kvspan_range_t> ranges;
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      ranges.push_back(workspace.take(pieces[piece]).value());
      ASSERT_EQ(ranges.back().offset % pieces[piece].alignment, 0U);
      ASSERT_EQ(ranges.back().bytes, pieces[piece].bytes);
      const auto from = bytes_.begin() + static_cast<std::ptrdiff_t>(ranges.back().offset);
      std::fill_n(from, ranges.back().bytes, static_cast<std::byte>(piece));
    }
    ASSERT_EQ(workspace.used_bytes(), planned);
    std::uint64_t written = 0;
    for (std::size_t at = 0; at < bytes_.size(); ++at) {
      const bool inside = at >= 128 && at < 128 + planned;
      ASSERT_TRUE(inside || bytes_[at] == std::byte{0xEE}) << at;
      written += bytes_[at] != std::byte{0xEE} ? 1U : 0U;
    }
    std::uint64_t asked = 0;
    for (std::size_t piece = 0; piece < ranges.size(); ++piece) {
      asked += ranges[piece].bytes;
      ASSERT_EQ(bytes_[ranges[piece].offset], static_cast<std::byte>(piece));
    }
    ASSERT_EQ(written, asked) << "two pieces share a byte";
  }
}

}  // namespace
}  // namespace kvspan
