// SPDX-License-Identifier: Apache-2.0
// Copies and fills move exactly the named bytes between every two kinds of memory, for random
// segments, pitches and alignments, and what is wrong is refused before a byte moves.
// Not here: their order (fence_test.cpp).
#include "worker/case.hpp"

#include <algorithm>
#include <cstring>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(copy);

constexpr uint64_t kBytes = uint64_t{1} << 16;

class CopyTest : public PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    limits_.struct_size = sizeof limits_;
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = rig().tables().copy->limits(rig().device(), &limits_, &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
    for (const uint32_t kind :
         {KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST, KVSPAN_MEMORY_IMPORTED, KVSPAN_MEMORY_DEVICE}) {
      if (rig().offers(kind)) {
        buffers_.push_back(rig().allocate(kind, kBytes));
        ASSERT_NE(buffers_.back(), nullptr);
        rig().upload(*buffers_.back());
      }
    }
  }

  /// A segment inside its buffers, aligned to the limits; target rows in [from, to) of the target.
  kvspan_segment_t random_segment(
      const Buffer& source, const Buffer& target, uint64_t from, uint64_t to, Dice& dice) const;

  /// The same on the images.
  static void apply(const kvspan_segment_t& segment, const Buffer& source, Buffer& target) {
    for (uint64_t row = 0; row < segment.rows; ++row) {
      std::memcpy(target.image.data() + segment.target_offset + row * segment.target_pitch,
                  source.image.data() + segment.source_offset + row * segment.source_pitch,
                  segment.bytes);
    }
  }

  kvspan_result_t copy(uint32_t role,
                       const std::vector<kvspan_segment_t>& segments,
                       kvspan_error_t* error) {
    return rig().settle(
        role,
        [&](auto* queue, const auto* submit, auto* out) {
          const auto count = static_cast<uint32_t>(segments.size());
          return rig().calls().copy(queue, segments.data(), count, submit, out);
        },
        error);
  }

  void expect_images() {
    for (const Buffer* buffer : buffers_) {
      ASSERT_TRUE(rig().unchanged(*buffer)) << "memory of kind " << buffer->kind;
    }
  }

  kvspan_copy_limits_t limits_ = {};
  std::vector<Buffer*> buffers_;
};

uint64_t multiple(Dice& dice, uint64_t most, uint64_t unit) {
  return dice.below(most / unit + 1) * unit;
}

kvspan_segment_t CopyTest::random_segment(
    const Buffer& source, const Buffer& target, uint64_t from, uint64_t to, Dice& dice) const {
  kvspan_segment_t segment = {};
  segment.source = source.memory;
  segment.target = target.memory;
  segment.rows = dice.hit(3) ? 1 : dice.between(1, 9);
  const uint64_t unit = std::max(limits_.bytes_alignment, limits_.pitch_alignment);
  const uint64_t width = (to - from) / 2 / segment.rows / unit * unit;
  segment.bytes = multiple(dice, width, limits_.bytes_alignment);
  const uint64_t room = width * 2 / unit * unit;  // from row to row, at most
  const auto pitch = [&] {
    const uint64_t least = (segment.bytes + unit - 1) / unit * unit;
    return least + multiple(dice, room - least, limits_.pitch_alignment);
  };
  segment.source_pitch = pitch();
  segment.target_pitch = pitch();
  const auto behind = [&](uint64_t p) { return (segment.rows - 1) * p + segment.bytes; };
  segment.source_offset =
      multiple(dice, source.bytes() - behind(segment.source_pitch), limits_.source_alignment);
  const uint64_t first =
      (from + limits_.target_alignment - 1) / limits_.target_alignment * limits_.target_alignment;
  segment.target_offset =
      first + multiple(dice, to - first - behind(segment.target_pitch), limits_.target_alignment);
  return segment;
}

KVSPAN_CASE(CopyTest, RandomSegmentsMoveExactlyTheirBytes, "KV-COPY-1 KV-COPY-5") {
  for (uint64_t seed = 1; seed <= cases(settings(), 150, 20) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), seed);
    Buffer* source = buffers_[dice.below(buffers_.size())];
    Buffer* target = source;
    while (target == source) {
      target = buffers_[dice.below(buffers_.size())];
    }
    const uint64_t count = dice.between(1, 6);
    const uint64_t part = kBytes / count / 256 * 256;
    std::vector<kvspan_segment_t> segments;
    for (uint64_t i = 0; i < count; ++i) {
      segments.push_back(random_segment(*source, *target, i * part, (i + 1) * part, dice));
      apply(segments.back(), *source, *target);
    }
    dice.shuffle(segments);
    kvspan_error_t error = fresh_error();
    const auto role = static_cast<uint32_t>(dice.below(3));
    const kvspan_result_t result = copy(role, segments, &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
    if (seed % 4 == 0) {
      expect_images();
    } else {
      ASSERT_TRUE(rig().unchanged(*target));
    }
  }
}

KVSPAN_CASE(CopyTest, PartsOfOneMemoryMoveInsideIt, "KV-COPY-1") {
  for (uint64_t seed = 1; seed <= cases(settings(), 20, 4) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), seed);
    Buffer* buffer = buffers_[dice.below(buffers_.size())];
    Buffer half = *buffer;  // sources from the first half only
    half.image.resize(kBytes / 2);
    const kvspan_segment_t segment = random_segment(half, *buffer, kBytes / 2, kBytes, dice);
    apply(segment, half, *buffer);
    ASSERT_EQ(copy(KVSPAN_ROLE_COMPUTE, {segment}, nullptr), KVSPAN_OK);
    ASSERT_TRUE(rig().unchanged(*buffer));
  }
}

KVSPAN_CASE(CopyTest, NoSegmentsAndNoBytesAreAcceptedAndSignal, "KV-COPY-2") {
  kvspan_segment_t nothing = {};
  nothing.source = buffers_[0]->memory;
  nothing.target = buffers_[1]->memory;
  nothing.rows = 1;
  EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {}, nullptr), KVSPAN_OK);
  EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {nothing}, nullptr), KVSPAN_OK);
  nothing.source_offset = nothing.target_offset = buffers_[0]->bytes();
  EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {nothing}, nullptr), KVSPAN_OK) << "nothing, at the end";
  expect_images();
}

KVSPAN_CASE(CopyTest, WrongSegmentsAreRefusedByFieldAndMoveNothing, "KV-COPY-7 KV-ERROR-2") {
  const uint64_t end = buffers_[0]->bytes();
  const kvspan_segment_t good = {
      buffers_[0]->memory, buffers_[1]->memory, 0, 0, 1024, 4, 2048, 2048};

  struct Wrong {
    const char* what;
    kvspan_segment_t segment;
  };

  std::vector<Wrong> wrongs;
  const auto wrong = [&](const char* what, auto change) {
    wrongs.push_back({what, good});
    change(wrongs.back().segment);
  };
  wrong("source past its end", [&](auto& s) { s.source_offset = end - 4096; });
  wrong("target past its end", [&](auto& s) { s.target_offset = end - 4096; });
  wrong("source offset overflows", [](auto& s) { s.source_offset = UINT64_MAX - 255; });
  wrong("target offset overflows", [](auto& s) { s.target_offset = UINT64_MAX - 255; });
  wrong("bytes overflow", [](auto& s) { s.bytes = UINT64_MAX - 255; });
  wrong("rows times pitch overflow", [](auto& s) {
    s.rows = uint64_t{1} << 40;
    s.source_pitch = s.target_pitch = uint64_t{1} << 32;
  });
  wrong("source pitch times rows wraps to little", [](auto& s) {
    s.rows = (uint64_t{1} << 32) + 1;
    s.source_pitch = uint64_t{1} << 32;
  });
  wrong("source is NULL", [](auto& s) { s.source = nullptr; });
  wrong("target is NULL", [](auto& s) { s.target = nullptr; });
  wrong("target is the source", [](auto& s) { s.target = s.source; });
  wrong("target overlaps the source", [](auto& s) {
    s.target = s.source;
    s.rows = 1;
    s.target_offset = 512;
  });
  wrong("target rows overlap each other", [](auto& s) { s.target_pitch = 512; });
  for (const Wrong& one : wrongs) {
    SCOPED_TRACE(one.what);
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {good, one.segment}, &error), KVSPAN_E_INVALID_ARG);
    EXPECT_EQ(error.code, KVSPAN_E_INVALID_ARG);
    EXPECT_EQ(error.argument, 2u);
    EXPECT_NE(error.message[0], '\0');
    EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {one.segment}, nullptr), KVSPAN_E_INVALID_ARG);
  }
  expect_images();
}

KVSPAN_CASE(CopyTest, LimitsHoldAndMoreIsRefused, "KV-COPY-5 KV-COPY-7") {
  for (const uint64_t alignment : {limits_.source_alignment,
                                   limits_.target_alignment,
                                   limits_.bytes_alignment,
                                   limits_.pitch_alignment,
                                   limits_.fill_alignment}) {
    EXPECT_NE(alignment, 0u);
    EXPECT_LE(alignment, 256u);
    EXPECT_EQ(alignment & (alignment - 1), 0u);
  }
  ASSERT_GE(limits_.segments_max, 1u);
  const kvspan_segment_t nothing = {buffers_[0]->memory, buffers_[1]->memory, 0, 0, 0, 1, 0, 0};
  if (limits_.segments_max < 1u << 20) {
    std::vector<kvspan_segment_t> many(limits_.segments_max, nothing);
    EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, many, nullptr), KVSPAN_OK);
    many.push_back(nothing);
    EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, many, nullptr), KVSPAN_E_INVALID_ARG);
  }
  if (limits_.source_alignment > 1) {
    kvspan_segment_t odd = nothing;
    odd.bytes = limits_.bytes_alignment;
    odd.source_offset = 1;
    EXPECT_EQ(copy(KVSPAN_ROLE_UPLOAD, {odd}, nullptr), KVSPAN_E_INVALID_ARG);
  }
}

KVSPAN_CASE(CopyTest, FillWritesItsPatternAndNothingElse, "KV-COPY-4") {
  for (uint64_t seed = 1; seed <= cases(settings(), 60, 10) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), seed);
    Buffer* buffer = buffers_[dice.below(buffers_.size())];
    const auto width = dice.pick<uint32_t>({1, 2, 4, 8});
    const uint64_t pattern = dice.next();
    const uint64_t unit = std::max<uint64_t>(limits_.fill_alignment, width);
    const uint64_t bytes = multiple(dice, kBytes / 4, unit);
    const kvspan_range_t range = {
        buffer->memory, multiple(dice, kBytes - bytes, limits_.fill_alignment), bytes};
    for (uint64_t i = 0; i < bytes; ++i) {
      buffer->image[range.offset + i] = static_cast<uint8_t>(pattern >> (8 * (i % width)));
    }
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = rig().settle(
        static_cast<uint32_t>(dice.below(3)),
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().fill(queue, &range, pattern, width, submit, out);
        },
        &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
    ASSERT_TRUE(rig().unchanged(*buffer));
  }
}

KVSPAN_CASE(CopyTest, WrongFillsAreRefusedAndWriteNothing, "KV-COPY-7") {
  const kvspan_range_t good = {buffers_[0]->memory, 0, 4096};
  const auto fill = [&](const kvspan_range_t& range, uint32_t width) {
    return rig().settle(KVSPAN_ROLE_COMPUTE, [&](auto* queue, const auto* submit, auto* out) {
      return rig().calls().fill(queue, &range, 0, width, submit, out);
    });
  };
  for (const uint32_t width : {0u, 3u, 5u, 16u}) {
    EXPECT_EQ(fill(good, width), KVSPAN_E_INVALID_ARG) << "pattern of " << width << " bytes";
  }
  EXPECT_EQ(fill({good.memory, 0, 4097}, 2), KVSPAN_E_INVALID_ARG) << "half a pattern";
  EXPECT_EQ(fill({good.memory, buffers_[0]->bytes() - 2048, 4096}, 4), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fill({good.memory, UINT64_MAX - 255, 4096}, 4), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fill({nullptr, 0, 4096}, 4), KVSPAN_E_INVALID_ARG);
  expect_images();
}

// Pages of 425,984 bytes around the offsets where 31 and 32 bits end, and two that are one in 32
// bits. All are written, each with its own bytes, before the first is read.
KVSPAN_CASE(CopyTest, OffsetsBeyondFourGibibytesReachTheirPages, "KV-COPY-1", needs::far_memory) {
  constexpr uint64_t kPageBytes = 425984;
  constexpr uint64_t kPages = 10100;
  constexpr uint64_t kFar = uint64_t{1} << 32;
  kvspan_memory_t* memory = nullptr;
  kvspan_error_t error = fresh_error();
  const kvspan_result_t made = rig().tables().memory->alloc(
      rig().device(), KVSPAN_MEMORY_DEVICE, kPages * kPageBytes, &memory, &error);
  ASSERT_EQ(made, KVSPAN_OK) << told(made, error);
  Buffer* host = rig().allocate(KVSPAN_MEMORY_HOST, uint64_t{1} << 16);
  const uint64_t offsets[] = {0,
                              5041 * kPageBytes,
                              5042 * kPageBytes,
                              10082 * kPageBytes,
                              10083 * kPageBytes,
                              (kPages - 1) * kPageBytes,
                              kFar,
                              8192,
                              kFar + 8192};
  Buffer* back = rig().allocate(KVSPAN_MEMORY_HOST, uint64_t{1} << 16);
  rig().upload(*host);
  rig().upload(*back);
  uint64_t at = 0;
  for (const uint64_t offset : offsets) {
    const kvspan_segment_t down = {host->memory, memory, at, offset, 4096, 1, 0, 0};
    ASSERT_EQ(copy(KVSPAN_ROLE_UPLOAD, {down}, nullptr), KVSPAN_OK) << "offset " << offset;
    at += 4096;
  }
  at = 0;
  for (const uint64_t offset : offsets) {
    const kvspan_segment_t up = {memory, back->memory, offset, at, 4096, 1, 0, 0};
    std::copy_n(host->image.begin() + static_cast<std::ptrdiff_t>(at),
                4096,
                back->image.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_EQ(copy(KVSPAN_ROLE_DOWNLOAD, {up}, nullptr), KVSPAN_OK) << "offset " << offset;
    at += 4096;
  }
  EXPECT_TRUE(rig().unchanged(*back));
  EXPECT_EQ(rig().calls().release(memory, nullptr), KVSPAN_OK);
}

KVSPAN_CASE(CopyTest, MeasuredCopiesAreReportedOnce, "KV-COPY-6") {
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  const kvspan_segment_t segment = {buffers_[0]->memory, buffers_[1]->memory, 0, 0, 4096, 1, 0, 0};
  kvspan_measurement_t found[8] = {};
  uint32_t count = 0;
  ASSERT_EQ(rig().tables().copy->feedback(lane.queue, found, 8, &count, nullptr), KVSPAN_OK);
  for (uint64_t id = 900; id < 903; ++id) {
    Submit submit;
    submit.signal(lane.next());
    submit.fields.submit_id = id;
    submit.fields.flags = id == 901 ? 0u : KVSPAN_SUBMIT_MEASURE;
    ASSERT_EQ(rig().calls().copy(lane.queue, &segment, 1, submit.raw(), nullptr), KVSPAN_OK);
  }
  ASSERT_EQ(rig().wait(lane.last()), KVSPAN_OK);
  ASSERT_EQ(rig().tables().copy->feedback(lane.queue, found, 8, &count, nullptr), KVSPAN_OK);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(found[0].submit_id, 900u);
  EXPECT_EQ(found[1].submit_id, 902u);
  EXPECT_EQ(found[0].bytes, 4096u);
  ASSERT_EQ(rig().tables().copy->feedback(lane.queue, found, 8, &count, nullptr), KVSPAN_OK);
  EXPECT_EQ(count, 0u);
}

// How long a copy took depends on how much it copied, and no path between host and device memory
// moves two terabytes a second.
KVSPAN_CASE(CopyTest, MeasuredTimesAreThoseOfTheCopies, "KV-COPY-6", cost_ms(100)) {
  constexpr uint64_t kLarge = uint64_t{16} << 20;
  constexpr uint64_t kBytesANanosecondMax = 2000;
  if (limits_.bytes_max < kLarge || rig().info().allocation_bytes_max < kLarge) {
    return inconclusive("the device copies less than 16 MiB a submit");
  }
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  const Tables& t = rig().tables();
  kvspan_memory_t* source = nullptr;
  kvspan_memory_t* target = nullptr;
  ASSERT_EQ(t.memory->alloc(rig().device(), KVSPAN_MEMORY_HOST, kLarge, &source, nullptr),
            KVSPAN_OK);
  ASSERT_EQ(t.memory->alloc(rig().device(), KVSPAN_MEMORY_DEVICE, kLarge, &target, nullptr),
            KVSPAN_OK);
  uint64_t small_ns = UINT64_MAX;  // the fastest of each
  uint64_t large_ns = UINT64_MAX;
  for (uint64_t round = 0; round < 2 * uint64_t{cases(settings(), 5, 3)}; ++round) {
    const bool small = round % 2 == 0;
    const kvspan_segment_t segment = {source, target, 0, 0, small ? 4096 : kLarge, 1, 0, 0};
    Submit submit;
    submit.signal(lane.next());
    submit.fields.flags = KVSPAN_SUBMIT_MEASURE;
    ASSERT_EQ(rig().calls().copy(lane.queue, &segment, 1, submit.raw(), nullptr), KVSPAN_OK);
    ASSERT_EQ(rig().wait(lane.last()), KVSPAN_OK);
    kvspan_measurement_t found = {};
    uint32_t count = 0;
    ASSERT_EQ(t.copy->feedback(lane.queue, &found, 1, &count, nullptr), KVSPAN_OK);
    ASSERT_EQ(count, 1u) << "the buffer of measurements was empty";
    uint64_t& fastest = small ? small_ns : large_ns;
    fastest = std::min(fastest, found.duration_ns);
  }
  EXPECT_GT(large_ns, small_ns) << "16 MiB took no longer than 4 KiB";
  EXPECT_GE(large_ns, kLarge / kBytesANanosecondMax) << "nanoseconds for 16 MiB: is this the unit?";
  EXPECT_EQ(rig().calls().release(target, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig().calls().release(source, nullptr), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::conformance
