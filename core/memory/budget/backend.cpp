// SPDX-License-Identifier: Apache-2.0
// The least first where anything is taken: its layout and what the backend takes beside it are the
// minimum, exactly. Above that a reserve is looked for that is as much as the backend takes beside
// the plan in the rest. Larger plans make it take more, as a rule; where that is not so, the least
// still fits.
#include "memory/budget/backend.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// Each makes the device ready once. Most backends take as much beside any plan: then the second is
// right.
constexpr int kTriesMax = 8;

class BesideBackend {
 public:
  explicit BesideBackend(PlanRequest request)
      : ask_(std::exchange(request.backend_bytes, nullptr)),
        limited_(std::move(request)),
        unlimited_(limited_) {
    unlimited_.pinnable_bytes = UINT64_MAX;
    unlimited_.allocation_bytes_max = UINT64_MAX;
  }

  [[nodiscard]] Result<Plan> find() {
    const std::uint64_t arena_bytes = unlimited_.arena_bytes;
    auto alone = planned(unlimited_, arena_bytes, 0);
    const bool is_short = !alone && alone.error().code == Errc::device_memory;
    if (!alone && !is_short) {
      return alone;
    }
    std::uint64_t first_bytes = 0;
    if (alone) {
      const auto taken = ask_(*alone);
      if (!taken) {
        return tl::unexpected(taken.error());
      }
      first_bytes = *taken;
      if (first_bytes == 0) {
        return limited(std::move(*alone), arena_bytes, 0);
      }
    }
    auto least = tried(0, 0);
    if (!least) {
      return tl::unexpected(std::move(least).error());
    }
    least_ = std::move(*least);
    if (auto enough = planned(unlimited_, arena_bytes, least_.taken_bytes);
        !enough || arena_bytes == 0) {
      return enough ? limited(std::move(*enough), 0, least_.taken_bytes) : enough;
    }
    return largest(first_bytes);
  }

 private:
  struct Tried {
    Plan plan;
    std::uint64_t arena_bytes = 0;
    std::uint64_t reserved_bytes = 0;  // for the backend
    std::uint64_t taken_bytes = 0;     // by it
  };

  [[nodiscard]] static Result<Plan> planned(PlanRequest request,
                                            std::uint64_t arena_bytes,
                                            std::uint64_t reserved_bytes) {
    request.arena_bytes = arena_bytes;
    if (reserved_bytes != 0) {
      request.demands.push_back({"", "backend", reserved_bytes});
    }
    return plan(request);
  }

  [[nodiscard]] Result<Tried> tried(std::uint64_t arena_bytes, std::uint64_t reserved_bytes) const {
    auto found = planned(unlimited_, arena_bytes, reserved_bytes);
    if (!found) {
      return tl::unexpected(std::move(found).error());
    }
    const auto taken = ask_(*found);
    if (!taken) {
      return tl::unexpected(taken.error());
    }
    return Tried{std::move(*found), arena_bytes, reserved_bytes, *taken};
  }

  // The arena holds the least and what the backend takes beside it.
  [[nodiscard]] Result<Plan> largest(std::uint64_t first_bytes) const {
    const std::uint64_t arena_bytes = unlimited_.arena_bytes;
    std::uint64_t low = least_.taken_bytes;
    std::uint64_t high = arena_bytes - least_.plan.total_bytes();
    std::uint64_t reserve = std::clamp(first_bytes, low, high);
    std::optional<Tried> best;
    bool is_last = false;  // asked about
    for (int tries = 0; tries < kTriesMax && low <= high; ++tries) {
      auto next = tried(arena_bytes, reserve);
      if (!next) {
        return tl::unexpected(std::move(next).error());
      }
      const std::uint64_t taken = next->taken_bytes;
      is_last = taken <= reserve;
      if (is_last) {
        best = std::move(*next);
        if (taken == reserve || reserve == low) {
          break;
        }
        high = reserve - 1;
        reserve = std::max(low, taken);
      } else {
        low = reserve + 1;
        reserve = low + (high - std::min(high, low)) / 2;
      }
    }
    if (!best) {
      best = least_;
      best->reserved_bytes = least_.taken_bytes;
    }
    if (!is_last) {
      if (auto again = asked_again(*best); !again) {
        return tl::unexpected(std::move(again).error());
      }
    }
    return limited(std::move(best->plan), best->arena_bytes, best->reserved_bytes);
  }

  [[nodiscard]] Result<void> asked_again(const Tried& best) const {
    const auto taken = ask_(best.plan);
    if (!taken) {
      return tl::unexpected(taken.error());
    }
    if (*taken <= best.reserved_bytes) {
      return {};
    }
    return tl::unexpected(Error{Errc::internal,
                                "the backend took " + std::to_string(best.taken_bytes) +
                                    " bytes for itself and then, for the same, " +
                                    std::to_string(*taken) + "; report this bug of the plugin",
                                *taken,
                                best.reserved_bytes,
                                *taken - best.reserved_bytes,
                                "backend"});
  }

  // What was found, or why the request's limits do not allow it.
  [[nodiscard]] Result<Plan> limited(Plan found,
                                     std::uint64_t arena_bytes,
                                     std::uint64_t reserved_bytes) const {
    const bool is_allowed = found.pinned_bytes <= limited_.pinnable_bytes &&
                            found.regions.total_bytes() <= limited_.allocation_bytes_max;
    if (!is_allowed || found.reserved_bytes != reserved_bytes + of_others()) {
      auto again = planned(limited_, arena_bytes, reserved_bytes);
      if (!again) {
        return again;
      }
      found = std::move(*again);
    }
    if (reserved_bytes != 0) {
      found.minimum_arena_bytes = least_.plan.total_bytes() + least_.taken_bytes;
    }
    return found;
  }

  [[nodiscard]] std::uint64_t of_others() const {
    std::uint64_t bytes = 0;
    for (const Demand& demand : limited_.demands) {
      bytes += demand.phase.empty() ? demand.size_bytes : 0;
    }
    return bytes;
  }

  BackendBytes ask_;
  PlanRequest limited_;
  PlanRequest unlimited_;
  Tried least_;
};

}  // namespace

Result<Plan> plan_beside_backend(PlanRequest request) {
  return BesideBackend(std::move(request)).find();
}

}  // namespace kvspan
