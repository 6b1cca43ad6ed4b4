// SPDX-License-Identifier: Apache-2.0
// One parent allocation of a device, divided into regions that change by transactions while leases
// hold them.
// Not the allocation itself: whoever makes the Arena allocates, and gives the release along as a
// callback. Nothing here calls a backend otherwise, waits, or moves a byte.
// Read next: region.hpp for how regions are placed, lease.hpp for how they are held.
#pragma once

#include "kvspan/core/memory/lease.hpp"
#include "kvspan/core/memory/region.hpp"
#include "kvspan/types.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace kvspan {

// Memory that regions lie in, from its byte 0. The plugin owns the object; the Arena owns the duty
// to release it.
struct ParentMemory {
  kvspan_memory_t* memory = nullptr;
  std::uint64_t bytes = 0;
};

// Called once, when the Arena and all its leases are gone, on the thread that dropped the last of
// them and with no lock held. Must not throw.
using ReleaseParent = std::function<void(kvspan_memory_t*)>;

// open: leases are given. draining: closed, some are still held. quiescent: closed, none is held.
enum class Admission { open, draining, quiescent };

// Invariants: 1. a region that is leased stays committed, identical; 2. commit moves no byte and
// raises the generation by one; 3. the parent is released exactly once, after the Arena and every
// lease are gone; 4. a call that fails changes nothing, an open plan included.
// Thread class: ANY for every call but moving and destroying the Arena itself, which are
// SYNC(arena). A plan belongs to the arena, not to a thread: let one thread at a time plan. Cost:
// linear in the number of regions.
class Arena {
 public:
  // Takes over `parent`; on failure the caller still owns it and `release` is not called.
  // Errc::invalid_argument: no memory, no release, 0 bytes, an alignment that is no power of two.
  [[nodiscard]] static Result<Arena> create(ParentMemory parent,
                                            std::uint64_t alignment,
                                            ReleaseParent release);

  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&&) noexcept = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() = default;

  // As RegionPlanner's, in the parent's bytes. Legal in every state of admission.
  [[nodiscard]] Result<void> begin();
  [[nodiscard]] Result<Region> reserve(std::uint64_t id,
                                       std::uint64_t bytes,
                                       std::uint64_t alignment,
                                       RegionOptions options = {});
  [[nodiscard]] Result<Region> reserve_at(std::uint64_t id,
                                          std::uint64_t offset,
                                          std::uint64_t bytes,
                                          std::uint64_t alignment,
                                          RegionOptions options = {});
  [[nodiscard]] Result<void> keep_persistent();
  [[nodiscard]] Result<void> rollback();

  // Makes the plan what is committed. Errors as RegionPlanner::commit; also Errc::busy: a leased
  // region would not reappear persistent and identical. The message names it; the plan stays open:
  // release those leases (once their work has settled) and commit again, or roll back.
  [[nodiscard]] Result<void> commit();

  // A lease of the committed region `id`.
  // Errc::busy: admission is closed; reopen() first. Errc::not_found: no such committed region.
  [[nodiscard]] Result<Lease> acquire(std::uint64_t id);

  // Closes admission; waits for nothing. Quiescent at once when no lease is held, else when the
  // last is released.
  void quiesce();

  // Opens admission again, whatever the state.
  void reopen();

  [[nodiscard]] Admission admission() const;

  // A copy, sorted by offset.
  [[nodiscard]] std::vector<Region> committed() const;

  // The committed region with this id. Errc::not_found: there is none.
  [[nodiscard]] Result<Region> find(std::uint64_t id) const;

  [[nodiscard]] std::uint64_t generation() const;
  // What the regions lie in; names it, keeps nothing.
  [[nodiscard]] kvspan_memory_t* memory() const;

  [[nodiscard]] std::uint64_t capacity_bytes() const;

  // The least alignment of a region's offset.
  [[nodiscard]] std::uint64_t alignment() const;

  [[nodiscard]] std::uint64_t used_bytes() const;
  [[nodiscard]] std::uint64_t high_water_bytes() const;
  [[nodiscard]] std::uint64_t peak_bytes() const;

  // Leases held now: of all regions, or of one (0 for an id that is not committed).
  [[nodiscard]] std::uint64_t lease_count() const;
  [[nodiscard]] std::uint64_t lease_count(std::uint64_t id) const;

 private:
  explicit Arena(std::shared_ptr<ArenaState> state);

  std::shared_ptr<ArenaState> state_;
};

}  // namespace kvspan
