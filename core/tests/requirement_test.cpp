// SPDX-License-Identifier: Apache-2.0
// plan_stages(): what a request must not say, in which order it is told so, and what lives when.
// The lifetimes are compared with an oracle over random requests.
#include "kvspan/core/memory/requirement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kCard = 1;

MemoryDomain card() {
  return {kCard, bit(MemoryKind::device) | bit(MemoryKind::pinned), kMemoryMaps};
}

MemoryResource resource(std::uint64_t id, Contents contents) {
  return {id, kCard, MemoryKind::device, contents};
}

Requirement need(std::uint64_t id, MemoryAccess access) {
  return {id, 100, 200, 16, access};
}

// Resource 1 is written by stage 1, carried over 2, read by 3; resource 2 is scratch of each.
StageRequest sound() {
  StageRequest request;
  request.domains = {card()};
  request.resources = {resource(1, Contents::kept), resource(2, Contents::discarded)};
  const Requirement scratch = need(2, MemoryAccess::read_write);
  request.stages = {{1, {}, {need(1, MemoryAccess::write), scratch}},
                    {2, {1}, {need(1, MemoryAccess::none), scratch}},
                    {3, {1, 2}, {need(1, MemoryAccess::read)}}};
  return request;
}

void expect_refusal(const StageRequest& request, Errc code, const std::string& component) {
  const auto planned = plan_stages(request);
  ASSERT_FALSE(planned.has_value()) << component << " was accepted";
  EXPECT_EQ(planned.error().code, code) << planned.error().message;
  EXPECT_EQ(planned.error().component, component) << planned.error().message;
  EXPECT_EQ(planned.error().message.rfind(component, 0), 0U) << planned.error().message;
}

using Change = std::function<void(StageRequest&)>;

struct Wrong {
  std::string component;
  Change change;
};

void expect_all(const std::vector<Wrong>& cases, Errc code = Errc::invalid_argument) {
  for (const Wrong& wrong : cases) {
    StageRequest request = sound();
    wrong.change(request);
    SCOPED_TRACE(wrong.component);
    expect_refusal(request, code, wrong.component);
  }
}

std::vector<std::uint64_t> live_ids(const StageRequest& request, std::uint64_t stage) {
  std::vector<std::uint64_t> ids;
  const auto planned = plan_stages(request);
  EXPECT_TRUE(planned.has_value()) << planned.error().message;
  const auto found = planned ? planned->stage(stage) : tl::unexpected(planned.error());
  for (const LiveResource& live : found ? found->live : std::vector<LiveResource>()) {
    ids.push_back(live.resource.id);
  }
  return ids;
}

TEST(Requirement, NothingAtAllIsARequest) {
  EXPECT_TRUE(plan_stages({}).value().stages().empty());
  EXPECT_TRUE(plan_stages(sound()).has_value());
  EXPECT_EQ(plan_stages(sound())->stage(9).error().code, Errc::not_found);
}

TEST(Requirement, DomainsAreListedOnceAndSound) {
  expect_all({{"domain 1", [](StageRequest& r) { r.domains.push_back(card()); }},
              {"domain 1", [](StageRequest& r) { r.domains[0].kinds = 0; }},
              {"domain 1", [](StageRequest& r) { r.domains[0].kinds |= 1U << 7; }},
              {"domain 1", [](StageRequest& r) { r.domains[0].capabilities = 1U << 9; }},
              {"resource 1", [](StageRequest& r) { r.domains.clear(); }}});
}

TEST(Requirement, ResourcesAreListedOnceAndSound) {
  const auto other = static_cast<MemoryKind>(9);
  expect_all(
      {{"resource 2", [](StageRequest& r) { r.resources.push_back(r.resources[1]); }},
       {"resource 2", [](StageRequest& r) { r.resources[1].domain = 7; }},
       {"resource 2", [=](StageRequest& r) { r.resources[1].kind = other; }},
       {"resource 2", [](StageRequest& r) { r.resources[1].contents = static_cast<Contents>(9); }},
       {"stage 1, resource 2", [](StageRequest& r) { r.resources.pop_back(); }}});
}

// Everything that one need can have wrong with it, wherever it stands.
TEST(Requirement, NeedsAreSound) {
  const std::string thing = "stage 2, resource 2";
  const auto in = [](StageRequest& r) -> Requirement& { return r.stages[1].requirements[1]; };
  const auto nonsense = static_cast<MemoryAccess>(9);
  expect_all({{thing, [=](StageRequest& r) { in(r).minimum_bytes = 201; }},
              {thing, [=](StageRequest& r) { in(r).alignment = 0; }},
              {thing, [=](StageRequest& r) { in(r).alignment = 24; }},
              {thing, [=](StageRequest& r) { in(r).preferred_bytes = UINT64_MAX; }},
              {thing, [=](StageRequest& r) { in(r).access = nonsense; }},
              {thing, [=](StageRequest& r) { in(r).capabilities = 1U << 20; }},
              {thing, [=](StageRequest& r) { in(r).minimum_bytes = in(r).preferred_bytes = 0; }},
              {thing, [=](StageRequest& r) { r.stages[1].requirements.push_back(in(r)); }}});
}

TEST(Requirement, StagesDependOnEarlierOnesOnly) {
  expect_all({{"stage 1", [](StageRequest& r) { r.stages[1].id = 1; }},
              {"stage 2", [](StageRequest& r) { r.stages[1].after = {2}; }},
              {"stage 2",
               [](StageRequest& r) {
                 r.stages[1].after = {1, 1};
               }},
              {"stage 2", [](StageRequest& r) { r.stages[1].after = {3}; }},
              {"stage 2", [](StageRequest& r) { r.stages[1].after = {77}; }}});
  // In the order of the list, whatever the dependencies would allow.
  StageRequest request = sound();
  std::swap(request.stages[1], request.stages[2]);
  expect_refusal(request, Errc::invalid_argument, "stage 3");
}

TEST(Requirement, InputsAndOutputsAreListedResources) {
  expect_all({{"inputs, resource 9", [](StageRequest& r) { r.inputs = {9}; }},
              {"inputs, resource 1",
               [](StageRequest& r) {
                 r.inputs = {1, 1};
               }},
              {"inputs, resource 2", [](StageRequest& r) { r.inputs = {2}; }},
              {"outputs, resource 9", [](StageRequest& r) { r.outputs = {9}; }},
              {"outputs, resource 1",
               [](StageRequest& r) {
                 r.outputs = {1, 1};
               }},
              {"outputs, resource 2", [](StageRequest& r) { r.outputs = {2}; }}});
}

// A stage that may touch what is kept is not the same as one that keeps it.
TEST(Requirement, KeptContentsAreDeclaredUntilTheirLastUse) {
  StageRequest request = sound();
  request.stages[1].requirements.erase(request.stages[1].requirements.begin());
  expect_refusal(request, Errc::invalid_argument, "stage 2, resource 1");
  request = sound();  // kept, not read: alive all the same, with its contents
  EXPECT_EQ(live_ids(request, 2), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_TRUE(plan_stages(request)->stage(2)->live[0].holds_contents);
  EXPECT_FALSE(plan_stages(request)->stage(1)->live[0].holds_contents);
}

TEST(Requirement, ImportedContentsAreKeptBeforeTheirFirstUse) {
  StageRequest request = sound();
  request.inputs = {1};
  request.stages[0].requirements[0].access = MemoryAccess::none;
  EXPECT_TRUE(plan_stages(request)->stage(1)->live[0].holds_contents);
  request.stages[0].requirements.erase(request.stages[0].requirements.begin());
  expect_refusal(request, Errc::invalid_argument, "stage 1, resource 1");
}

TEST(Requirement, ContentsLiveToTheirLastUseOrOut) {
  StageRequest request = sound();
  request.stages.push_back({4, {}, {}});
  EXPECT_EQ(live_ids(request, 4), std::vector<std::uint64_t>());  // read for the last time in 3
  request.outputs = {1};
  expect_refusal(request, Errc::invalid_argument, "stage 4, resource 1");
  request.stages[3].requirements = {need(1, MemoryAccess::none)};
  EXPECT_EQ(live_ids(request, 4), std::vector<std::uint64_t>{1});
}

// As long as somebody declares it, even behind the last use.
TEST(Requirement, DeclaredIsAlive) {
  StageRequest request = sound();
  request.stages.push_back({4, {}, {need(1, MemoryAccess::none)}});
  EXPECT_EQ(live_ids(request, 4), std::vector<std::uint64_t>{1});
  EXPECT_TRUE(plan_stages(request)->stage(4)->live[0].holds_contents);
}

TEST(Requirement, ReadsNeedContents) {
  StageRequest request = sound();
  request.stages[0].requirements[0].access = MemoryAccess::none;
  expect_refusal(request, Errc::invalid_argument, "stage 3, resource 1");
  request = sound();  // scratch is written where it is read
  request.stages[1].requirements[1].access = MemoryAccess::read;
  expect_refusal(request, Errc::invalid_argument, "stage 2, resource 2");
  request = sound();  // rebuilt contents are gone where one stage goes without
  request.resources[0].contents = Contents::rebuilt;
  EXPECT_TRUE(plan_stages(request).has_value());
  request.stages[1].requirements.erase(request.stages[1].requirements.begin());
  expect_refusal(request, Errc::invalid_argument, "stage 3, resource 1");
  request.stages[2].requirements[0].access = MemoryAccess::write;
  EXPECT_TRUE(plan_stages(request).has_value());
}

TEST(Requirement, OutputsHoldContents) {
  StageRequest request = sound();
  request.resources.push_back(resource(3, Contents::kept));
  request.outputs = {3};
  for (MemoryStage& stage : request.stages) {
    stage.requirements.push_back(need(3, MemoryAccess::none));
  }
  expect_refusal(request, Errc::invalid_argument, "outputs, resource 3");
  request.stages[2].requirements.back().access = MemoryAccess::write;
  EXPECT_TRUE(plan_stages(request).has_value());
}

TEST(Requirement, OnlyWhatLivesIsHeldAgainstItsDomain) {
  StageRequest request = sound();
  request.resources.push_back({9, kCard, MemoryKind::managed, Contents::kept});
  EXPECT_TRUE(plan_stages(request).has_value());
  request.stages[1].requirements.push_back(need(9, MemoryAccess::write));
  expect_refusal(request, Errc::unsupported, "stage 2, resource 9");
  EXPECT_THAT(plan_stages(request).error().message, HasSubstr("managed"));
}

// A domain's own kind and capabilities, not those of another one or of all together.
TEST(Requirement, KindsAreExactAndDomainsTheirOwn) {
  StageRequest request = sound();
  request.domains.push_back({2, bit(MemoryKind::host), kMemoryCapabilities});
  request.resources[1].domain = 2;
  expect_refusal(request, Errc::unsupported, "stage 1, resource 2");
  request.resources[1].kind = MemoryKind::host;
  request.stages[0].requirements[1].capabilities = kMemoryCaptures;
  EXPECT_TRUE(plan_stages(request).has_value());
  request.stages[0].requirements[0].capabilities = kMemoryCaptures;  // of domain 1
  expect_refusal(request, Errc::unsupported, "stage 1, resource 1");
}

TEST(Requirement, EveryKindGoesWithEveryContents) {
  for (std::uint32_t kind = 0; kind < kMemoryKindCount; ++kind) {
    for (const Contents contents : {Contents::discarded, Contents::kept, Contents::rebuilt}) {
      StageRequest request;
      request.domains = {{kCard, 1U << kind, 0}};
      request.resources = {{1, kCard, static_cast<MemoryKind>(kind), contents}};
      request.stages = {{1, {}, {need(1, MemoryAccess::write)}}};
      EXPECT_TRUE(plan_stages(request).has_value());
      request.domains[0].kinds = (1U << kMemoryKindCount) - 1 - (1U << kind);
      expect_refusal(request, Errc::unsupported, "stage 1, resource 1");
    }
  }
}

TEST(Requirement, MalformedComesBeforeUnsupported) {
  StageRequest request = sound();
  request.resources[0].kind = MemoryKind::managed;  // stage 1 wants what is not there
  expect_refusal(request, Errc::unsupported, "stage 1, resource 1");
  request.stages[2].requirements[0].alignment = 3;  // but a later stage makes no sense
  expect_refusal(request, Errc::invalid_argument, "stage 3, resource 1");
  request = sound();
  request.resources[0].kind = MemoryKind::managed;
  request.stages[1].requirements.erase(request.stages[1].requirements.begin());
  expect_refusal(request, Errc::invalid_argument, "stage 2, resource 1");
}

// ---- the oracle: for each stage, look at all others ---------------------------------------------

StageRequest random_request(std::mt19937_64& random) {
  StageRequest request;
  request.domains = {card()};
  const std::uint64_t resources = 1 + random() % 4;
  for (std::uint64_t id = 1; id <= resources; ++id) {
    request.resources.push_back(resource(id, static_cast<Contents>(random() % 3)));
    if (request.resources.back().contents != Contents::discarded) {
      if (random() % 4 == 0) {
        request.inputs.push_back(id);
      }
      if (random() % 4 == 0) {
        request.outputs.push_back(id);
      }
    }
  }
  const std::uint64_t stages = random() % 5;
  for (std::uint64_t stage = 1; stage <= stages; ++stage) {
    request.stages.push_back({stage, {}, {}});
    for (std::uint64_t id = resources; id >= 1; --id) {
      if (random() % 5 != 0) {
        request.stages.back().requirements.push_back(
            need(id, static_cast<MemoryAccess>(random() % 4)));
      }
    }
  }
  return request;
}

// Whether `id` holds contents when stage `at` begins, by the sentence of each kind of contents.
bool holds(const StageRequest& request, const MemoryResource& of, std::size_t at) {
  bool written = std::count(request.inputs.begin(), request.inputs.end(), of.id) != 0;
  for (std::size_t stage = 0; stage < at; ++stage) {
    bool there = false;
    for (const Requirement& each : request.stages[stage].requirements) {
      if (each.resource == of.id) {
        there = true;
        written |= each.access == MemoryAccess::write || each.access == MemoryAccess::read_write;
      }
    }
    written &= there && of.contents != Contents::discarded;
  }
  return written;
}

bool sensible(const StageRequest& request, const MemoryResource& of) {
  const bool is_output = std::count(request.outputs.begin(), request.outputs.end(), of.id) != 0;
  if (is_output && !holds(request, of, request.stages.size())) {
    return false;
  }
  for (std::size_t stage = 0; stage < request.stages.size(); ++stage) {
    bool there = false;
    bool later = is_output;
    for (std::size_t other = stage; other < request.stages.size(); ++other) {
      for (const Requirement& each : request.stages[other].requirements) {
        there |= each.resource == of.id && other == stage;
        later |= each.resource == of.id && other > stage && each.access != MemoryAccess::none;
        if (each.resource == of.id && other == stage && each.access == MemoryAccess::read &&
            !holds(request, of, stage)) {
          return false;
        }
      }
    }
    if (!there && later && of.contents == Contents::kept && holds(request, of, stage)) {
      return false;
    }
  }
  return true;
}

TEST(Requirement, AgreesWithAnOracleAndRepeatsItself) {
  constexpr std::uint64_t kSeed = 20261130;
  std::mt19937_64 random(kSeed);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    const StageRequest request = random_request(random);
    const bool right = std::all_of(request.resources.begin(),
                                   request.resources.end(),
                                   [&](const auto& each) { return sensible(request, each); });
    const auto planned = plan_stages(request);
    ASSERT_EQ(planned.has_value(), right) << (planned ? "" : planned.error().message);
    ++(right ? accepted : refused);
    if (!planned) {
      EXPECT_EQ(planned.error().message, plan_stages(request).error().message);
      continue;
    }
    ASSERT_EQ(*planned, plan_stages(request).value());
    for (std::size_t stage = 0; stage < request.stages.size(); ++stage) {
      std::set<std::uint64_t> ids;
      for (const LiveResource& live : planned->stages()[stage].live) {
        ids.insert(live.resource.id);
        ASSERT_EQ(live.holds_contents, holds(request, live.resource, stage));
      }
      ASSERT_EQ(ids.size(), request.stages[stage].requirements.size());
    }
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace kvspan
