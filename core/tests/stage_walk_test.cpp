// SPDX-License-Identifier: Apache-2.0
// Random walks from stage to stage: other sizes, other sets of resources, faults at random places
// of the way there and back. After each step either the new stage is whole, or the old one is, or
// all is closed; contents that are kept never change.
#include "transition_rig.hpp"

#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace kvspan::test {
namespace {

struct Counts {
  int entered = 0;
  int unchanged = 0;
  int did_not_fit = 0;
  int gave_up = 0;
  int taken_back = 0;
  int closed = 0;
};

class Walk : public TransitionRig {
 public:
  explicit Walk(std::uint64_t seed) : random_(seed) {
    plan = random_plan();
    for (Tenant* tenant : tenants()) {
      tenant->indifferent = false;
    }
  }

  void TestBody() override {}

  // One change, with or without faults; false when the walk is over.
  bool step(Counts& counts) {
    mark_kept();
    const World before = world();
    const std::uint64_t stage = 1 + random_() % plan.stages().size();
    const LayoutSizes sizes = random_() % 2 == 0 ? LayoutSizes::minimum : LayoutSizes::elastic;
    const LiveStage live = plan.stage(stage).value();
    for (Tenant* tenant : tenants()) {
      tenant->on_step = {};
    }
    const bool faulty = random_() % 2 == 0;
    if (faulty) {
      plant_random(kForward);
    }
    const auto prepared = change.prepare(live, sizes);
    if (!prepared || *prepared == Prepared::unchanged) {
      EXPECT_EQ(change.state(), TransitionState::idle);
      EXPECT_EQ(ledger.preparations, 0);
      expect_same(before, prepared.has_value());
      const bool no_room = !prepared && prepared.error().code == Errc::too_large;
      ++(prepared ? counts.unchanged : no_room ? counts.did_not_fit : counts.gave_up);
      return true;
    }
    const auto target = expected(live, sizes);
    if (change.activate()) {
      ++counts.entered;
      expect_entered(live, target);
      return true;
    }
    return take_back(before, counts);
  }

 private:
  static constexpr auto kForward = TransitionDirection::forward;

  void plant_random(TransitionDirection direction) {
    const std::size_t at = random_() % (kConsumerSteps.size() + 1);
    const bool forward = direction == kForward;
    const TransitionStep step = at < kConsumerSteps.size() || !forward
                                    ? kConsumerSteps[at % kConsumerSteps.size()]
                                    : TransitionStep::prepare;
    const Fault fault = static_cast<Fault>(random_() % (forward ? 4 : 3));
    plant(random_() % 3, step, direction, fault);
  }

  bool take_back(const World& before, Counts& counts) {
    EXPECT_EQ(change.state(), TransitionState::failed);
    const bool twice = random_() % 8 == 0;
    if (twice) {
      plant_random(TransitionDirection::back);
    }
    const auto back = change.recover();
    EXPECT_EQ(back.has_value(), !twice) << (back ? "" : back.error().message);
    EXPECT_EQ(ledger.preparations, 0);
    if (!back) {
      EXPECT_EQ(change.state(), TransitionState::invalid);
      expect_open(false);
      ++counts.closed;
      return false;
    }
    expect_same(before, false);
    ++counts.taken_back;
    return true;
  }

  // Resources 1 to 4 with random sizes; those that are kept are in every stage, as large in each.
  StagePlan random_plan() {
    StageRequest of = request();
    of.stages.clear();
    std::array<Requirement, 4> kept{};
    for (std::size_t index = 0; index < 4; ++index) {
      const bool is_kept = index == 0 || random_() % 3 == 0;
      of.resources[index].contents = is_kept ? Contents::kept : Contents::discarded;
      kept[index] = need(index + 1, MemoryAccess::read_write);
      if (is_kept) {
        kept[index].preferred_bytes = kept[index].minimum_bytes;
        of.inputs.push_back(index + 1);
      }
    }
    const std::uint64_t stages = 2 + random_() % 4;
    for (std::uint64_t stage = 1; stage <= stages; ++stage) {
      MemoryStage made{stage, {}, {}};
      for (std::size_t index = 0; index < 4; ++index) {
        if (of.resources[index].contents == Contents::kept) {
          made.requirements.push_back(kept[index]);
        } else if (random_() % 3 != 0) {
          made.requirements.push_back(need(index + 1, MemoryAccess::write));
        }
      }
      of.stages.push_back(std::move(made));
    }
    auto planned = plan_stages(of);
    EXPECT_TRUE(planned.has_value()) << planned.error().message;
    return planned.value();
  }

  Requirement need(std::uint64_t id, MemoryAccess access) {
    const std::uint64_t minimum = 1 + random_() % 1800;
    return {id, minimum, minimum + random_() % 2000, 64, access};
  }

  // What the arenas must be, from what they are now.
  std::array<std::vector<Region>, 2> expected(const LiveStage& live, LayoutSizes sizes) {
    const std::vector<MemoryPool> pools = {{kDomain, MemoryKind::device, kParentBytes, 64},
                                           {kDomain, MemoryKind::pinned, kParentBytes, 64}};
    std::vector<FixedRegion> fixed;
    for (const MemoryPool& pool : pools) {
      Arena& arena = pool.kind == MemoryKind::device ? device.arena() : pinned.arena();
      for (const LiveResource& each : live.live) {
        const auto region = arena.find(each.resource.id);
        if (each.resource.kind == pool.kind && each.holds_contents && region) {
          fixed.push_back({kDomain, pool.kind, *region});
        }
      }
    }
    auto layout = lay_out(live, pools, fixed, sizes);
    EXPECT_TRUE(layout.has_value());
    return {layout->pools[0].regions, layout->pools[1].regions};
  }

  void mark_kept() {
    kept_.clear();
    for (const LiveResource& each : plan.stages()[0].live) {
      Tenant& tenant = owner(each.resource.id);
      if (each.resource.contents == Contents::kept && tenant.holds(each.resource.id)) {
        const auto value = static_cast<std::byte>(random_() % 256);
        *tenant.bytes_of(each.resource.id) = value;
        kept_.emplace_back(each.resource.id, value);
      }
    }
  }

  Tenant& owner(std::uint64_t id) { return id == 1 ? history : id == 4 ? draft : scratch; }

  // `but_stage`: metadata of a stage with the same layout may be another.
  void expect_same(World before, bool but_stage) {
    if (but_stage) {
      before.stage = change.stage();
    }
    EXPECT_EQ(world(), before);
    expect_open(true);
  }

  void expect_entered(const LiveStage& live, const std::array<std::vector<Region>, 2>& target) {
    EXPECT_EQ(change.state(), TransitionState::idle);
    EXPECT_EQ(change.stage(), live.id);
    EXPECT_EQ(ledger.preparations, 0);
    EXPECT_EQ(device.arena().committed(), target[0]);
    EXPECT_EQ(pinned.arena().committed(), target[1]);
    std::uint64_t leases = 0;
    for (std::uint64_t id = 1; id <= 4; ++id) {
      Arena& arena = id == 3 ? pinned.arena() : device.arena();
      const auto region = arena.find(id);
      EXPECT_EQ(owner(id).holds(id), region.has_value()) << id;
      if (region) {
        ++leases;
        EXPECT_EQ(owner(id).picture().bound.at(id), region->offset) << id;
      }
    }
    EXPECT_EQ(device.arena().lease_count() + pinned.arena().lease_count(), leases);
    for (const auto& [id, value] : kept_) {
      EXPECT_EQ(*owner(id).bytes_of(id), value) << "resource " << id << " is kept";
    }
    expect_open(true);
  }

  std::mt19937_64 random_;
  std::vector<std::pair<std::uint64_t, std::byte>> kept_;
};

TEST(StageWalk, EveryStepIsWholeOrTakenBackOrTheEnd) {
  Counts counts;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    std::shared_ptr<int> releases;
    {
      Walk walk(seed);
      releases = walk.releases();
      for (int step = 0; step < 30; ++step) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
        const bool goes_on = walk.step(counts);
        ASSERT_FALSE(::testing::Test::HasFailure());
        if (!goes_on) {
          break;
        }
      }
    }
    ASSERT_EQ(*releases, 2) << "seed " << seed;
  }
  EXPECT_GT(counts.entered, 2000);
  EXPECT_GT(counts.taken_back, 500);
  EXPECT_GT(counts.gave_up, 100);
  EXPECT_GT(counts.did_not_fit, 50);
  EXPECT_GT(counts.closed, 100);
}

}  // namespace
}  // namespace kvspan::test
