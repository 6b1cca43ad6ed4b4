// SPDX-License-Identifier: Apache-2.0
// The seeded scheduler: what it may reorder it does reorder, what it may not it never does, and a
// seed always gives the same order. Also that missing wait points are found by some seed.
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace kvspan::stub_test {
namespace {

constexpr std::uint64_t kSeeds = 200;
constexpr std::uint32_t kWorks = 4;

Options shuffled(std::uint64_t seed) {
  return {{"queues", "shuffled"}, {"seed", std::to_string(seed)}};
}

/// Four works without wait points, two of them on one queue. Each writes its number along its row
/// and column of a matrix, so that where two meet the later one is left: that is their whole order.
std::vector<std::uint32_t> order_of(const Options& options) {
  Rig rig(options);
  const sdk::Memory source = rig.memory(KVSPAN_MEMORY_HOST, kWorks);
  const sdk::Memory matrix = rig.memory(KVSPAN_MEMORY_HOST, kWorks * kWorks);
  for (std::uint8_t i = 0; i < kWorks; ++i) {
    rig.bytes(source)[i] = i;
  }
  const std::array<sdk::Queue, 3> queues = {rig.queue(KVSPAN_ROLE_COMPUTE),
                                            rig.queue(KVSPAN_ROLE_UPLOAD),
                                            rig.queue(KVSPAN_ROLE_DOWNLOAD)};
  std::vector<sdk::Fence> fences;
  std::vector<kvspan_point_t> points;
  for (std::uint32_t work = 0; work < kWorks; ++work) {
    fences.push_back(rig.fence());
    points.push_back({fences.back().get(), 1});
    std::vector<kvspan_segment_t> segments;
    for (std::uint32_t other = 0; other < kWorks; ++other) {
      segments.push_back(segment(source, work, matrix, work * kWorks + other, 1));
      if (other != work) {
        segments.push_back(segment(source, work, matrix, other * kWorks + work, 1));
      }
    }
    EXPECT_EQ(rig.copy(queues[work % 3], segments, {{}, {points.back()}, work}), KVSPAN_OK)
        << rig.error.message;
  }
  EXPECT_EQ(rig.wait(points), KVSPAN_OK) << rig.error.message;
  std::vector<std::uint32_t> order(kWorks);
  const std::uint8_t* const met = rig.bytes(matrix);
  for (std::uint32_t work = 0; work < kWorks; ++work) {
    std::uint32_t before = 0;
    for (std::uint32_t other = 0; other < kWorks; ++other) {
      before += other != work && met[work * kWorks + other] == work ? 1 : 0;
    }
    order.at(before) = work;
  }
  return order;
}

TEST(Scheduler, OneQueueRunsInSubmitOrder) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Options options = {{"seed", std::to_string(seed)}, {"delay_max_ticks", "50"}};
    ASSERT_EQ(order_of(options), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  }
}

TEST(Scheduler, ShuffledQueuesShowEveryLegalOrderAndNoOther) {
  std::set<std::vector<std::uint32_t>> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<std::uint32_t> order = order_of(shuffled(seed));
    const auto first = std::find(order.begin(), order.end(), 0u);
    const auto second = std::find(order.begin(), order.end(), 3u);
    ASSERT_LT(first, second) << "works 0 and 3 share a queue";
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 12u) << "4! orders, of which half keep 0 before 3";
}

TEST(Scheduler, WithoutDelaysShuffledQueuesStillShuffle) {
  std::set<std::vector<std::uint32_t>> seen;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Options options = shuffled(seed);
    options["delay_max_ticks"] = "0";
    seen.insert(order_of(options));
  }
  EXPECT_GE(seen.size(), 2u);
}

TEST(Scheduler, ASeedRepeatsItself) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EXPECT_EQ(order_of(shuffled(seed)), order_of(shuffled(seed)));
  }
}

/// What a pipeline waits for.
enum class Care { all, forgets_producer, forgets_reader };

/// host -> a, a -> b, b -> host over three queues, twice through the same slots: the second round
/// overwrites a and b behind the readers of the first. True: both rounds came out right.
bool pipeline(std::uint64_t seed, Care care) {
  constexpr std::uint64_t kBytes = 256;
  Rig rig(shuffled(seed));
  const sdk::Memory in = rig.memory(KVSPAN_MEMORY_HOST, 2 * kBytes);
  const sdk::Memory out = rig.memory(KVSPAN_MEMORY_HOST, 2 * kBytes);
  const sdk::Memory a = rig.memory(KVSPAN_MEMORY_DEVICE, kBytes);
  const sdk::Memory b = rig.memory(KVSPAN_MEMORY_DEVICE, kBytes);
  for (std::uint64_t i = 0; i < 2 * kBytes; ++i) {
    rig.bytes(in)[i] = static_cast<std::uint8_t>(i * 7 + i / kBytes);
  }
  const sdk::Queue up = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Queue compute = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Queue down = rig.queue(KVSPAN_ROLE_DOWNLOAD);
  const sdk::Fence uploaded = rig.fence();
  const sdk::Fence moved = rig.fence();
  const sdk::Fence downloaded = rig.fence();
  for (std::uint64_t round = 0; round < 2; ++round) {
    const kvspan_point_t up_done{uploaded.get(), round + 1};
    const kvspan_point_t move_done{moved.get(), round + 1};
    const kvspan_point_t down_done{downloaded.get(), round + 1};
    Points upload{{}, {up_done}};
    Points move{{}, {move_done}};
    if (care != Care::forgets_producer) {
      move.waits.push_back(up_done);
    }
    if (round != 0 && care != Care::forgets_reader) {
      upload.waits.push_back({moved.get(), round});
      move.waits.push_back({downloaded.get(), round});
    }
    EXPECT_EQ(rig.copy(up, {segment(in, round * kBytes, a, 0, kBytes)}, upload), KVSPAN_OK);
    EXPECT_EQ(rig.copy(compute, {segment(a, 0, b, 0, kBytes)}, move), KVSPAN_OK);
    EXPECT_EQ(
        rig.copy(down, {segment(b, 0, out, round * kBytes, kBytes)}, {{move_done}, {down_done}}),
        KVSPAN_OK);
  }
  EXPECT_EQ(rig.wait({{downloaded.get(), 2}, {uploaded.get(), 2}, {moved.get(), 2}}), KVSPAN_OK);
  return std::memcmp(rig.bytes(in), rig.bytes(out), 2 * kBytes) == 0;
}

TEST(Scheduler, APipelineThatWaitsIsRightForEverySeed) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    ASSERT_TRUE(pipeline(seed, Care::all)) << "seed " << seed;
  }
}

TEST(Scheduler, AForgottenWaitIsFoundByManySeeds) {
  std::uint64_t producer = 0;
  std::uint64_t reader = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    producer += pipeline(seed, Care::forgets_producer) ? 0u : 1u;
    reader += pipeline(seed, Care::forgets_reader) ? 0u : 1u;
  }
  EXPECT_GT(producer, kSeeds / 4);
  EXPECT_GT(reader, kSeeds / 4);
}

TEST(Scheduler, MeasuredCopiesReportBytesAndTicksOnce) {
  Rig rig({});
  const sdk::Memory memory = rig.memory(KVSPAN_MEMORY_HOST, 8192);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Fence fence = rig.fence();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const std::uint32_t flags = i == 2 ? 0 : KVSPAN_SUBMIT_MEASURE;
    ASSERT_EQ(rig.copy(queue,
                       {segment(memory, 0, memory, 4096, 1600)},
                       {{}, {{fence.get(), i}}, 70 + i, flags}),
              KVSPAN_OK);
  }
  ASSERT_EQ(rig.wait({{fence.get(), 3}}), KVSPAN_OK);
  std::array<kvspan_measurement_t, 4> got{};
  std::uint32_t count = 99;
  const kvspan_copy_table_t& table = *rig.plugin().copy();
  ASSERT_EQ(table.feedback(queue.get(), got.data(), 1, &count, &rig.error), KVSPAN_OK);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(got[0].submit_id, 71u);
  EXPECT_EQ(got[0].bytes, 1600u);
  EXPECT_EQ(got[0].duration_ns, 101u) << "one tick and 16 bytes a tick, no delay";
  ASSERT_EQ(table.feedback(queue.get(), got.data(), 4, &count, &rig.error), KVSPAN_OK);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(got[0].submit_id, 73u);
}

TEST(Scheduler, FeedbackBeyondItsBufferIsDroppedAndWorkIsNot) {
  Rig rig({});
  const sdk::Memory memory = rig.memory(KVSPAN_MEMORY_HOST, 2);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Fence fence = rig.fence();
  for (std::uint64_t i = 1; i <= 300; ++i) {
    ASSERT_EQ(rig.copy(queue,
                       {segment(memory, 0, memory, 1, 1)},
                       {{}, {{fence.get(), i}}, i, KVSPAN_SUBMIT_MEASURE}),
              KVSPAN_OK);
    ASSERT_EQ(rig.wait({{fence.get(), i}}), KVSPAN_OK);
  }
  std::vector<kvspan_measurement_t> got(400);
  std::uint32_t count = 0;
  ASSERT_EQ(rig.plugin().copy()->feedback(queue.get(), got.data(), 400, &count, &rig.error),
            KVSPAN_OK);
  EXPECT_EQ(count, 256u);
  EXPECT_EQ(got[255].submit_id, 256u);
}

TEST(Scheduler, ACancelledSubmitWritesNothingAndTheQueueGoesOn) {
  Rig rig({});
  const sdk::Memory word = rig.memory(KVSPAN_MEMORY_HOST, 4);
  const sdk::Memory target = rig.memory(KVSPAN_MEMORY_HOST, 2);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence first = rig.fence();
  const sdk::Fence second = rig.fence();
  std::memset(rig.bytes(word), 0, 4);
  std::memset(rig.bytes(target), 9, 2);
  ASSERT_EQ(rig.fill(queue, {target.get(), 0, 1}, 1, {{}, {{first.get(), 1}}, 5, 0, word.get()}),
            KVSPAN_OK);
  ASSERT_EQ(rig.fill(queue, {target.get(), 1, 1}, 2, {{}, {{second.get(), 1}}}), KVSPAN_OK);
  rig.bytes(word)[0] = 1;
  EXPECT_EQ(rig.wait({{first.get(), 1}}), KVSPAN_E_CANCELLED);
  EXPECT_EQ(rig.error.submit_id, 5u);
  EXPECT_EQ(rig.wait({{second.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.bytes(target)[0], 9);
  EXPECT_EQ(rig.bytes(target)[1], 2);
}

}  // namespace
}  // namespace kvspan::stub_test
