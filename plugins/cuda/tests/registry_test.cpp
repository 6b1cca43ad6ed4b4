// SPDX-License-Identifier: Apache-2.0
// Which host pages are locked, without a card: CUDA's four calls are played here by a table of
// pages that refuses what CUDA refuses. Random imports that overlap, enclose and repeat each other,
// some of them failing part of the way: pages of a live import are locked, each by one lock,
// nothing is locked that no import needs, and a failure changes nothing (KV-MEMORY-3).
#include "registry.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace {

// CUDA's locks: begin -> end, in pages.
struct FakeLocks {
  std::map<uintptr_t, uintptr_t> ranges;
  uint64_t fails_in = 0;  // 1 = the next registration; 0 = none

  [[nodiscard]] bool overlaps(uintptr_t begin, uintptr_t end) const {
    for (const auto& [first, last] : ranges) {
      if (first < end && last > begin) {
        return true;
      }
    }
    return false;
  }
};

// CUDA's functions know no object.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
FakeLocks* fake_locks = nullptr;

uintptr_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

}  // namespace

// NOLINTBEGIN(readability-*): these stand in for CUDA's own.
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned int) {
  if (fake_locks->fails_in != 0 && --fake_locks->fails_in == 0) {
    return cudaErrorMemoryAllocation;
  }
  if (fake_locks->overlaps(number(address), number(address) + bytes)) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  fake_locks->ranges[number(address)] = number(address) + bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  return fake_locks->ranges.erase(number(address)) == 1 ? cudaSuccess
                                                        : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* address, unsigned int) {
  *on_device = address;
  return fake_locks->overlaps(number(address), number(address) + 1) ? cudaSuccess
                                                                    : cudaErrorInvalidValue;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

// NOLINTEND(readability-*)

namespace kvspan::cuda {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 24;

void* KVSPAN_CALL take(kvspan_host_t*, uint64_t bytes, uint64_t alignment) noexcept {
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void KVSPAN_CALL give(kvspan_host_t*, void* block, uint64_t, uint64_t) noexcept {
  std::free(block);
}

struct Range {
  uint64_t first;  // pages
  uint64_t end;

  bool operator==(const Range&) const = default;
};

class RegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    services_.alloc = take;
    services_.free = give;
    fake_locks = &locks_;
  }

  void TearDown() override { fake_locks = nullptr; }

  // No byte of these pages is touched: addresses are all that counts.
  static uint8_t* page(uint64_t number) {
    return reinterpret_cast<uint8_t*>((uintptr_t{1} << 32) + number * kPage);
  }

  cudaError_t lock(const Range& range) {
    LockedPages locked;
    const cudaError_t result =
        registry_.lock(page(range.first), (range.end - range.first) * kPage, locked);
    if (result == cudaSuccess) {
      EXPECT_EQ(locked.on_device, page(range.first));
      live_.push_back(range);
      const auto last = locks_.ranges.upper_bound(::number(page(range.first)));
      const bool one = std::prev(last)->second >= ::number(page(range.end));
      EXPECT_EQ(locked.pieced, !one) << range.first << ".." << range.end;
    }
    return result;
  }

  void unlock(std::size_t index) {
    const Range range = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    registry_.unlock(page(range.first), (range.end - range.first) * kPage);
  }

  [[nodiscard]] bool is_locked(uint64_t number) const {
    return locks_.overlaps(::number(page(number)), ::number(page(number + 1)));
  }

  [[nodiscard]] bool is_imported(uint64_t number) const {
    for (const Range& range : live_) {
      if (number >= range.first && number < range.end) {
        return true;
      }
    }
    return false;
  }

  // A page that a lock still holds although its import is gone.
  [[nodiscard]] bool has_left_over(const Range& range) const {
    for (uint64_t at = range.first; at < range.end; ++at) {
      if (is_locked(at) && !is_imported(at)) {
        return true;
      }
    }
    return false;
  }

  void expect_consistent() const {
    for (uint64_t at = 0; at < kPages; ++at) {
      ASSERT_TRUE(is_locked(at) || !is_imported(at)) << "page " << at << " of a live import";
    }
    for (const auto& [begin, end] : locks_.ranges) {
      bool needed = false;
      for (const Range& range : live_) {
        needed = needed || (::number(page(range.first)) < end && ::number(page(range.end)) > begin);
      }
      ASSERT_TRUE(needed) << "a lock that no import needs";
    }
  }

  FakeLocks locks_;
  kvspan_host_services_t services_{};
  Host host_{&services_};
  Registry registry_{host_};
  std::vector<Range> live_;
};

TEST_F(RegistryTest, TheSamePagesAreLockedOnce) {
  ASSERT_EQ(lock({2, 5}), cudaSuccess);
  ASSERT_EQ(lock({2, 5}), cudaSuccess);
  EXPECT_EQ(locks_.ranges.size(), 1u);
  unlock(0);
  EXPECT_TRUE(is_locked(3));
  unlock(0);
  EXPECT_TRUE(locks_.ranges.empty());
}

TEST_F(RegistryTest, PagesLetGoOfAreNotTakenForLocked) {
  ASSERT_EQ(lock({0, 8}), cudaSuccess);
  ASSERT_EQ(lock({3, 5}), cudaSuccess);
  unlock(0);
  EXPECT_TRUE(is_locked(3));
  EXPECT_EQ(lock({0, 2}), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(lock({4, 6}), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(lock({3, 4}), cudaSuccess);
  unlock(0);
  unlock(0);
  EXPECT_TRUE(locks_.ranges.empty());
}

TEST_F(RegistryTest, SomebodyElsesLockStays) {
  locks_.ranges[::number(page(4))] = ::number(page(8));
  ASSERT_EQ(lock({4, 8}), cudaSuccess);
  unlock(0);
  EXPECT_EQ(locks_.ranges.size(), 1u);
  ASSERT_EQ(lock({5, 6}), cudaSuccess);
  unlock(0);
  EXPECT_EQ(locks_.ranges.size(), 1u);
  EXPECT_EQ(lock({6, 10}), cudaErrorHostMemoryAlreadyRegistered) << "partly theirs";
  EXPECT_EQ(locks_.ranges.size(), 1u);
}

TEST_F(RegistryTest, AnyOrderOfImportsKeepsLocksRight) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int step = 0; step < 400; ++step) {
      if (!live_.empty() && random() % 100 < 45) {
        unlock(random() % live_.size());
      } else {
        const uint64_t first = random() % kPages;
        const Range range{first, first + 1 + random() % (kPages - first)};
        locks_.fails_in = random() % 4 == 0 ? 1 + random() % 3 : 0;
        const bool may_fail = locks_.fails_in != 0;
        const bool left_over = has_left_over(range);
        const auto before = locks_.ranges;
        const cudaError_t result = lock(range);
        locks_.fails_in = 0;
        if (result != cudaSuccess) {
          ASSERT_TRUE(left_over || may_fail) << "refused without a reason";
          ASSERT_EQ(locks_.ranges, before) << "a failure changed something";
        } else {
          ASSERT_FALSE(left_over) << "took pages that were let go of";
        }
      }
      expect_consistent();
      if (HasFatalFailure()) {
        return;
      }
    }
    while (!live_.empty()) {
      unlock(0);
    }
    ASSERT_TRUE(locks_.ranges.empty()) << "nothing is alive, so nothing is locked";
  }
}

}  // namespace
}  // namespace kvspan::cuda
