// SPDX-License-Identifier: Apache-2.0
// Contents through serial stages: who writes, who may read, and how long bytes are taken. The
// declarations say it; this only finds where they contradict each other.
#include "kvspan/core/memory/requirement.hpp"

#include "memory/requirement/form.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace kvspan {
namespace {

bool reads(MemoryAccess access) {
  return access == MemoryAccess::read || access == MemoryAccess::read_write;
}

bool writes(MemoryAccess access) {
  return access == MemoryAccess::write || access == MemoryAccess::read_write;
}

std::string in_stage(std::uint64_t stage, std::uint64_t resource) {
  return "stage " + std::to_string(stage) + ", resource " + std::to_string(resource);
}

const Requirement* declared(const MemoryStage& stage, std::uint64_t resource) {
  const auto found = std::find_if(
      stage.requirements.begin(), stage.requirements.end(), [resource](const Requirement& need) {
        return need.resource == resource;
      });
  return found == stage.requirements.end() ? nullptr : &*found;
}

// The contents of one resource on their way through all stages.
class ContentsWalk {
 public:
  ContentsWalk(const StageRequest& request, const MemoryResource& resource)
      : request_(&request), resource_(&resource) {
    const auto listed = [&](const std::vector<std::uint64_t>& ids) {
      return std::find(ids.begin(), ids.end(), resource.id) != ids.end();
    };
    is_output_ = listed(request.outputs);
    filled_ = listed(request.inputs);
    for (std::size_t stage = 0; stage < request.stages.size(); ++stage) {
      if (const Requirement* need = declared(request.stages[stage], resource.id)) {
        last_use_ = need->access == MemoryAccess::none ? last_use_ : stage + 1;
      }
    }
    if (is_output_) {
      last_use_ = request.stages.size();
    }
  }

  // Adds the resource to the stages in which it is alive.
  Result<void> walk(std::vector<LiveStage>& stages) {
    for (std::size_t stage = 0; stage < request_->stages.size(); ++stage) {
      if (auto passed = pass(stage, stages[stage]); !passed) {
        return passed;
      }
    }
    if (is_output_ && !filled_) {
      return tl::unexpected(stage_error(Errc::invalid_argument,
                                        "outputs, resource " + std::to_string(resource_->id),
                                        "holds nothing at the end; let a stage write it"));
    }
    return {};
  }

 private:
  Result<void> pass(std::size_t stage, LiveStage& live) {
    const Requirement* need = declared(request_->stages[stage], resource_->id);
    const std::string thing = in_stage(live.id, resource_->id);
    if (need == nullptr) {
      if (filled_ && resource_->contents == Contents::kept && stage < last_use_) {
        return tl::unexpected(
            stage_error(Errc::invalid_argument,
                        thing,
                        "is not declared, though its contents are kept until a later stage or "
                        "beyond the last; declare it there without access"));
      }
      filled_ = false;
      return {};
    }
    // A stage that reads and writes may write first, and does when there is nothing to read.
    if (reads(need->access) && !writes(need->access) && !filled_) {
      return tl::unexpected(stage_error(
          Errc::invalid_argument, thing, "is read, but nothing has written it; write it before"));
    }
    if (writes(need->access) && need->preferred_bytes == 0) {
      return tl::unexpected(
          stage_error(Errc::invalid_argument, thing, "is written, but has no bytes"));
    }
    live.live.push_back({*resource_, *need, filled_});
    filled_ = (filled_ || writes(need->access)) && resource_->contents != Contents::discarded;
    return {};
  }

  const StageRequest* request_;
  const MemoryResource* resource_;
  bool is_output_ = false;
  bool filled_ = false;
  std::size_t last_use_ = 0;  // one past the last stage that touches it; the end for an output
};

}  // namespace

Result<LiveStage> StagePlan::stage(std::uint64_t id) const {
  for (const LiveStage& stage : stages_) {
    if (stage.id == id) {
      return stage;
    }
  }
  return tl::unexpected(stage_error(
      Errc::not_found, "stage " + std::to_string(id), "is not planned; name one of the plan"));
}

Result<StagePlan> plan_stages(const StageRequest& request) {
  auto index = check_form(request);
  if (!index) {
    return tl::unexpected(std::move(index).error());
  }
  std::vector<LiveStage> stages;
  for (const MemoryStage& stage : request.stages) {
    stages.push_back({stage.id});
  }
  for (const auto& [id, resource] : index->resources) {  // by id, so that every stage is sorted
    if (auto walked = ContentsWalk(request, *resource).walk(stages); !walked) {
      return tl::unexpected(std::move(walked).error());
    }
  }
  if (auto supported = check_support(request, *index); !supported) {
    return tl::unexpected(std::move(supported).error());
  }
  return StagePlan(std::move(stages));
}

}  // namespace kvspan
