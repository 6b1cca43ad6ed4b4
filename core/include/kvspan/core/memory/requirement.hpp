// SPDX-License-Identifier: Apache-2.0
// What serial stages of work want of memory, and what of it is alive in which stage: metadata only.
// Not where it lies (stage_layout.hpp) and not the bytes of a geometry (budget.hpp).
// Read next: stage_layout.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvspan {

// Kinds of memory. A kind is exact: nothing is ever placed in another one instead.
enum class MemoryKind : std::uint8_t { host, pinned, device, managed };
inline constexpr std::uint32_t kMemoryKindCount = 4;

[[nodiscard]] const char* name(MemoryKind kind);

[[nodiscard]] constexpr std::uint32_t bit(MemoryKind kind) {
  return 1U << static_cast<std::uint32_t>(kind);
}

// What a domain can do with its memory, bits.
inline constexpr std::uint32_t kMemoryMaps = 1U << 0;      // the host reaches it at an address
inline constexpr std::uint32_t kMemoryImports = 1U << 1;   // somebody else's bytes can be named
inline constexpr std::uint32_t kMemoryCaptures = 1U << 2;  // captured executables can be retired
inline constexpr std::uint32_t kMemoryCapabilities = kMemoryMaps | kMemoryImports | kMemoryCaptures;

// A place that has memory: a device, the host.
struct MemoryDomain {
  std::uint64_t id = 0;
  std::uint32_t kinds = 0;         // bit(MemoryKind)
  std::uint32_t capabilities = 0;  // kMemory*
};

// What becomes of a resource's contents between stages.
enum class Contents : std::uint8_t {
  discarded,  // never survive a stage
  kept,       // from the stage that writes them to the last that uses or hands them on
  rebuilt     // survive while every stage declares them; otherwise somebody writes them again
};

struct MemoryResource {
  std::uint64_t id = 0;
  std::uint64_t domain = 0;
  MemoryKind kind = MemoryKind::device;
  Contents contents = Contents::discarded;

  friend bool operator==(const MemoryResource&, const MemoryResource&) = default;
};

enum class MemoryAccess : std::uint8_t { none, read, write, read_write };

// One stage's need of one resource.
struct Requirement {
  std::uint64_t resource = 0;
  std::uint64_t minimum_bytes = 0;    // 0: the stage does without
  std::uint64_t preferred_bytes = 0;  // >= minimum_bytes
  std::uint64_t alignment = 1;        // a power of two
  MemoryAccess access = MemoryAccess::none;
  std::uint32_t capabilities = 0;  // kMemory*, of the resource's domain

  friend bool operator==(const Requirement&, const Requirement&) = default;
};

// Stages run one after another, in the order of the list.
struct MemoryStage {
  std::uint64_t id = 0;
  std::vector<std::uint64_t> after = {};  // earlier stages that it depends on
  std::vector<Requirement> requirements = {};
};

struct StageRequest {
  std::vector<MemoryDomain> domains = {};
  std::vector<MemoryResource> resources = {};
  std::vector<MemoryStage> stages = {};
  std::vector<std::uint64_t> inputs = {};   // resources that hold contents before the first stage
  std::vector<std::uint64_t> outputs = {};  // resources whose contents are used after the last
};

// One resource that is alive in one stage.
struct LiveResource {
  MemoryResource resource;
  Requirement requirement;
  bool holds_contents = false;  // before the stage: its bytes must not be taken for anything else

  friend bool operator==(const LiveResource&, const LiveResource&) = default;
};

struct LiveStage {
  std::uint64_t id = 0;
  std::vector<LiveResource> live = {};  // by resource id

  friend bool operator==(const LiveStage&, const LiveStage&) = default;
};

// What is alive when. A value: nothing of the request is referred to.
class StagePlan {
 public:
  explicit StagePlan(std::vector<LiveStage> stages) : stages_(std::move(stages)) {}

  [[nodiscard]] std::span<const LiveStage> stages() const { return stages_; }

  // Errc::not_found: no stage has this id.
  [[nodiscard]] Result<LiveStage> stage(std::uint64_t id) const;

  friend bool operator==(const StagePlan&, const StagePlan&) = default;

 private:
  std::vector<LiveStage> stages_;
};

// Checks a request and works out what is alive in each stage. A resource that no stage declares
// takes nothing and is not held against its domain. Pure: the same request has the same answer.
// Errc::invalid_argument: the request contradicts itself, anywhere in it; correct what component
// and message name (stage, domain, resource, dependency). Only then Errc::unsupported: a domain
// lacks the kind or a capability of a resource that is alive; ask for another.
[[nodiscard]] Result<StagePlan> plan_stages(const StageRequest& request);

}  // namespace kvspan
