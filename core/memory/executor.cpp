// SPDX-License-Identifier: Apache-2.0
// Executor and pins share one state; its destructor, run by the last of them, ends what is left in
// the same order as retire().
#include "kvspan/core/memory/executor.hpp"

#include "memory/guarded_call.hpp"
#include "on_exit.hpp"

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

namespace kvspan {

struct ExecutorState {
  explicit ExecutorState(Executor::EndOfWork end) : end_of_work(std::move(end)) {}

  ExecutorState(const ExecutorState&) = delete;
  ExecutorState& operator=(const ExecutorState&) = delete;
  ExecutorState(ExecutorState&&) = delete;
  ExecutorState& operator=(ExecutorState&&) = delete;

  // What is refused so often is refused for good: the executable goes all the same.
  static constexpr int kEndTries = 4;

  ~ExecutorState() {
    for (int tries = 0; executable && tries < kEndTries && !wait(busy_until); ++tries) {
    }
    executable = Executable();
    leases.clear();
  }

  Result<void> wait(const Moment& end) const {
    return guarded_call("waiting for captured work", [&] { return end_of_work(end); });
  }

  const Executor::EndOfWork end_of_work;

  // Touched by a capture while nothing is held, by retire() while in_callback, and read under a
  // pin, which excludes both.
  Executable executable;

  mutable std::mutex mutex;
  bool held = false;  // guarded by mutex, as all that follows: whether there is an executable
  std::vector<Lease> leases;
  std::vector<Binding> bindings;
  std::uint64_t revision = 0;
  std::uint64_t generation = 0;
  std::uint64_t pins = 0;
  Moment busy_until;
  bool admits = false;  // only while something is held
  bool in_callback = false;
};

namespace {

auto order_of(const Binding& binding) {
  return std::tuple(reinterpret_cast<std::uintptr_t>(binding.memory),
                    binding.region.id,
                    binding.region.offset,
                    binding.region.bytes,
                    binding.region.alignment,
                    binding.region.persistent);
}

bool before(const Binding& left, const Binding& right) {
  return order_of(left) < order_of(right);
}

// Sorted, each once.
std::vector<Binding> normalised(std::span<const Binding> bindings) {
  std::vector<Binding> sorted(bindings.begin(), bindings.end());
  std::sort(sorted.begin(), sorted.end(), before);
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

bool same_region(const Binding& left, const Binding& right) {
  return left.memory == right.memory && left.region.id == right.region.id;
}

Error refused(Errc code, const char* why) {
  return told(code, {"executor: ", why}, "executor");
}

Result<std::vector<Binding>> bindings_of(const std::vector<Lease>& leases) {
  std::vector<Binding> bindings;
  for (const Lease& lease : leases) {
    if (!lease) {
      return tl::unexpected(refused(Errc::invalid_argument,
                                    "an empty lease keeps nothing; acquire what is addressed"));
    }
    bindings.push_back(binding_of(lease));
  }
  bindings = normalised(bindings);
  if (std::adjacent_find(bindings.begin(), bindings.end(), same_region) != bindings.end()) {
    return tl::unexpected(
        refused(Errc::invalid_argument, "one region id has two places; give ids once in an arena"));
  }
  return bindings;
}

}  // namespace

Binding binding_of(const Lease& lease) {
  return {lease.range().memory, lease.region()};
}

// ---- executables -------------------------------------------------------------------------------

Executable::Executable(Executable&& other) noexcept
    : graph_(std::exchange(other.graph_, nullptr)), destroy_(std::move(other.destroy_)) {}

Executable& Executable::operator=(Executable&& other) noexcept {
  if (this != &other) {
    (void)destroy();
    graph_ = std::exchange(other.graph_, nullptr);
    destroy_ = std::move(other.destroy_);
  }
  return *this;
}

Executable::~Executable() {
  (void)destroy();
}

Result<void> Executable::destroy() {
  if (graph_ == nullptr) {
    return {};
  }
  Result<void> gone =
      guarded_call("destroying a captured executable", [&] { return destroy_(graph_); });
  if (gone) {
    graph_ = nullptr;
  }
  return gone;
}

// ---- pins --------------------------------------------------------------------------------------

Pin::Pin(std::shared_ptr<ExecutorState> state, std::uint64_t generation)
    : state_(std::move(state)), generation_(generation) {}

Pin::Pin(Pin&& other) noexcept
    : state_(std::move(other.state_)), generation_(std::exchange(other.generation_, 0)) {}

Pin& Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release({});
    state_ = std::move(other.state_);
    generation_ = std::exchange(other.generation_, 0);
  }
  return *this;
}

Pin::~Pin() {
  release({});
}

kvspan_graph_s* Pin::graph() const {
  return state_ == nullptr ? nullptr : state_->executable.get();
}

void Pin::release(const Moment& end) noexcept {
  if (state_ == nullptr) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->busy_until.merge(end);
    --state_->pins;
  }
  state_.reset();  // outside the lock: this may be the last owner
  generation_ = 0;
}

void Pin::close_admission() const {
  if (state_ != nullptr) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->admits = false;
  }
}

// ---- executor ----------------------------------------------------------------------------------

Executor::Executor(EndOfWork end_of_work)
    : state_(std::make_shared<ExecutorState>(std::move(end_of_work))) {}

Result<void> Executor::capture(Executable& executable,
                               std::vector<Lease>& leases,
                               std::uint64_t revision) {
  if (!executable) {
    return tl::unexpected(refused(Errc::invalid_argument, "nothing was captured; capture first"));
  }
  auto bindings = guarded_call("capturing", [&] { return bindings_of(leases); });
  if (!bindings) {
    return tl::unexpected(std::move(bindings).error());
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->held || state_->in_callback) {
    return tl::unexpected(refused(Errc::busy, "another capture is held; retire it first"));
  }
  state_->executable = std::move(executable);
  state_->held = true;
  state_->leases = std::exchange(leases, {});
  state_->bindings = std::move(*bindings);
  state_->revision = revision;
  ++state_->generation;
  state_->busy_until = {};
  state_->admits = true;
  return {};
}

bool Executor::matches(std::span<const Binding> bindings, std::uint64_t revision) const {
  const std::vector<Binding> wanted = normalised(bindings);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->held && state_->revision == revision && state_->bindings == wanted;
}

Result<Pin> Executor::acquire(std::span<const Binding> bindings, std::uint64_t revision) {
  auto wanted = guarded_call(
      "pinning", [&]() -> Result<std::vector<Binding>> { return normalised(bindings); });
  if (!wanted) {
    return tl::unexpected(std::move(wanted).error());
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (!state_->held || state_->revision != revision || state_->bindings != *wanted) {
    return tl::unexpected(refused(
        Errc::not_found, "nothing of these bindings and this revision; retire and capture again"));
  }
  if (!state_->admits) {
    return tl::unexpected(refused(Errc::busy, "it is closed; retire it, then capture again"));
  }
  ++state_->pins;
  return Pin(state_, state_->generation);
}

Result<Retirement> Executor::retire() {
  ExecutorState& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  if (state.in_callback) {
    return tl::unexpected(refused(Errc::busy, "it is being retired; return from the callback"));
  }
  if (!state.held) {
    return Retirement::unchanged;
  }
  state.admits = false;
  if (state.pins != 0) {
    return Retirement::pending;
  }
  const Moment end = state.busy_until;
  Result<void> outcome;
  {
    state.in_callback = true;
    const OnExit back([&] {
      lock.lock();
      state.in_callback = false;
    });
    lock.unlock();
    outcome = state.wait(end);
    if (outcome) {
      outcome = state.executable.destroy();
    }
  }
  if (!outcome) {
    return tl::unexpected(std::move(outcome).error());
  }
  const std::vector<Lease> leases = std::exchange(state.leases, {});
  state.held = false;
  state.bindings.clear();
  lock.unlock();  // leases go without the lock
  return Retirement::retired;
}

Result<Retirement> Executor::retire(std::span<const Binding> changed) {
  const auto is_held = [this](const Binding& each) {
    const std::vector<Binding>& held = state_->bindings;
    return std::any_of(
        held.begin(), held.end(), [&](const Binding& own) { return same_region(own, each); });
  };
  bool touched = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    touched = std::any_of(changed.begin(), changed.end(), is_held);
  }
  return touched ? retire() : Result<Retirement>(Retirement::unchanged);
}

bool Executor::holds() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->held;
}

bool Executor::admits() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->admits;
}

std::uint64_t Executor::generation() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->generation;
}

std::uint64_t Executor::pin_count() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->pins;
}

std::vector<Binding> Executor::bindings() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->bindings;
}

}  // namespace kvspan
