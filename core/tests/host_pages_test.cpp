// SPDX-License-Identifier: Apache-2.0
// The host's pages grow as a history does, by whole chunks, and a chunk that is refused changes
// nothing.
#include "kvspan/core/history/host_pages.hpp"

#include "kvspan/core/history/sequence_history.hpp"
#include "kvspan/core/session/session.hpp"

#include "engine_rig.hpp"
#include "failing_new.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

// What is pinned follows what is live: 1,024 tokens of a context of 262,144 take one chunk.
TEST(HostPages, AreTakenAsTheHistoryGrows) {
  StubRig rig;
  SessionOptions options;
  options.geometry.layers.assign(2, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 8, 8, 1, 1});
  options.geometry.page_tokens = 256;
  options.context_tokens = 262144;
  options.prefill_rows_fixed = options.prefill_rows_max = 128;
  options.arena_bytes = plan(plan_request(rig.backend(), options))->minimum_arena_bytes;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const Plan& plan = session->plan();
  EXPECT_GT(plan.history_bytes, plan.pinned_chunk_bytes);
  EXPECT_EQ(session->counters().host_bytes, 0U);
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 128);
  ASSERT_TRUE(engine.prefill(sequence, 1, 0, 1024, 128, nullptr).has_value());
  EXPECT_EQ(session->counters().host_bytes, plan.pinned_chunk_bytes);
  EXPECT_EQ(session->counters().host_held_bytes, plan.history_bytes / 256);
}

// The fifth of eight chunks is refused: four stay, every page in them where it was; the next try
// goes on, and all eight are given back.
TEST(HostPages, ARefusedChunkChangesNothing) {
  constexpr std::uint64_t kChunkBytes = 256;
  StubRig rig;
  std::optional<HostPages> pages;
  HostClass of{0, 0, {0}, {}};
  of.chunk = {64, 4, kChunkBytes};
  pages.emplace(rig.backend(), HostPagesOptions{{64}, {of}, UINT64_MAX});
  rig.plant(KVSPAN_FAULT_ALLOCATION, 5, KVSPAN_E_HOST_MEMORY);
  std::vector<HostBlock> blocks;
  std::vector<const std::byte*> places;
  Result<HostBlock> block = pages->acquire(0);
  for (; block; block = pages->acquire(0)) {
    blocks.push_back(*block);
    places.push_back(pages->page(*block, 0).address);
    ASSERT_LE(blocks.size(), 16U);
  }
  EXPECT_EQ(block.error().code, Errc::host_memory);
  EXPECT_EQ(blocks.size(), 16U);
  EXPECT_EQ(pages->allocated_bytes(), 4 * kChunkBytes);
  EXPECT_EQ(pages->held_bytes(), 4 * kChunkBytes);
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    EXPECT_EQ(pages->page(blocks[index], 0).address, places[index]);
  }
  for (int more = 0; more < 16; ++more) {
    block = pages->acquire(0);
    ASSERT_TRUE(block.has_value()) << block.error().message;
    blocks.push_back(*block);
  }
  EXPECT_EQ(pages->allocated_bytes(), 8 * kChunkBytes);
  for (const HostBlock& each : blocks) {
    pages->release(each);
  }
  EXPECT_EQ(pages->held_bytes(), 0U);
  pages.reset();
  kvspan_error_t error = empty_error();
  EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
}

// Steps that take `step_blocks` each, with so many calls in a step: what is zeroed follows what is
// taken, a little at each call, and a chunk that becomes one was zeroed before.
TEST(HostPages, MemoryIsZeroedAsBlocksGo) {
  constexpr std::uint64_t kBlockBytes = 1U << 20;
  constexpr std::uint64_t kChunkBytes = 16 * kBlockBytes;
  constexpr std::uint64_t kBlocksMax = 70;
  for (const std::uint64_t step_blocks : {1U, 3U, 20U}) {
    for (const std::uint32_t calls : {1U, 4U, 16U}) {
      SCOPED_TRACE(std::to_string(step_blocks) + " blocks a step, " + std::to_string(calls) +
                   " calls");
      StubRig rig;
      {
        HostClass of{0, 0, {0}, {kBlockBytes, 16, kChunkBytes}};
        HostPages pages(rig.backend(), {{kBlockBytes}, {of}, UINT64_MAX});
        ASSERT_TRUE(pages.reserve(0, step_blocks, kBlocksMax).has_value());
        std::uint64_t taken = 0;
        while (taken + 2 * step_blocks <= kBlocksMax) {
          for (std::uint64_t block = 0; block < step_blocks; ++block, ++taken) {
            const auto acquired = pages.acquire(0);
            ASSERT_TRUE(acquired.has_value()) << acquired.error().message;
            std::byte* const address = pages.page(*acquired, 0).address;
            EXPECT_EQ(std::count(address, address + kBlockBytes, std::byte{}),
                      std::ptrdiff_t{kBlockBytes});
            std::fill_n(address, kBlockBytes, std::byte{0xa5});
          }
          // As many steps zero a chunk as take one; where one step takes more, it zeroes two.
          const std::uint64_t steps = 16 / step_blocks;
          const std::uint64_t bytes = steps == 0 ? 2 * kChunkBytes : kChunkBytes;
          const std::uint64_t shares = std::max<std::uint64_t>(steps, 1) * calls;
          const std::uint64_t most = (bytes + shares - 1) / shares;
          for (std::uint32_t call = calls; call != 0; --call) {
            const std::uint64_t before = pages.touched_bytes();
            pages.touch_ahead(0, step_blocks, kBlocksMax, {call, calls});
            EXPECT_LE(pages.touched_bytes() - before, most);
          }
          const std::uint64_t chunks = pages.allocated_bytes();
          const std::uint64_t touched = pages.touched_bytes();
          ASSERT_TRUE(pages.reserve(0, step_blocks, kBlocksMax).has_value());
          EXPECT_LE(pages.allocated_bytes() - chunks, touched) << "some was not zeroed before";
          EXPECT_EQ(pages.allocated_bytes() + pages.touched_bytes(), chunks + touched);
          EXPECT_LE(pages.touched_bytes(), kChunkBytes) << "more than a chunk lies ready";
          EXPECT_LE(pages.allocated_bytes() + pages.touched_bytes(),
                    (kBlocksMax + 15) / 16 * kChunkBytes);
        }
      }
      kvspan_error_t error = empty_error();
      EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
    }
  }
}

// What lies ready for one class gives way to a chunk of another that is needed now, and nothing is
// made ready beyond the limit.
TEST(HostPages, WhatLiesReadyIsWithinTheLimit) {
  constexpr std::uint64_t kChunkBytes = 4096;
  StubRig rig;
  {
    HostClass first{0, 0, {0}, {1024, 4, kChunkBytes}};
    HostClass second{8, 8, {1}, {1024, 4, kChunkBytes}};
    HostPages pages(rig.backend(), {{1024, 1024}, {first, second}, 2 * kChunkBytes});
    pages.touch_ahead(0, 8, 100, {});
    EXPECT_EQ(pages.touched_bytes(), 2 * kChunkBytes);
    EXPECT_TRUE(pages.reserve(1, 1, 100).has_value());
    EXPECT_EQ(pages.allocated_bytes(), kChunkBytes);
    EXPECT_EQ(pages.touched_bytes(), kChunkBytes);
    pages.touch_ahead(0, 8, 100, {});
    pages.touch_ahead(1, 8, 100, {});
    EXPECT_EQ(pages.touched_bytes(), kChunkBytes);
    EXPECT_TRUE(pages.reserve(0, 1, 100).has_value());
    EXPECT_EQ(pages.touched_bytes(), 0U);
    pages.touch_ahead(0, 8, 100, {});
    EXPECT_EQ(pages.touched_bytes(), 0U);
    EXPECT_EQ(pages.reserve(0, 5, 100).error().code, Errc::host_memory);
    EXPECT_EQ(pages.allocated_bytes(), 2 * kChunkBytes);
  }
  kvspan_error_t error = empty_error();
  EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
}

// Chunks that a stub imported, in order, those that are gone included.
class SeenChunks {
 public:
  SeenChunks() : memory_(*rig_.backend().tables().memory) {
    inner() = rig_.backend().tables().memory;
    seen().clear();
    seen().reserve(64);  // seeing allocates nothing
    memory_.import_host = import_host;
    BackendTables tables = rig_.backend().tables();
    tables.memory = &memory_;
    backend_.emplace(tables, rig_.backend().device(), rig_.backend().info());
  }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  // Bytes of the chunks that `pages` says are its own, each time that one was made.
  [[nodiscard]] static std::uint64_t known_to(const HostPages& pages) {
    std::uint64_t bytes = 0;
    for (const kvspan_memory_t* memory : seen()) {
      bytes += pages.chunk_bytes(memory);
    }
    return bytes;
  }

  void close() {
    kvspan_error_t error = empty_error();
    EXPECT_EQ(rig_.close(&error), KVSPAN_OK) << error.message;
  }

 private:
  static const kvspan_memory_table_t*& inner() {
    static const kvspan_memory_table_t* table = nullptr;
    return table;
  }

  static std::vector<const kvspan_memory_t*>& seen() {
    static std::vector<const kvspan_memory_t*> chunks;
    return chunks;
  }

  static kvspan_result_t KVSPAN_CALL import_host(kvspan_device_t* device,
                                                 void* address,
                                                 std::uint64_t bytes,
                                                 kvspan_memory_t** out,
                                                 kvspan_error_t* error) noexcept {
    const kvspan_result_t result = inner()->import_host(device, address, bytes, out, error);
    if (result == KVSPAN_OK) {
      seen().push_back(*out);
    }
    return result;
  }

  StubRig rig_;
  kvspan_memory_table_t memory_;
  std::optional<Backend> backend_;
};

// A history of two classes grows by several chunks of each, any allocation of which may fail: what
// was taken serves the next try, no block is lost or given twice, and a commit of what fits and
// giving all back take nothing.
TEST(HostPages, AnyAllocationOfAHistoryMayFail) {
  constexpr std::uint32_t kPages = 70;
  constexpr std::uint64_t kTokens = kPages * 4;
  HostClass wide{0, 0, {0, 2}, {1024, 16, 16384}};
  HostClass narrow{8, 8, {1}, {64, 16, 1024}};
  bool fired = true;
  for (std::uint64_t nth = 1; fired; nth += KVSPAN_TEST_SANITIZED != 0 ? 3 : 1) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    SeenChunks seen;
    {
      HostPages pages(seen.backend(), {{512, 64, 512}, {wide, narrow}, UINT64_MAX});
      SequenceHistory history({wide, narrow}, 4);
      const auto grow = [&] {
        fail_new(nth);
        try {
          pages.touch_ahead(0, 20, kPages, {2, 2});
          pages.touch_ahead(1, 20, kPages, {});
          const auto reserved = history.reserve(pages, kTokens);
          EXPECT_TRUE(reserved || reserved.error().code == Errc::host_memory);
        } catch (const std::bad_alloc&) {
        }
        fired = new_has_failed();
        fail_new(0);
      };
      grow();
      EXPECT_EQ(seen.known_to(pages), pages.allocated_bytes()) << "what is gone is not known";
      ASSERT_TRUE(history.reserve(pages, kTokens).has_value());
      EXPECT_EQ(pages.held_bytes(), kPages * (1024U + 64U));
      std::set<std::pair<std::uint32_t, std::uint32_t>> blocks;
      for (std::uint32_t page = 0; page < kPages; ++page) {
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
          EXPECT_NE(pages.page(history.block(layer, page), layer).address, nullptr);
          EXPECT_EQ(history.hazard(layer, page).read.of(LaneId::upload), 0U);
          history.hazard(layer, page).read = Moment::at(LaneId::upload, 1);
        }
        for (std::uint32_t layer = 0; layer < 2; ++layer) {
          const HostBlock block = history.block(layer, page);
          EXPECT_TRUE(blocks.insert({block.chunk, block.index}).second);
        }
      }
      fail_new(1, NewFails::from_then_on);
      history.commit(kTokens, {});
      const std::uint64_t tokens = history.committed_tokens();
      history.prove({});
      const std::uint64_t retired = history.retire(pages, Moment::at(LaneId::upload, 1));
      history.release(pages);
      const bool allocated = new_has_failed();
      fail_new(0);
      EXPECT_FALSE(allocated);
      EXPECT_EQ(tokens, kTokens);
      EXPECT_GT(retired, 0U);
      EXPECT_EQ(pages.held_bytes(), 0U);
      EXPECT_EQ(pages.allocated_bytes(), 5 * (16384U + 1024U)) << "no chunk was lost";
    }
    seen.close();
  }
}

}  // namespace
}  // namespace kvspan::test
