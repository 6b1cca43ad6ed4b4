// SPDX-License-Identifier: Apache-2.0
// What has been waited for can be read: over three queues, and behind an encode. Read next:
// fence_random_test.cpp, the same in random orders.
#include "kvspan/sdk/reference/quant.h"

#include "worker/case.hpp"

#include <algorithm>
#include <cstring>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class FenceMemory : public PluginTest {};

// A value that the host has waited for: the bytes of the work before it are there, over three
// queues.
KVSPAN_CASE(FenceMemory, MemoryIsVisibleBehindAReachedPoint, "KV-FENCE-5") {
  Buffer* first = rig().allocate(KVSPAN_MEMORY_DEVICE, 16384);
  Buffer* second = rig().allocate(KVSPAN_MEMORY_DEVICE, 16384);
  Buffer* host = rig().allocate(KVSPAN_MEMORY_HOST, 16384);
  Lane& upload = rig().lane(KVSPAN_ROLE_UPLOAD);
  Lane& compute = rig().lane(KVSPAN_ROLE_COMPUTE);
  Lane& download = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  for (uint32_t round = 1; round <= cases(settings(), 400, 40) && !HasFailure(); ++round) {
    const auto byte = static_cast<uint8_t>(round);
    Submit filled;
    filled.wait(compute.last()).signal(upload.next());  // the reader of the round before
    ASSERT_EQ(rig().fill(upload, *first, byte, filled), KVSPAN_OK);
    Submit moved;
    moved.wait(upload.last()).wait(download.last()).signal(compute.next());
    ASSERT_EQ(rig().copy(compute, *first, *second, moved), KVSPAN_OK);
    Submit out;
    out.wait(compute.last()).signal(download.next());
    ASSERT_EQ(rig().copy(download, *second, *host, out), KVSPAN_OK);
    ASSERT_EQ(rig().wait(download.last()), KVSPAN_OK);
    for (uint64_t i = 0; i < host->bytes(); i += 509) {
      ASSERT_EQ(host->mapped[i], byte) << "round " << round << ", byte " << i;
    }
  }
}

// A page is published behind encode's point, and overwritten behind the copy's.
KVSPAN_CASE(FenceMemory, ACopyThatWaitsForEncodeSeesItsBytes, "KV-SUBMIT-9") {
  constexpr uint32_t kRows = 64;
  constexpr uint32_t kHead = 128;
  const uint64_t typed = kvspan_ref_row_bytes(KVSPAN_TYPE_Q8_0, kHead);
  Buffer* rows = rig().allocate(KVSPAN_MEMORY_HOST, kRows * kHead * 4);
  Buffer* page = rig().allocate(KVSPAN_MEMORY_DEVICE, kRows * typed);
  Buffer* host = rig().allocate(KVSPAN_MEMORY_HOST, kRows * typed);
  Lane& compute = rig().lane(KVSPAN_ROLE_COMPUTE);
  Lane& download = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  kvspan_codec_item_t item = {};
  item.rows = {rows->memory, 0, kHead * 4, kHead * 4, KVSPAN_TYPE_F32, 0};
  item.plane.memory = page->memory;
  item.plane.row_stride = item.plane.head_stride = typed;
  item.type = KVSPAN_TYPE_Q8_0;
  item.row_count = kRows;
  item.head_count = 1;
  item.head_size = kHead;
  Dice dice(settings(), 11);
  for (uint32_t round = 0; round < cases(settings(), 100, 20) && !HasFailure(); ++round) {
    Bytes expected(kRows * typed);
    for (uint64_t row = 0; row < kRows; ++row) {
      std::vector<float> values(kHead);
      std::generate(values.begin(), values.end(), [&] { return dice.normal(); });
      std::memcpy(rows->mapped + row * kHead * 4, values.data(), kHead * 4);
      kvspan_ref_encode_row(KVSPAN_TYPE_Q8_0, values.data(), kHead, expected.data() + row * typed);
    }
    Submit encoded;
    encoded.wait(download.last()).signal(compute.next());
    ASSERT_EQ(rig().calls().encode(compute.queue, &item, 1, encoded.raw(), nullptr), KVSPAN_OK);
    Submit published;
    published.wait(compute.last()).signal(download.next());
    const kvspan_segment_t segment = {page->memory, host->memory, 0, 0, kRows * typed, 1, 0, 0};
    ASSERT_EQ(rig().calls().copy(download.queue, &segment, 1, published.raw(), nullptr), KVSPAN_OK);
    ASSERT_EQ(rig().wait(download.last()), KVSPAN_OK);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), host->mapped)) << "round " << round;
  }
}

// Rows are encoded, and a page is decoded, behind the copy that brings them.
KVSPAN_CASE(FenceMemory, CodecWorkThatWaitsForACopySeesItsBytes, "KV-SUBMIT-9") {
  constexpr uint32_t kRows = 16;
  constexpr uint32_t kHead = 64;
  constexpr uint64_t kRowBytes = kHead * 4;
  const uint64_t typed = kvspan_ref_row_bytes(KVSPAN_TYPE_Q8_0, kHead);
  Buffer* sent = rig().allocate(KVSPAN_MEMORY_HOST, 16384);       // rows, then a page
  Buffer* arrived = rig().allocate(KVSPAN_MEMORY_DEVICE, 16384);  // the same
  Buffer* made =
      rig().allocate(KVSPAN_MEMORY_DEVICE, 16384);  // a page of the rows, rows of the page
  Buffer* back = rig().allocate(KVSPAN_MEMORY_HOST, 16384);
  constexpr uint64_t kHalf = 8192;
  Lane& upload = rig().lane(KVSPAN_ROLE_UPLOAD);
  Lane& compute = rig().lane(KVSPAN_ROLE_COMPUTE);
  Lane& download = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  const auto item_of =
      [&](kvspan_memory_t* rows, uint64_t rows_at, kvspan_memory_t* page, uint64_t page_at) {
        kvspan_codec_item_t item = {};
        item.rows = {rows, rows_at, kRowBytes, kRowBytes, KVSPAN_TYPE_F32, 0};
        item.plane.memory = page;
        item.plane.offset = page_at;
        item.plane.row_stride = item.plane.head_stride = typed;
        item.type = KVSPAN_TYPE_Q8_0;
        item.row_count = kRows;
        item.head_count = 1;
        item.head_size = kHead;
        return item;
      };
  const kvspan_codec_item_t encoded = item_of(arrived->memory, 0, made->memory, 0);
  const kvspan_codec_item_t decoded = item_of(made->memory, kHalf, arrived->memory, kHalf);
  Dice dice(settings(), 12);
  for (uint32_t round = 0; round < cases(settings(), 60, 20) && !HasFailure(); ++round) {
    Bytes page(kRows * typed);
    Bytes rows(kRows * kRowBytes);
    for (uint64_t row = 0; row < kRows; ++row) {
      std::vector<float> values(kHead);
      std::generate(values.begin(), values.end(), [&] { return dice.normal(); });
      std::memcpy(sent->mapped + row * kRowBytes, values.data(), kRowBytes);
      kvspan_ref_encode_row(KVSPAN_TYPE_Q8_0, values.data(), kHead, &page[row * typed]);
      std::generate(values.begin(), values.end(), [&] { return dice.normal(); });
      uint8_t* const other = sent->mapped + kHalf + row * typed;
      kvspan_ref_encode_row(KVSPAN_TYPE_Q8_0, values.data(), kHead, other);
      kvspan_ref_decode_row(KVSPAN_TYPE_Q8_0, other, kHead, values.data());
      std::memcpy(&rows[row * kRowBytes], values.data(), kRowBytes);
    }
    ASSERT_EQ(
        rig().copy(upload, *sent, *arrived, Submit().wait(compute.last()).signal(upload.next())),
        KVSPAN_OK);
    Submit first;
    first.wait(upload.last()).wait(download.last()).signal(compute.next());
    ASSERT_EQ(rig().calls().encode(compute.queue, &encoded, 1, first.raw(), nullptr), KVSPAN_OK);
    Submit second;
    second.wait(upload.last()).signal(compute.next());
    ASSERT_EQ(rig().calls().decode(compute.queue, &decoded, 1, second.raw(), nullptr), KVSPAN_OK);
    ASSERT_EQ(
        rig().copy(download, *made, *back, Submit().wait(compute.last()).signal(download.next())),
        KVSPAN_OK);
    ASSERT_EQ(rig().wait(download.last()), KVSPAN_OK);
    ASSERT_TRUE(std::equal(page.begin(), page.end(), back->mapped)) << "encode, round " << round;
    ASSERT_TRUE(std::equal(rows.begin(), rows.end(), back->mapped + kHalf))
        << "decode, round " << round;
  }
}

}  // namespace
}  // namespace kvspan::conformance
