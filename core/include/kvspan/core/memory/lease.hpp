// SPDX-License-Identifier: Apache-2.0
// A counted right to use one committed region of an arena. It keeps the bytes; it says nothing
// about whether device work on them has ended: that is what points on fences are for.
// Not a view: range() is the view, a plain value that is good while the lease lives.
// Read next: arena.hpp.
#pragma once

#include "kvspan/core/memory/region.hpp"
#include "kvspan/types.h"

#include <cstdint>
#include <memory>

namespace kvspan {

// What an Arena and its leases share; private to arena.cpp.
struct ArenaState;

// Move-only. Destroying it, or release(), gives the right back; the last of an arena that is gone
// also gives the parent memory back, so hold a lease until the work that names its range has
// settled.
// Invariants: 1. while a lease lives its region stays committed at the same place; 2. while a lease
// lives the parent memory lives, also after its Arena is gone; 3. region and generation are those
// of the moment of acquire().
// Thread class: SYNC(lease); leases of one arena may be acquired and released from any threads at
// the same time.
class Lease {
 public:
  // Holds nothing; range() is {NULL, 0, 0}.
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  // Whether it holds a region.
  [[nodiscard]] explicit operator bool() const { return state_ != nullptr; }

  // Gives the right back now; the lease holds nothing afterwards. Calling it again does nothing.
  void release() noexcept;

  // The region's bytes inside the parent memory.
  [[nodiscard]] kvspan_range_t range() const;

  [[nodiscard]] const Region& region() const { return region_; }

  // The arena's generation when this was acquired. A later commit leaves it as it is: the lease
  // stays valid.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

 private:
  friend class Arena;
  Lease(std::shared_ptr<ArenaState> state, const Region& region, std::uint64_t generation);

  std::shared_ptr<ArenaState> state_;
  Region region_{};
  std::uint64_t generation_ = 0;
};

}  // namespace kvspan
