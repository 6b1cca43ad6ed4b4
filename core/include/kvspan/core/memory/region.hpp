// SPDX-License-Identifier: Apache-2.0
// Who may use which bytes of one parent allocation, as metadata: regions are placed, then committed
// all at once.
// Not the memory itself and not thread-safe: arena.hpp adds a parent, a mutex and leases.
// Read next: arena.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// A named run of bytes. offset is a multiple of alignment; alignment is the effective one: the
// larger of what was asked and the planner's own. Two regions are identical when all five fields
// are equal.
struct Region {
  std::uint64_t id;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t alignment;
  bool persistent;  // keep_persistent() carries it into the next plan, with its contents

  friend bool operator==(const Region&, const Region&) = default;
};

struct RegionOptions {
  bool persistent = false;
};

// Plans the regions of one parent.
// Invariants: 1. committed regions and planned regions each are sorted by offset, do not overlap
// and end within capacity; 2. ids are unique within a plan; 3. a call that fails changes nothing;
// 4. only commit() changes what is committed, the whole map at once, and raises the generation by
// one.
// Thread class: SYNC(planner). Cost: linear in the number of regions.
class RegionPlanner {
 public:
  // capacity_bytes > 0; alignment a power of two. Errc::invalid_argument otherwise.
  [[nodiscard]] static Result<RegionPlanner> create(std::uint64_t capacity_bytes,
                                                    std::uint64_t alignment);

  // Opens an empty plan. Errc::busy: one is open already; commit it or roll it back.
  [[nodiscard]] Result<void> begin();

  // Places `bytes` first fit: at the lowest free offset that is aligned to max(alignment, the
  // planner's own).
  // Errc::invalid_argument: no open plan, 0 bytes, an alignment that is no power of two, an id that
  // the plan has.
  // Errc::too_large: no room. required = the smallest capacity with which this very call would have
  // worked, provided = the capacity, missing = the difference (all 0 when the sum does not fit 64
  // bits).
  [[nodiscard]] Result<Region> reserve(std::uint64_t id,
                                       std::uint64_t bytes,
                                       std::uint64_t alignment,
                                       RegionOptions options = {});

  // Places `bytes` exactly at `offset`. Errors as reserve; also Errc::invalid_argument: the offset
  // is not aligned, or the bytes overlap a planned region (the message names it).
  [[nodiscard]] Result<Region> reserve_at(std::uint64_t id,
                                          std::uint64_t offset,
                                          std::uint64_t bytes,
                                          std::uint64_t alignment,
                                          RegionOptions options = {});

  // Carries every committed persistent region into the open plan, unchanged. One that the plan has
  // already, identical, is left as it is. Call it before reserve(), so that nothing is placed where
  // they are.
  // Errc::invalid_argument: no open plan, or one collides with what the plan has; then none was
  // carried.
  [[nodiscard]] Result<void> keep_persistent();

  // Makes the plan what is committed and closes it. An empty plan is legal and gives everything up.
  // Errc::invalid_argument: no open plan. Errc::internal: generations are used up (after 2^64 - 1
  // commits).
  [[nodiscard]] Result<void> commit();

  // Forgets the open plan. Errc::invalid_argument: no open plan.
  [[nodiscard]] Result<void> rollback();

  [[nodiscard]] bool plan_is_open() const { return plan_is_open_; }

  // Sorted by offset; valid until the next commit().
  [[nodiscard]] std::span<const Region> committed() const { return committed_; }

  // The open plan, sorted by offset, empty when none is open; valid until the next call that
  // changes it.
  [[nodiscard]] std::span<const Region> planned() const { return planned_; }

  // The committed region with this id. Errc::not_found: there is none.
  [[nodiscard]] Result<Region> find(std::uint64_t id) const;

  // 0 before the first commit.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

  [[nodiscard]] std::uint64_t capacity_bytes() const { return capacity_bytes_; }

  [[nodiscard]] std::uint64_t alignment() const { return alignment_; }

  // Sum of the committed regions' bytes; padding between them does not count.
  [[nodiscard]] std::uint64_t used_bytes() const;

  // End of the last committed region: the capacity that this very map needs, padding included.
  [[nodiscard]] std::uint64_t high_water_bytes() const;

  // The largest high_water_bytes() of any generation so far.
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  RegionPlanner(std::uint64_t capacity_bytes, std::uint64_t alignment)
      : capacity_bytes_(capacity_bytes), alignment_(alignment) {}

  // What reserve and reserve_at refuse alike; the effective alignment otherwise.
  [[nodiscard]] Result<std::uint64_t> check_request(std::uint64_t id,
                                                    std::uint64_t bytes,
                                                    std::uint64_t alignment) const;

  std::vector<Region> committed_;
  std::vector<Region> planned_;
  std::uint64_t capacity_bytes_;
  std::uint64_t alignment_;
  std::uint64_t generation_ = 0;
  std::uint64_t peak_bytes_ = 0;
  bool plan_is_open_ = false;
};

}  // namespace kvspan
