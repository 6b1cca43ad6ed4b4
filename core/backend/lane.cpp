// SPDX-License-Identifier: Apache-2.0
// Lanes: queues, timelines and the order in which waits may be submitted.
#include "kvspan/core/backend/lane.hpp"

#include "memory/guarded_call.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace kvspan {

namespace {

constexpr std::array<std::uint32_t, kLaneCount> kRoles = {
    KVSPAN_ROLE_COMPUTE, KVSPAN_ROLE_UPLOAD, KVSPAN_ROLE_DOWNLOAD};
constexpr std::array<const char*, kLaneCount> kNames = {"compute", "upload", "download"};

std::string doing(const char* what, std::size_t lane) {
  return std::string(what) + " the " + kNames[lane] + " queue";
}

}  // namespace

struct Lanes::State {
  explicit State(Backend device_backend, WaitMode mode)
      : backend(std::move(device_backend)), waits(mode) {}

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  State(State&&) = delete;
  State& operator=(State&&) = delete;

  ~State() { (void)close(); }

  // Gives everything back; returns the fences that somebody else's work still names, else null.
  std::array<kvspan_fence_t*, kLaneCount> close() noexcept {
    const BackendTables& tables = backend.tables();
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      if (queues[lane] != nullptr) {
        (void)drain(lane);
        (void)tables.queue->destroy(std::exchange(queues[lane], nullptr), nullptr);
      }
    }
    std::array<kvspan_fence_t*, kLaneCount> named = std::exchange(fences, {});
    for (kvspan_fence_t*& fence : named) {
      if (fence != nullptr && tables.fence->destroy(fence, nullptr) != KVSPAN_E_BUSY) {
        fence = nullptr;
      }
    }
    return named;
  }

  // A lane whose fence is healthy ends with its last value. One whose fence failed ends with an
  // empty copy, which may be refused for a moment.
  Result<void> drain(std::size_t lane) noexcept {
    if (fences[lane] == nullptr) {  // making the lanes ended here: nothing was submitted
      return {};
    }
    const kvspan_point_t newest{fences[lane], last[lane]};
    const kvspan_result_t reached = backend.tables().fence->wait(
        backend.device(), &newest, 1, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr);
    if (reached == KVSPAN_OK) {
      return {};
    }
    const auto drain_once = [&] { return drain_failed(lane); };
    Result<void> drained = guarded_call("draining", drain_once);
    for (int more = 1; more < kDrainTries && !drained; ++more) {
      drained = guarded_call("draining", drain_once);
    }
    return drained;
  }

  // An empty copy behind everything else of the queue, on a fence of its own: the lane's own says
  // nothing about the work behind the failure.
  Result<void> drain_failed(std::size_t lane) {
    const BackendTables& tables = backend.tables();
    kvspan_error_t error = empty_error();
    kvspan_fence_t* fence = nullptr;
    kvspan_result_t result = tables.fence->create(backend.device(), 0, &fence, &error);
    if (result != KVSPAN_OK) {
      return tl::unexpected(from_abi(result, error, doing("draining", lane)));
    }
    const kvspan_point_t done{fence, 1};
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.signal_count = 1;
    submit.signals = &done;
    result = tables.copy->copy(queues[lane], nullptr, 0, &submit, &error);
    while (result == KVSPAN_E_QUEUE_FULL) {
      // No value of the lane's fence tells when room appears, and a wait for one ends at once. Ours
      // is healthy: waiting for it sleeps.
      (void)tables.fence->wait(
          backend.device(), &done, 1, KVSPAN_WAIT_ALL, kFullQueuePollNs, nullptr);
      result = tables.copy->copy(queues[lane], nullptr, 0, &submit, &error);
    }
    if (result == KVSPAN_OK) {
      result = tables.fence->wait(backend.device(), &done, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error);
    }
    (void)tables.fence->destroy(fence, nullptr);
    if (result != KVSPAN_OK) {
      return tl::unexpected(from_abi(result, error, doing("draining", lane)));
    }
    return {};
  }

  // Between two looks at a full queue whose fence failed.
  static constexpr std::uint64_t kFullQueuePollNs = 1'000'000;

  // What is refused so often is refused for good.
  static constexpr int kDrainTries = 4;

  Backend backend;
  WaitMode waits;
  std::array<kvspan_queue_t*, kLaneCount> queues{};
  std::array<kvspan_fence_t*, kLaneCount> fences{};
  std::array<std::uint64_t, kLaneCount> last{};
  std::uint32_t depth = 0;
  std::uint64_t submit_id = 0;
  DeviceMemory cancel_memory;
  std::uint32_t* cancel_word = nullptr;
  std::vector<kvspan_point_t> wait_points;
};

Lanes::Lanes(std::unique_ptr<State> state) : state_(std::move(state)) {}

Lanes::Lanes(Lanes&&) noexcept = default;
Lanes& Lanes::operator=(Lanes&&) noexcept = default;
Lanes::~Lanes() = default;

Result<Lanes> Lanes::create(const Backend& backend,
                            const LaneOptions& options,
                            const Moment& from) {
  auto state = std::make_unique<State>(backend, options.waits);
  state->last = from.values;
  state->depth = options.depth == 0 ? backend.info().depth_max : options.depth;
  auto word = backend.allocate(KVSPAN_MEMORY_HOST, sizeof(std::uint32_t));
  if (!word) {
    return tl::unexpected(std::move(word).error());
  }
  state->cancel_memory = std::move(*word);
  const auto address = backend.map(state->cancel_memory);
  if (!address) {
    return tl::unexpected(address.error());
  }
  state->cancel_word = static_cast<std::uint32_t*>(*address);
  *state->cancel_word = 0;
  const BackendTables& tables = backend.tables();
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    kvspan_error_t error = empty_error();
    kvspan_queue_options_t queue_options{};
    queue_options.struct_size = sizeof queue_options;
    queue_options.role = kRoles[lane];
    queue_options.depth = options.depth;
    kvspan_result_t result =
        tables.queue->create(backend.device(), &queue_options, &state->queues[lane], &error);
    if (result == KVSPAN_OK) {
      result =
          tables.fence->create(backend.device(), from.values[lane], &state->fences[lane], &error);
    }
    if (result != KVSPAN_OK) {
      return tl::unexpected(from_abi(result, error, doing("making", lane)));
    }
  }
  return Lanes(std::move(state));
}

Result<std::uint64_t> Lanes::submit(LaneId lane, const Waits& waits, const SubmitCall& call) {
  const auto own = static_cast<std::size_t>(lane);
  State& state = *state_;
  state.wait_points.assign(waits.points.begin(), waits.points.end());
  for (std::size_t other = 0; other < kLaneCount; ++other) {
    const std::uint64_t value = waits.moment.values[other];
    if (value != 0 && (other != own || state.waits == WaitMode::strict)) {
      state.wait_points.push_back({state.fences[other], value});
    }
  }
  const kvspan_point_t signal{state.fences[own], state.last[own] + 1};
  kvspan_submit_t submit{};
  submit.struct_size = sizeof submit;
  submit.wait_count = static_cast<std::uint32_t>(state.wait_points.size());
  submit.waits = state.wait_points.data();
  submit.signal_count = 1;
  submit.signals = &signal;
  submit.cancel_memory = state.cancel_memory.get();
  submit.submit_id = ++state.submit_id;
  submit.flags = waits.measure ? KVSPAN_SUBMIT_MEASURE : 0;
  for (;;) {
    if (cancel_requested()) {
      return tl::unexpected(
          error_of(Errc::cancelled, "nothing is submitted behind a cancellation", "lanes"));
    }
    kvspan_error_t error = empty_error();
    const kvspan_result_t result = call(state.queues[own], &submit, &error);
    if (result == KVSPAN_OK) {
      state.last[own] = signal.value;
      return signal.value;
    }
    if (result != KVSPAN_E_QUEUE_FULL || state.last[own] == 0) {
      return tl::unexpected(from_abi(result, error, doing("submitting to", own)));
    }
    // Half of what is in flight: to wake for each costs more than to submit it. By now everything
    // may have settled: then there is room, and no next value to wait for.
    const std::uint64_t now = reached(lane);
    const std::uint64_t next = now + (state.last[own] - now + 1) / 2;
    if (auto room = wait(lane, next); !room) {
      return tl::unexpected(room.error());
    }
  }
}

Result<std::uint32_t> Lanes::measurements(LaneId lane, std::span<kvspan_measurement_t> out) const {
  const auto own = static_cast<std::size_t>(lane);
  std::uint32_t count = 0;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = state_->backend.tables().copy->feedback(
      state_->queues[own], out.data(), static_cast<std::uint32_t>(out.size()), &count, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, doing("measuring", own)));
  }
  return count;
}

Result<void> Lanes::wait(LaneId lane, std::uint64_t value) const {
  const auto own = static_cast<std::size_t>(lane);
  const kvspan_point_t target = point(lane, value);
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = state_->backend.tables().fence->wait(
      state_->backend.device(), &target, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, doing("waiting for", own)));
  }
  return {};
}

kvspan_point_t Lanes::point(LaneId lane, std::uint64_t value) const {
  return {state_->fences[static_cast<std::size_t>(lane)], value};
}

std::uint64_t Lanes::reached(LaneId lane) const {
  std::uint64_t value = 0;
  // A failed fence still tells the last value it reached: that is what is asked here.
  (void)state_->backend.tables().fence->query(
      state_->fences[static_cast<std::size_t>(lane)], &value, nullptr);
  return value;
}

Result<void> Lanes::health() const {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    std::uint64_t value = 0;
    kvspan_error_t error = empty_error();
    const kvspan_result_t result =
        state_->backend.tables().fence->query(state_->fences[lane], &value, &error);
    if (result != KVSPAN_OK) {
      return tl::unexpected(from_abi(result, error, doing("work on", lane)));
    }
  }
  return {};
}

std::uint64_t Lanes::last(LaneId lane) const {
  return state_->last[static_cast<std::size_t>(lane)];
}

void Lanes::request_cancel() const {
  std::atomic_ref<std::uint32_t>(*state_->cancel_word).store(1, std::memory_order_release);
}

bool Lanes::cancel_requested() const {
  return std::atomic_ref<std::uint32_t>(*state_->cancel_word).load(std::memory_order_acquire) != 0;
}

void Lanes::close(std::vector<kvspan_fence_t*>& named) {
  named.reserve(named.size() + kLaneCount);
  for (kvspan_fence_t* const fence : state_->close()) {
    if (fence != nullptr) {
      named.push_back(fence);
    }
  }
}

Result<void> Lanes::drain() {
  Result<void> outcome;
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (auto drained = state_->drain(lane); !drained && outcome) {
      outcome = std::move(drained);
    }
  }
  return outcome;
}

}  // namespace kvspan
