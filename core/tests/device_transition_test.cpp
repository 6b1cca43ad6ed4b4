// SPDX-License-Identifier: Apache-2.0
// A transition over real memory and queues of the stub: old work is under way when it begins, new
// work fails at any submit, and every byte is as it was or as it should be. A memory that is given
// back under work is BUSY there, so the order of steps is judged by the device, not by this test.
#include "kvspan/core/memory/completion.hpp"
#include "kvspan/core/memory/transition.hpp"

#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kDomain = 1;
constexpr std::uint64_t kArenaBytes = 1 << 16;

using Bytes = std::vector<std::byte>;

// The device, its lanes, an arena on it, and memory of the host to look through.
class Card {
 public:
  explicit Card(std::uint64_t seed)
      : rig_(std::map<std::string, std::string>{{"queues", "shuffled"},
                                                {"seed", std::to_string(seed)},
                                                {"fail_stops", seed % 2 == 0 ? "yes" : "no"}}),
        window_(std::move(backend().allocate(KVSPAN_MEMORY_HOST, kArenaBytes).value())),
        lanes_(std::make_unique<Lanes>(std::move(Lanes::create(backend(), {}).value()))),
        arena_(make()) {}

  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;
  Card(Card&&) = delete;
  Card& operator=(Card&&) = delete;

  ~Card() {
    arena_.reset();
    lanes_.reset();
    window_ = {};
    kvspan_error_t error = empty_error();
    EXPECT_EQ(rig_.close(&error), KVSPAN_OK) << error.message;
  }

  [[nodiscard]] const Backend& backend() const { return rig_.backend(); }

  [[nodiscard]] Arena& arena() { return *arena_; }

  [[nodiscard]] Lanes& lanes() { return *lanes_; }

  void plant(std::uint64_t nth) { rig_.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED); }

  void clear() { rig_.plant(0, 0, KVSPAN_OK); }

  // Lanes whose fence failed are of no more use: the values go on in others.
  Result<void> mend() {
    if (lanes_->health()) {
      return {};
    }
    if (auto drained = lanes_->drain(); !drained) {
      return drained;
    }
    Moment from;
    for (const LaneId lane : kLanes) {
      from.values[static_cast<std::size_t>(lane)] = lanes_->last(lane);
    }
    auto next = Lanes::create(backend(), {}, from);
    if (!next) {
      return tl::unexpected(next.error());
    }
    *lanes_ = std::move(*next);
    return {};
  }

  // Submitted, not waited for.
  Result<Moment> fill(const kvspan_range_t& range, std::byte value) {
    return moment(LaneId::compute, [&](auto* queue, const auto* submit, auto* error) {
      return backend().tables().copy->fill(
          queue, &range, static_cast<std::uint64_t>(value), 1, submit, error);
    });
  }

  Result<Bytes> read(const kvspan_range_t& range) {
    const kvspan_segment_t segment{
        range.memory, window_.get(), range.offset, 0, range.bytes, 1, 0, 0};
    const auto there = copy(LaneId::download, segment);
    if (!there) {
      return tl::unexpected(there.error());
    }
    const auto* const from = static_cast<const std::byte*>(backend().map(window_).value());
    return Bytes(from, from + range.bytes);
  }

  Result<void> write(const kvspan_range_t& range, const Bytes& bytes) {
    std::memcpy(backend().map(window_).value(), bytes.data(), bytes.size());
    const kvspan_segment_t segment{
        window_.get(), range.memory, 0, range.offset, range.bytes, 1, 0, 0};
    return copy(LaneId::upload, segment);
  }

 private:
  std::unique_ptr<Arena> make() {
    auto memory = backend().allocate(KVSPAN_MEMORY_DEVICE, kArenaBytes);
    const auto* const table = backend().tables().memory;
    return std::make_unique<Arena>(std::move(
        Arena::create({memory->detach(), kArenaBytes}, 256, [table](kvspan_memory_t* parent) {
          EXPECT_EQ(table->release(parent, nullptr), KVSPAN_OK) << "work still names it";
        }).value()));
  }

  Result<Moment> moment(LaneId lane, const SubmitCall& call) {
    const auto value = lanes_->submit(lane, {}, call);
    return value ? Result<Moment>(Moment::at(lane, *value)) : tl::unexpected(value.error());
  }

  Result<void> copy(LaneId lane, const kvspan_segment_t& segment) {
    const auto end = moment(lane, [&](auto* queue, const auto* submit, auto* error) {
      return backend().tables().copy->copy(queue, &segment, 1, submit, error);
    });
    return end ? wait_until(*lanes_, *end) : tl::unexpected(end.error());
  }

  StubRig rig_;
  DeviceMemory window_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Arena> arena_;
};

class DeviceTenant : public TransitionConsumer {
 public:
  DeviceTenant(std::string called, std::vector<std::uint64_t> wanted, Card& card)
      : name_(std::move(called)), wanted_(std::move(wanted)), card_(&card) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] Result<std::unique_ptr<Preparation>> prepare(const StageChange&) override;

  // Work that is under way until somebody waits for it.
  Result<void> scribble(std::uint64_t id, std::byte value) {
    const auto end = card_->fill(leases_.at(id).range(), value);
    if (!end) {
      return tl::unexpected(end.error());
    }
    Completion completion(card_->lanes());
    if (auto recorded = completion.record(*end); !recorded) {
      return recorded;
    }
    completions_.insert_or_assign(id, std::move(completion));
    return {};
  }

  // What each region holds, everything settled.
  [[nodiscard]] std::map<std::uint64_t, Bytes> contents() {
    std::map<std::uint64_t, Bytes> of;
    for (const auto& [id, lease] : leases_) {
      if (const auto written = completions_.find(id); written != completions_.end()) {
        EXPECT_TRUE(written->second.settle().has_value());
      }
      of[id] = card_->read(lease.range()).value();
    }
    return of;
  }

 private:
  friend class DeviceMove;

  std::string name_;
  std::vector<std::uint64_t> wanted_;
  Card* card_;
  std::map<std::uint64_t, Lease> leases_;
  std::map<std::uint64_t, Completion> completions_;
};

class DeviceMove : public Preparation {
 public:
  explicit DeviceMove(DeviceTenant& of) : tenant_(&of) {}

  Result<void> can_restore() const override { return {}; }

  Result<void> step(TransitionStep step, const StageChange& change) override {
    const ArenaChange& arena = change.arenas.front();
    const bool back = change.direction == TransitionDirection::back;
    switch (step) {
      case TransitionStep::drain:
        return drain(back);
      case TransitionStep::invalidate:
        return back ? tenant_->card_->mend() : save(arena);
      case TransitionStep::release:
        for (const Binding& gone : arena.changing()) {
          tenant_->leases_.erase(gone.region.id);
        }
        return {};
      case TransitionStep::acquire:
        return acquire(arena);
      case TransitionStep::bind:
        return back ? restore() : begin_new(arena);
      case TransitionStep::activate:
        return drain(back);
      case TransitionStep::prepare:
      case TransitionStep::quiesce:
      case TransitionStep::commit:
        break;
    }
    return {};
  }

 private:
  // Going back, whether work succeeded does not matter, only that it is over.
  Result<void> drain(bool back) {
    for (auto& [id, completion] : tenant_->completions_) {
      if (auto settled = completion.settle(); !settled && !back) {
        return settled;
      }
    }
    tenant_->completions_.clear();
    return {};
  }

  Result<void> save(const ArenaChange& arena) {
    for (const auto& [id, lease] : tenant_->leases_) {
      if (!arena.stays(lease.region())) {
        auto bytes = tenant_->card_->read(lease.range());
        if (!bytes) {
          return tl::unexpected(bytes.error());
        }
        saved_[id] = std::move(*bytes);
      }
    }
    return {};
  }

  Result<void> acquire(const ArenaChange& arena) {
    for (const std::uint64_t id : tenant_->wanted_) {
      if (!tenant_->leases_.contains(id) && arena.arena->find(id)) {
        auto lease = arena.arena->acquire(id);
        if (!lease) {
          return tl::unexpected(lease.error());
        }
        tenant_->leases_.emplace(id, std::move(*lease));
      }
    }
    return {};
  }

  Result<void> begin_new(const ArenaChange& arena) {
    for (const auto& [id, lease] : tenant_->leases_) {
      if (!arena.stays(lease.region())) {
        if (auto begun = tenant_->scribble(id, static_cast<std::byte>(0x80 + id)); !begun) {
          return begun;
        }
      }
    }
    return {};
  }

  Result<void> restore() {
    for (const auto& [id, bytes] : saved_) {
      if (auto done = tenant_->card_->write(tenant_->leases_.at(id).range(), bytes); !done) {
        return done;
      }
    }
    return {};
  }

  DeviceTenant* tenant_;
  std::map<std::uint64_t, Bytes> saved_;
};

Result<std::unique_ptr<Preparation>> DeviceTenant::prepare(const StageChange&) {
  return std::make_unique<DeviceMove>(*this);
}

// Resource 1 is kept, 2 grows over where 3 was, 4 exists in stage 2 only.
StagePlan stages() {
  StageRequest request;
  request.domains = {{kDomain, bit(MemoryKind::device), 0}};
  for (std::uint64_t id = 1; id <= 4; ++id) {
    request.resources.push_back(
        {id, kDomain, MemoryKind::device, id == 1 ? Contents::kept : Contents::discarded});
  }
  const auto of = [](std::uint64_t id, std::uint64_t bytes) {
    return Requirement{id, bytes, bytes, 256, MemoryAccess::read_write};
  };
  request.inputs = {1};
  request.stages = {{1, {}, {of(1, 4096), of(2, 8192), of(3, 8192)}},
                    {2, {}, {of(1, 4096), of(2, 12288), of(3, 8192), of(4, 1024)}}};
  return plan_stages(request).value();
}

class Rig {
 public:
  explicit Rig(std::uint64_t seed)
      : card(seed),
        history("history", {1}, card),
        scratch("scratch", {2, 3}, card),
        draft("draft", {4}, card),
        change(std::move(Transition::create({{kDomain, MemoryKind::device, &card.arena(), 256}},
                                            {&history, &scratch, &draft})
                             .value())) {}

  [[nodiscard]] Result<void> enter(std::uint64_t stage) {
    const auto prepared = change.prepare(stages().stage(stage).value(), LayoutSizes::minimum);
    return prepared ? change.activate() : tl::unexpected(prepared.error());
  }

  void scribble_all() {
    ASSERT_TRUE(history.scribble(1, std::byte{0x11}).has_value());
    ASSERT_TRUE(scratch.scribble(2, std::byte{0x22}).has_value());
    ASSERT_TRUE(scratch.scribble(3, std::byte{0x33}).has_value());
  }

  void expect(DeviceTenant& tenant, std::uint64_t id, std::uint64_t bytes, int value) {
    EXPECT_EQ(tenant.contents().at(id), Bytes(bytes, static_cast<std::byte>(value))) << id;
  }

  void expect_first() {
    expect(history, 1, 4096, 0x11);
    expect(scratch, 2, 8192, 0x22);
    expect(scratch, 3, 8192, 0x33);
    EXPECT_TRUE(draft.contents().empty());
  }

  void expect_second() {
    expect(history, 1, 4096, 0x11);
    expect(scratch, 2, 12288, 0x82);
    expect(scratch, 3, 8192, 0x83);
    expect(draft, 4, 1024, 0x84);
  }

  Card card;
  DeviceTenant history;
  DeviceTenant scratch;
  DeviceTenant draft;
  Transition change;
};

TEST(DeviceTransition, WorkUnderWayIsOverBeforeItsMemoryGoes) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(seed);
    ASSERT_TRUE(rig.enter(1).has_value());
    rig.scribble_all();
    const auto changed = rig.enter(2);
    ASSERT_TRUE(changed.has_value()) << changed.error().message;
    rig.expect_second();
  }
}

TEST(DeviceTransition, AnySubmitThatFailsIsTakenBackToTheByte) {
  int failed = 0;
  int passed = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (std::uint64_t nth = 1; nth <= 8; ++nth) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", submit " + std::to_string(nth));
      Rig rig(seed);
      ASSERT_TRUE(rig.enter(1).has_value());
      rig.scribble_all();
      rig.card.plant(nth);
      const auto changed = rig.enter(2);
      rig.card.clear();
      if (changed) {
        ++passed;
        rig.expect_second();
        continue;
      }
      ++failed;
      ASSERT_EQ(rig.change.state(), TransitionState::failed);
      const auto back = rig.change.recover();
      ASSERT_TRUE(back.has_value()) << back.error().message;
      rig.expect_first();
      const auto again = rig.enter(2);
      ASSERT_TRUE(again.has_value()) << again.error().message;
      rig.expect_second();
    }
  }
  EXPECT_GT(failed, 50);
  EXPECT_GT(passed, 20);
}

}  // namespace
}  // namespace kvspan::test
