// SPDX-License-Identifier: Apache-2.0
// Two arenas over real bytes, three tenants that lease, bind, capture, save and restore, and a
// place where each callback can be made to fail. Used by the tests of preparing, activating and
// recovering.
#pragma once

#include "kvspan/core/memory/arena.hpp"
#include "kvspan/core/memory/executor.hpp"
#include "kvspan/core/memory/requirement.hpp"
#include "kvspan/core/memory/transition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvspan::test {

inline constexpr std::uint64_t kDomain = 1;
inline constexpr std::uint64_t kParentBytes = 4096;

// Parent memory that can be looked at, and an arena in it.
class Parent {
 public:
  // Counts its release in `releases`, which outlives it.
  explicit Parent(const std::shared_ptr<int>& releases)
      : bytes_(kParentBytes),
        arena_(std::make_unique<Arena>(std::move(
            Arena::create({memory(), kParentBytes}, 64, [count = releases](kvspan_memory_t*) {
              ++*count;
            }).value()))) {}

  [[nodiscard]] kvspan_memory_t* memory() {
    return reinterpret_cast<kvspan_memory_t*>(bytes_.data());
  }

  [[nodiscard]] Arena& arena() { return *arena_; }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<Arena> arena_;
};

// Called before each step of a tenant; what it returns is the step's outcome. Step `prepare` too.
using Interruption = std::function<Result<void>(TransitionStep, TransitionDirection)>;

struct Ledger {
  std::vector<std::string> log;
  int preparations = 0;  // alive
};

class Tenant : public TransitionConsumer {
 public:
  Tenant(std::string called, std::vector<std::uint64_t> wanted, Ledger& ledger)
      : ledger_(&ledger), name_(std::move(called)), wanted_(std::move(wanted)) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] Result<std::unique_ptr<Preparation>> prepare(const StageChange&) override;

  // Everything that must be as it was, whatever went wrong in between.
  struct Picture {
    std::map<std::uint64_t, std::byte> contents;  // of the first byte of each region it holds
    std::map<std::uint64_t, std::uint64_t> bound;
    int revision = 0;
    bool open = true;

    friend bool operator==(const Picture&, const Picture&) = default;
  };

  [[nodiscard]] Picture picture() const;
  [[nodiscard]] std::byte* bytes_of(std::uint64_t id) const;

  [[nodiscard]] bool holds(std::uint64_t id) const { return leases_.contains(id); }

  Interruption on_step;
  std::function<Result<void>()> on_restorable;
  std::function<void()> on_discard;
  bool indifferent = false;  // says that a change means nothing to it
  bool working = false;      // work that drain ends
  int revision = 0;
  bool open = true;
  std::unique_ptr<Executor> executor;

 private:
  friend class Move;
  void acquire(const StageChange& change);
  void release(const StageChange& change);
  void bind(const StageChange& change);

  Ledger* ledger_;
  std::string name_;
  std::vector<std::uint64_t> wanted_;
  std::map<std::uint64_t, Lease> leases_;
  std::map<std::uint64_t, std::uint64_t> bound_;
};

// What a tenant prepared: it remembers what going back needs, once its work is over.
class Move : public Preparation {
 public:
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;
  Move(Move&&) = delete;
  Move& operator=(Move&&) = delete;

  explicit Move(Tenant& of) : tenant_(&of), former_(of.picture()) { ++of.ledger_->preparations; }

  ~Move() override {
    --tenant_->ledger_->preparations;
    tenant_->ledger_->log.push_back("discard " + tenant_->name_);
    if (tenant_->on_discard) {
      tenant_->on_discard();
    }
  }

  Result<void> step(TransitionStep step, const StageChange& change) override {
    const bool back = change.direction == TransitionDirection::back;
    tenant_->ledger_->log.push_back((back ? "back " : "") + std::string(kvspan::name(step)) + " " +
                                    tenant_->name_);
    if (tenant_->on_step) {
      if (auto interrupted = tenant_->on_step(step, change.direction); !interrupted) {
        return interrupted;
      }
    }
    return take(step, change, back);
  }

  Result<void> can_restore() const override {
    return tenant_->on_restorable ? tenant_->on_restorable() : Result<void>();
  }

 private:
  Result<void> take(TransitionStep step, const StageChange& change, bool back) {
    switch (step) {
      case TransitionStep::quiesce:
        tenant_->open = false;
        break;
      case TransitionStep::drain:
        tenant_->working = false;
        break;
      case TransitionStep::invalidate:
        return invalidate(change, back);
      case TransitionStep::release:
        tenant_->release(change);
        break;
      case TransitionStep::acquire:
        tenant_->acquire(change);
        break;
      case TransitionStep::bind:
        tenant_->bind(change);
        if (back) {
          for (const auto& [id, contents] : former_.contents) {
            *tenant_->bytes_of(id) = contents;
          }
        }
        tenant_->revision = back ? former_.revision : former_.revision + 1;
        break;
      case TransitionStep::activate:
        tenant_->open = true;
        break;
      case TransitionStep::prepare:
      case TransitionStep::commit:
        ADD_FAILURE() << "no consumer is asked for this";
    }
    return {};
  }

  Result<void> invalidate(const StageChange& change, bool back) {
    if (!back) {
      former_.contents = tenant_->picture().contents;  // work may have written since prepare
    }
    for (const ArenaChange& each : change.arenas) {
      if (tenant_->executor == nullptr) {
        break;
      }
      const auto retired = tenant_->executor->retire(each.changing());
      if (!retired) {
        return tl::unexpected(retired.error());
      }
      if (*retired == Retirement::pending) {
        return tl::unexpected(Error{Errc::busy, "pins remain"});
      }
    }
    return {};
  }

  Tenant* tenant_;
  Tenant::Picture former_;
};

inline Result<std::unique_ptr<Preparation>> Tenant::prepare(const StageChange&) {
  ledger_->log.push_back("prepare " + name_);
  std::unique_ptr<Preparation> made = indifferent ? nullptr : std::make_unique<Move>(*this);
  if (on_step) {
    if (auto interrupted = on_step(TransitionStep::prepare, TransitionDirection::forward);
        !interrupted) {
      return tl::unexpected(interrupted.error());
    }
  }
  return made;
}

inline std::byte* Tenant::bytes_of(std::uint64_t id) const {
  const kvspan_range_t range = leases_.at(id).range();
  return reinterpret_cast<std::byte*>(range.memory) + range.offset;
}

inline Tenant::Picture Tenant::picture() const {
  Picture of{{}, bound_, revision, open};
  for (const auto& [id, lease] : leases_) {
    of.contents[id] = *bytes_of(id);
  }
  return of;
}

inline void Tenant::release(const StageChange& change) {
  for (const ArenaChange& each : change.arenas) {
    for (const Binding& gone : each.changing()) {
      const auto held = leases_.find(gone.region.id);
      if (held != leases_.end() && held->second.range().memory == gone.memory) {
        leases_.erase(held);
        bound_.erase(gone.region.id);
      }
    }
  }
}

inline void Tenant::acquire(const StageChange& change) {
  for (const ArenaChange& each : change.arenas) {
    for (const Region& region : each.arena->committed()) {
      const bool mine = std::count(wanted_.begin(), wanted_.end(), region.id) != 0;
      if (mine && !leases_.contains(region.id)) {
        leases_.emplace(region.id, std::move(each.arena->acquire(region.id).value()));
      }
    }
  }
}

inline void Tenant::bind(const StageChange& change) {
  for (const auto& [id, lease] : leases_) {
    bound_[id] = lease.range().offset;
    for (const ArenaChange& each : change.arenas) {
      if (lease.range().memory == each.arena->memory() && !each.stays(lease.region())) {
        *bytes_of(id) = static_cast<std::byte>(0x40 + id);
      }
    }
  }
}

// How a callback can go wrong.
enum class Fault : std::uint8_t { value, exception, out_of_memory, cancel };

inline constexpr std::array kFailures = {Fault::value, Fault::exception, Fault::out_of_memory};

inline constexpr std::array kConsumerSteps = {TransitionStep::quiesce,
                                              TransitionStep::drain,
                                              TransitionStep::invalidate,
                                              TransitionStep::release,
                                              TransitionStep::acquire,
                                              TransitionStep::bind,
                                              TransitionStep::activate};

[[nodiscard]] inline Errc code_of(Fault fault) {
  switch (fault) {
    case Fault::value:
      return Errc::device_lost;
    case Fault::exception:
      return Errc::internal;
    case Fault::out_of_memory:
      return Errc::host_memory;
    case Fault::cancel:
      return Errc::cancelled;
  }
  return Errc::internal;
}

[[nodiscard]] inline Result<void> raise_fault(Fault fault, Transition& change) {
  switch (fault) {
    case Fault::value:
      return tl::unexpected(Error{Errc::device_lost, "planted"});
    case Fault::exception:
      throw std::runtime_error("planted");
    case Fault::out_of_memory:
      throw std::bad_alloc();
    case Fault::cancel:
      return change.cancel();
  }
  return {};
}

// Stage 1: resource 1 is written and kept, 2 and 3 are scratch. Stage 2: 2 is larger, 3 (pinned)
// moves, 4 is new. Stage 3 is as stage 1.
class TransitionRig : public ::testing::Test {
 public:
  // Parents released so far; outlives the rig.
  [[nodiscard]] std::shared_ptr<int> releases() const { return released_; }

 private:
  std::shared_ptr<int> released_ = std::make_shared<int>(0);

 protected:
  TransitionRig()
      : device(released_),
        pinned(released_),
        history("history", {1}, ledger),
        scratch("scratch", {2, 3}, ledger),
        draft("draft", {4}, ledger),
        change(make()),
        plan(plan_stages(request()).value()) {}

  static StageRequest request() {
    StageRequest of;
    of.domains = {{kDomain, bit(MemoryKind::device) | bit(MemoryKind::pinned), 0}};
    of.resources = {{1, kDomain, MemoryKind::device, Contents::kept},
                    {2, kDomain, MemoryKind::device, Contents::discarded},
                    {3, kDomain, MemoryKind::pinned, Contents::discarded},
                    {4, kDomain, MemoryKind::device, Contents::discarded}};
    const auto stage = [](std::uint64_t id, MemoryAccess first) {
      return MemoryStage{id,
                         {},
                         {{1, 512, 512, 64, first},
                          {2, id == 2 ? 2048U : 1024U, 4096, 64, MemoryAccess::write},
                          {3, id == 2 ? 640U : 320U, 4096, 64, MemoryAccess::write}}};
    };
    of.stages = {
        stage(1, MemoryAccess::write), stage(2, MemoryAccess::read), stage(3, MemoryAccess::read)};
    of.stages[1].requirements.push_back({4, 512, 512, 64, MemoryAccess::write});
    return of;
  }

  Transition make() {
    return std::move(Transition::create({{kDomain, MemoryKind::device, &device.arena(), 64},
                                         {kDomain, MemoryKind::pinned, &pinned.arena(), 64}},
                                        {&history, &scratch, &draft})
                         .value());
  }

  [[nodiscard]] Result<Prepared> prepare(std::uint64_t stage) {
    return change.prepare(plan.stage(stage).value(), LayoutSizes::minimum);
  }

  void enter(std::uint64_t stage) {
    const auto prepared = prepare(stage);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    const auto active = change.activate();
    ASSERT_TRUE(active.has_value()) << active.error().message;
    ASSERT_EQ(change.state(), TransitionState::idle);
    ledger.log.clear();
  }

  [[nodiscard]] std::vector<Tenant*> tenants() { return {&history, &scratch, &draft}; }

  // All that the world sees, generations aside.
  struct World {
    std::vector<Tenant::Picture> tenants;
    std::vector<Region> device;
    std::vector<Region> pinned;
    std::uint64_t leases = 0;
    std::uint64_t stage = 0;

    friend bool operator==(const World&, const World&) = default;
  };

  [[nodiscard]] World world() {
    return {{history.picture(), scratch.picture(), draft.picture()},
            device.arena().committed(),
            pinned.arena().committed(),
            device.arena().lease_count() + pinned.arena().lease_count(),
            change.stage()};
  }

  // Plants a fault: once, at this step of this tenant.
  void plant(std::size_t tenant, TransitionStep at, TransitionDirection direction, Fault fault) {
    Interruption before = std::move(tenants()[tenant]->on_step);
    tenants()[tenant]->on_step = [=, this, done = false, before = std::move(before)](
                                     TransitionStep step, TransitionDirection now) mutable {
      if (!done && step == at && now == direction) {
        done = true;
        return raise_fault(fault, change);
      }
      return before ? before(step, now) : Result<void>();
    };
  }

  void expect_open(bool open) {
    EXPECT_EQ(device.arena().admission() == Admission::open, open);
    EXPECT_EQ(pinned.arena().admission() == Admission::open, open);
  }

  Parent device;
  Parent pinned;
  Ledger ledger;
  Tenant history;
  Tenant scratch;
  Tenant draft;
  Transition change;
  StagePlan plan;
};

}  // namespace kvspan::test
