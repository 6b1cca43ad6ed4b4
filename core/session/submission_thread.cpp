// SPDX-License-Identifier: Apache-2.0
// A ring of jobs, at most a step's, and the thread that does them in order. Only one thread is in
// the session at a time: the engine's waits until all jobs are done before it calls itself.
#include "kvspan/core/session/submission_thread.hpp"

#include "memory/guarded_call.hpp"

#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan {

namespace {

// No signal of the process is handled in a thread that is made meanwhile.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }

  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  SignalsBlocked(SignalsBlocked&&) = delete;
  SignalsBlocked& operator=(SignalsBlocked&&) = delete;

  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

struct SubmissionThread::State {
  // A layer, or any call that somebody waits for.
  struct Job {
    std::uint64_t ticket = 0;  // of a layer
    std::uint32_t layer = 0;
    WriteRows write;
    AttendRows attend;
    std::vector<kvspan_point_t> write_ready;
    std::vector<kvspan_point_t> attend_ready;
    const std::function<void()>* call = nullptr;  // the caller's
  };

  explicit State(Session opened) : session(std::move(opened)) {
    const std::size_t layers = session.plan().pages.size();
    jobs.resize(layers + 1);
    points.resize(layers + 1);
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  State(State&&) = delete;
  State& operator=(State&&) = delete;

  ~State() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stop = true;
      }
      work.notify_one();
      thread.join();
    }
  }

  Job& job_at(std::uint64_t number) { return jobs[number % jobs.size()]; }

  // The thread.
  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [this] { return stop || finished != handed; });
      if (finished == handed) {
        return;
      }
      Job& job = job_at(finished);
      const bool skips = failure.has_value() && job.call == nullptr;
      lock.unlock();
      kvspan_point_t point{};
      std::optional<Error> failed;
      if (job.call != nullptr) {
        (*job.call)();
      } else if (!skips) {
        auto attended = do_layer(job);
        point = attended.value_or(point);
        failed = attended ? std::nullopt : std::optional(std::move(attended).error());
      }
      lock.lock();
      if (job.call == nullptr) {
        points[job.ticket % points.size()] = point;
      }
      if (failed) {
        failure = std::move(failed);
        untold = true;
      }
      ++finished;
      done.notify_all();
    }
  }

  Result<kvspan_point_t> do_layer(Job& job) {
    job.write.ready = job.write_ready;
    job.attend.ready = job.attend_ready;
    auto written = session.write(job.layer, job.write);
    auto attended = written ? session.attend(job.layer, job.attend)
                            : Result<kvspan_point_t>(tl::unexpected(std::move(written).error()));
    if (!attended) {
      session.cancel_step();  // what was refused for its arguments left it open
    }
    return attended;
  }

  // Hands over what `fill` makes of the next free job.
  template <class Fill>
  void hand_over(const Fill& fill) {
    std::unique_lock lock(mutex);
    done.wait(lock, [this] { return handed - finished < jobs.size(); });
    fill(job_at(handed));
    ++handed;
    work.notify_one();
  }

  // Until the layer of a ticket is done: no more jobs than layers are behind it.
  void await_ticket(Ticket ticket) {
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return finished + (last_ticket - ticket) >= handed; });
  }

  void await_all() {
    std::unique_lock lock(mutex);
    done.wait(lock, [this] { return finished == handed; });
  }

  // In the thread, behind all that was handed over.
  void call(const std::function<void()>& what) {
    hand_over([&](Job& job) { job.call = &what; });
    await_all();
  }

  // What a layer of the open step failed with; told with that.
  [[nodiscard]] Result<void> step_result() {
    const std::lock_guard lock(mutex);
    untold = false;
    return failure ? Result<void>(tl::unexpected(*failure)) : Result<void>();
  }

  // What a layer failed with that nobody was told of; then there is nothing to tell any more.
  [[nodiscard]] Result<void> take_untold() {
    const std::lock_guard lock(mutex);
    const std::optional<Error> was = std::exchange(failure, std::nullopt);
    return std::exchange(untold, false) && was ? Result<void>(tl::unexpected(*was))
                                               : Result<void>();
  }

  Session session;
  std::vector<Job> jobs;
  std::vector<kvspan_point_t> points;  // [ticket], of a step's layers
  std::mutex mutex;
  std::condition_variable work;  // there is a job, or the end
  std::condition_variable done;
  std::uint64_t handed = 0;  // jobs; guarded by the mutex, like those below
  std::uint64_t finished = 0;
  std::optional<Error> failure;  // of a layer of the open step
  bool untold = false;           // no call has returned it
  bool stop = false;
  Ticket step_begin = 0;   // tickets before the open step; the engine's thread's, like the next
  Ticket last_ticket = 0;  // that was handed out
  std::thread thread;
};

SubmissionThread::SubmissionThread(std::unique_ptr<State> state) : state_(std::move(state)) {}

SubmissionThread::SubmissionThread(SubmissionThread&&) noexcept = default;
SubmissionThread& SubmissionThread::operator=(SubmissionThread&&) noexcept = default;
SubmissionThread::~SubmissionThread() = default;

Result<SubmissionThread> SubmissionThread::start(Session session) {
  try {
    auto state = std::make_unique<State>(std::move(session));
    const SignalsBlocked blocked;
    state->thread = std::thread([of = state.get()] { of->serve(); });
    return SubmissionThread(std::move(state));
  } catch (const std::system_error&) {
    return tl::unexpected(
        told(Errc::host_memory, {"the system has no thread for a session's submits"}, "thread"));
  } catch (...) {
    return tl::unexpected(thrown_error("starting a thread"));
  }
}

Result<void> SubmissionThread::begin_step(std::span<const StepRows> rows, Phase phase) {
  return guarded_call("beginning a step", [&] {
    state_->await_all();
    if (auto told = state_->take_untold(); !told) {
      return told;
    }
    Result<void> result;
    state_->call([&] { result = state_->session.begin_step(rows, phase); });
    state_->step_begin = result ? state_->last_ticket : state_->step_begin;
    return result;
  });
}

Result<SubmissionThread::Ticket> SubmissionThread::layer(std::uint32_t layer,
                                                         const WriteRows& write,
                                                         const AttendRows& attend) {
  return guarded_call("handing a layer over", [&]() -> Result<Ticket> {
    if (auto failed = state_->step_result(); !failed) {
      return tl::unexpected(std::move(failed).error());
    }
    state_->hand_over([&](State::Job& job) {
      job.write_ready.assign(write.ready.begin(), write.ready.end());
      job.attend_ready.assign(attend.ready.begin(), attend.ready.end());
      job.ticket = state_->last_ticket + 1;
      job.layer = layer;
      job.write = write;
      job.attend = attend;
      job.call = nullptr;
    });
    return ++state_->last_ticket;
  });
}

Result<kvspan_point_t> SubmissionThread::point(Ticket ticket) {
  return guarded_call("asking for a point", [&]() -> Result<kvspan_point_t> {
    if (ticket <= state_->step_begin || ticket > state_->last_ticket) {
      return tl::unexpected(
          error_of(Errc::invalid_argument,
                   "ticket " + std::to_string(ticket) +
                       " is not of the open step: ask for the points of layers that it handed over",
                   "ticket"));
    }
    state_->await_ticket(ticket);
    if (auto failed = state_->step_result(); !failed) {
      return tl::unexpected(std::move(failed).error());
    }
    const std::lock_guard lock(state_->mutex);
    return state_->points[ticket % state_->points.size()];
  });
}

Result<void> SubmissionThread::wait(Ticket ticket) {
  auto reached = point(ticket);
  if (!reached) {
    return tl::unexpected(std::move(reached).error());
  }
  return session().wait(*reached);
}

Result<void> SubmissionThread::commit(std::span<const std::uint32_t> accepted) {
  return guarded_call("committing", [&] {
    Result<void> result;
    state_->call([&] { result = state_->session.commit(accepted); });
    auto failed = state_->step_result();
    state_->step_begin = failed && result ? state_->last_ticket : state_->step_begin;
    return failed ? std::move(result) : std::move(failed);
  });
}

void SubmissionThread::cancel() {
  state_->session.cancel();
}

Session& SubmissionThread::session() const {
  state_->await_all();
  return state_->session;
}

}  // namespace kvspan
