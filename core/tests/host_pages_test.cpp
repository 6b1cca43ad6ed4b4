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
