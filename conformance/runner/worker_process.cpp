// SPDX-License-Identifier: Apache-2.0
// posix_spawn, poll, waitid. A worker's pipes may outlive it in the hands of a process that the
// plugin started, so the end of the worker is asked of the kernel and never read off a pipe.
#include "worker_process.hpp"

#include "stack_dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace kvspan::runner {

namespace {

// A record line longer than this is no record.
constexpr std::size_t kLineBytesMax = 4u << 20;

class Descriptor {
 public:
  Descriptor() = default;

  explicit Descriptor(int number) : number_(number) {}

  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() { close(); }

  void close() {
    if (number_ >= 0) {
      ::close(std::exchange(number_, -1));
    }
  }

  [[nodiscard]] int number() const { return number_; }

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read;
  Descriptor write;

  // Both ends close on exec; only ours does not block.
  bool open() {
    int ends[2] = {};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return false;
    }
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
    return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  }
};

// What posix_spawn is told; both objects live as long as the call.
class SpawnPlan {
 public:
  SpawnPlan(const Pipe& records, const Pipe& out, const Pipe& err, const Descriptor& stacks) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    // The record stream last: 1 and 2 are nobody's pipe end, 3 may be one of these two.
    posix_spawn_file_actions_adddup2(&actions_, out.write.number(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, err.write.number(), STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, records.write.number(), kRecordDescriptor);
    if (stacks.number() >= 0) {
      posix_spawn_file_actions_adddup2(&actions_, stacks.number(), kStackDescriptor);
    }
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t defaults;
    sigemptyset(&defaults);
    posix_spawnattr_setsigmask(&attributes_, &defaults);
    for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) {
      sigaddset(&defaults, signal);
    }
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
  }

  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  ~SpawnPlan() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }

  // 0 or the reason.
  int start(std::vector<std::string> words, pid_t& child) const {
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    return ::posix_spawn(
        &child, words.front().c_str(), &actions_, &attributes_, arguments.data(), environ);
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

class Watching {
 public:
  Watching(pid_t child,
           std::array<Descriptor, 3> streams,
           Descriptor stacks,
           const WorkerWatch& watch)
      : child_(child),
        watch_(watch),
        streams_(std::move(streams)),
        stacks_(std::move(stacks)),
        limit_(Clock::now() + watch.step_timeout) {}

  WorkerEnd until_end() {
    while (!stopped_ && !gone()) {
      if (Clock::now() >= limit_) {
        end_.how = WorkerEnd::How::timed_out;
        end_.stacks = stacks_of(child_, stacks_.number());
        break;
      }
      wait_for_something();
      read_what_is_there();
    }
    if (stopped_) {
      end_.how = WorkerEnd::How::stopped;
    }
    finish();
    return std::move(end_);
  }

 private:
  // Whether the worker has ended; it stays a zombie, so that its group's number is not used again.
  bool gone() {
    siginfo_t facts{};
    if (::waitid(P_PID, static_cast<id_t>(child_), &facts, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        facts.si_pid == 0) {
      return false;
    }
    end_.how = facts.si_code == CLD_EXITED ? WorkerEnd::How::exited : WorkerEnd::How::signalled;
    end_.value = facts.si_status;
    return true;
  }

  void wait_for_something() {
    // Also the pace at which an end is noticed that no pipe shows.
    constexpr auto kPace = std::chrono::milliseconds(25);
    std::array<pollfd, 3> polled{};
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      polled[i] = {streams_[i].number(), POLLIN, 0};  // closed: -1, which poll ignores
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit_ - Clock::now());
    const auto wait = std::clamp(left, std::chrono::milliseconds(0), kPace);
    static_cast<void>(::poll(polled.data(), polled.size(), static_cast<int>(wait.count())));
  }

  // All that can be read without waiting, printed text first: a case's words come before its end.
  // Records are read before and after the text, so that the begin of whoever printed it is among
  // the lines at hand.
  void read_what_is_there() {
    std::string records;
    bool open = read_stream(streams_[0], records);
    std::string printed;
    for (std::size_t i = 1; i < streams_.size(); ++i) {
      if (!read_stream(streams_[i], printed)) {
        streams_[i].close();
      }
    }
    if (!printed.empty()) {
      watch_.on_printed(printed);
      open = open && read_stream(streams_[0], records);
    }
    take_lines(records);
    watch_.on_pause();
    if (!open) {
      streams_[0].close();
    }
  }

  // False at the end of the stream. At most a few pipe fulls at a time: a flood must not keep us
  // from looking at the clock.
  static bool read_stream(const Descriptor& stream, std::string& out) {
    constexpr std::size_t kAtATime = 256u << 10;
    std::array<char, 16384> part{};
    while (stream.number() >= 0 && out.size() < kAtATime) {
      const ssize_t got = ::read(stream.number(), part.data(), part.size());
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0 && errno == EAGAIN) {
        return true;
      }
      if (got <= 0) {
        return false;
      }
      out.append(part.data(), static_cast<std::size_t>(got));
    }
    return stream.number() >= 0;
  }

  void take_lines(std::string_view text) {
    half_.append(text);
    std::size_t begin = 0;
    for (std::size_t end = half_.find('\n'); end != std::string::npos && !stopped_;
         end = half_.find('\n', begin)) {
      take_line(std::string_view(half_).substr(begin, end - begin));
      begin = end + 1;
    }
    half_.erase(0, begin);
    if (half_.size() > kLineBytesMax) {
      take_line(half_);
      half_.clear();
    }
  }

  void take_line(std::string_view line) {
    const Next next = watch_.on_line(line);
    stopped_ = next == Next::stop;
    if (next == Next::restart_clock) {
      limit_ = Clock::now() + watch_.step_timeout;
    }
  }

  // Reads the rest, ends the group, reaps.
  void finish() {
    const bool by_itself =
        end_.how == WorkerEnd::How::exited || end_.how == WorkerEnd::How::signalled;
    if (by_itself) {
      read_the_rest();
    }
    ::kill(-child_, SIGKILL);
    while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (!by_itself && !stopped_) {
      read_the_rest();  // the last words of a worker that hung
      end_.left_processes = false;
    }
    end_.half_line = !half_.empty() && !stopped_;
  }

  // A pipe holds less than one pass reads; the second pass sees the end of the stream.
  void read_the_rest() {
    read_what_is_there();
    read_what_is_there();
    end_.left_processes =
        std::any_of(streams_.begin(), streams_.end(), [](const Descriptor& stream) {
          return stream.number() >= 0;
        });
  }

  pid_t child_;
  const WorkerWatch& watch_;
  std::array<Descriptor, 3> streams_;  // records, stdout, stderr
  Descriptor stacks_;
  Clock::time_point limit_;
  std::string half_;  // of a record line
  bool stopped_ = false;
  WorkerEnd end_;
};

}  // namespace

std::string WorkerEnd::spoken() const {
  switch (how) {
    case How::exited:
      return fmt::format("ended with status {}", value);
    case How::signalled:
      return fmt::format("was killed by signal {} ({})", value, ::strsignal(value));
    case How::timed_out:
      return "ran past its time and was killed";
    case How::stopped:
      return "was stopped";
    case How::not_started:
      break;
  }
  return "could not be started: " + words;
}

WorkerEnd run_worker(const WorkerCommand& command,
                     const std::vector<std::string>& arguments,
                     const WorkerWatch& watch) {
  WorkerEnd failed;
  Pipe records;
  Pipe out;
  Pipe err;
  Descriptor stacks(open_stack_file());  // without one a hang is told without its stacks
  pid_t child = 0;
  {
    // One at a time: a child of another thread has copies of our ends until its exec, and would be
    // taken for a process that this worker left behind.
    static std::mutex spawning;
    const std::lock_guard lock(spawning);
    if (!records.open() || !out.open() || !err.open()) {
      failed.words = fmt::format("no pipe: {}", std::strerror(errno));
      return failed;
    }
    std::vector<std::string> words = {command.program};
    words.insert(words.end(), command.arguments.begin(), command.arguments.end());
    words.insert(words.end(), arguments.begin(), arguments.end());
    const int problem = SpawnPlan(records, out, err, stacks).start(std::move(words), child);
    if (problem != 0) {
      failed.words = fmt::format("{}: {}", command.program, std::strerror(problem));
      return failed;
    }
    records.write.close();
    out.write.close();
    err.write.close();
  }
  return Watching(child,
                  {std::move(records.read), std::move(out.read), std::move(err.read)},
                  std::move(stacks),
                  watch)
      .until_end();
}

}  // namespace kvspan::runner
