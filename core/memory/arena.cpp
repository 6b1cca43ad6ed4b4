// SPDX-License-Identifier: Apache-2.0
// The arena's shared state, and leases, which are its other half: both count under one mutex.
// The parent is released by ArenaState's destructor, which runs when the last owner, Arena or
// Lease, lets go.
#include "kvspan/core/memory/arena.hpp"

#include "kvspan/core/memory/lease.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvspan {

struct ArenaState {
  ArenaState(ParentMemory parent_memory, RegionPlanner region_planner, ReleaseParent release_parent)
      : parent(parent_memory),
        release(std::move(release_parent)),
        planner(std::move(region_planner)) {}

  ArenaState(const ArenaState&) = delete;
  ArenaState& operator=(const ArenaState&) = delete;
  ArenaState(ArenaState&&) = delete;
  ArenaState& operator=(ArenaState&&) = delete;

  ~ArenaState() { release(parent.memory); }

  const ParentMemory parent;
  const ReleaseParent release;

  mutable std::mutex mutex;
  RegionPlanner planner;                        // guarded by mutex, as all that follows
  std::map<std::uint64_t, std::uint64_t> held;  // region id -> leases, only ids with at least one
  std::uint64_t leases = 0;                     // sum of held
  bool admits = true;
};

namespace {

Error still_leased(std::uint64_t id, std::uint64_t leases) {
  const std::string region = "region " + std::to_string(id);
  return error_of(Errc::busy,
                  region + " has " + std::to_string(leases) +
                      " live leases and would not stay persistent and identical; release them when "
                      "their work has settled, then commit again, or roll back",
                  region);
}

// Whether every leased region reappears in the open plan as it is, persistent.
Result<void> check_leased(const ArenaState& state) {
  const auto planned = state.planner.planned();
  for (const auto& [id, leases] : state.held) {
    auto region = state.planner.find(id);
    if (!region) {
      return tl::unexpected(std::move(region.error()));
    }
    const bool stays =
        region->persistent && std::find(planned.begin(), planned.end(), *region) != planned.end();
    if (!stays) {
      return tl::unexpected(still_leased(id, leases));
    }
  }
  return {};
}

}  // namespace

// ---- leases ------------------------------------------------------------------------------------

Lease::Lease(std::shared_ptr<ArenaState> state, const Region& region, std::uint64_t generation)
    : state_(std::move(state)), region_(region), generation_(generation) {}

Lease::Lease(Lease&& other) noexcept
    : state_(std::move(other.state_)),
      region_(std::exchange(other.region_, Region{})),
      generation_(std::exchange(other.generation_, 0)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    state_ = std::move(other.state_);
    region_ = std::exchange(other.region_, Region{});
    generation_ = std::exchange(other.generation_, 0);
  }
  return *this;
}

Lease::~Lease() {
  release();
}

void Lease::release() noexcept {
  if (state_ == nullptr) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto count = state_->held.find(region_.id);
    if (--count->second == 0) {
      state_->held.erase(count);
    }
    --state_->leases;
  }
  state_.reset();  // outside the lock: this may be the last owner of the mutex and the parent
  region_ = Region{};
  generation_ = 0;
}

kvspan_range_t Lease::range() const {
  if (state_ == nullptr) {
    return {nullptr, 0, 0};
  }
  return {state_->parent.memory, region_.offset, region_.bytes};
}

// ---- arena -------------------------------------------------------------------------------------

Arena::Arena(std::shared_ptr<ArenaState> state) : state_(std::move(state)) {}

Result<Arena> Arena::create(ParentMemory parent, std::uint64_t alignment, ReleaseParent release) {
  if (parent.memory == nullptr) {
    return tl::unexpected(
        Error{Errc::invalid_argument, "an arena needs parent memory; allocate it first"});
  }
  if (!release) {
    return tl::unexpected(
        Error{Errc::invalid_argument, "an arena needs a way to release its parent memory"});
  }
  auto planner = RegionPlanner::create(parent.bytes, alignment);
  if (!planner) {
    return tl::unexpected(std::move(planner.error()));
  }
  return Arena(std::make_shared<ArenaState>(parent, std::move(*planner), std::move(release)));
}

Result<void> Arena::begin() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.begin();
}

Result<Region> Arena::reserve(std::uint64_t id,
                              std::uint64_t bytes,
                              std::uint64_t alignment,
                              RegionOptions options) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.reserve(id, bytes, alignment, options);
}

Result<Region> Arena::reserve_at(std::uint64_t id,
                                 std::uint64_t offset,
                                 std::uint64_t bytes,
                                 std::uint64_t alignment,
                                 RegionOptions options) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.reserve_at(id, offset, bytes, alignment, options);
}

Result<void> Arena::keep_persistent() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.keep_persistent();
}

Result<void> Arena::rollback() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.rollback();
}

Result<void> Arena::commit() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->planner.plan_is_open()) {
    if (auto stays = check_leased(*state_); !stays) {
      return stays;
    }
  }
  return state_->planner.commit();
}

Result<Lease> Arena::acquire(std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->admits) {
    return tl::unexpected(Error{Errc::busy,
                                "the arena is quiesced and gives no lease of region " +
                                    std::to_string(id) + "; reopen it first"});
  }
  auto region = state_->planner.find(id);
  if (!region) {
    return tl::unexpected(std::move(region.error()));
  }
  ++state_->held[id];  // may fail to allocate; nothing else has changed yet
  ++state_->leases;
  return Lease(state_, *region, state_->planner.generation());
}

void Arena::quiesce() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->admits = false;
}

void Arena::reopen() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->admits = true;
}

Admission Arena::admission() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->admits) {
    return Admission::open;
  }
  return state_->leases == 0 ? Admission::quiescent : Admission::draining;
}

std::vector<Region> Arena::committed() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto regions = state_->planner.committed();
  return {regions.begin(), regions.end()};
}

Result<Region> Arena::find(std::uint64_t id) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.find(id);
}

std::uint64_t Arena::generation() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.generation();
}

kvspan_memory_t* Arena::memory() const {
  return state_->parent.memory;
}

std::uint64_t Arena::capacity_bytes() const {
  return state_->parent.bytes;
}

std::uint64_t Arena::alignment() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.alignment();
}

std::uint64_t Arena::used_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.used_bytes();
}

std::uint64_t Arena::high_water_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.high_water_bytes();
}

std::uint64_t Arena::peak_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->planner.peak_bytes();
}

std::uint64_t Arena::lease_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->leases;
}

std::uint64_t Arena::lease_count(std::uint64_t id) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto held = state_->held.find(id);
  return held == state_->held.end() ? 0 : held->second;
}

}  // namespace kvspan
