// SPDX-License-Identifier: Apache-2.0
// Read first: proof.hpp.
#include "kvspan/bench/spread.hpp"

#include "holdings.hpp"
#include "proof.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char** environ;  // the child has the parent's: where libraries are found

namespace kvspan::cuda_proof {

namespace {

using bench::Clock;
using bench::seconds_since;
using cuda_bench::Failure;
using cuda_bench::take;

constexpr std::uint32_t kLayers = 4;
constexpr std::uint64_t kSpan = 64;
constexpr std::uint32_t kOnceSteps = 3;
constexpr double kPatienceSeconds = 60.0;  // for a process to start
constexpr double kReturnSeconds = 10.0;    // for the driver to take a dead process's memory back
// What the driver gives out at a time; what it keeps of a dead process is counted in these.
constexpr std::uint64_t kDriverPiece = std::uint64_t{2} << 20;

// A process of this program with a pipe from its standard output.
class Child {
 public:
  Child(const Asked& asked, const char* mode) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw Failure(std::string("a pipe: ") + std::strerror(errno));
    }
    out_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<std::string> words = {
        "kvspan-cuda-proof", "--plugin", asked.plugin, "--child", mode};
    if (asked.small) {
      words.emplace_back("--dry");
    }
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    const int failed =
        ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) {
      ::close(out_);
      throw Failure(std::string("starting a process: ") + std::strerror(failed));
    }
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child(Child&&) = delete;
  Child& operator=(Child&&) = delete;

  ~Child() {
    if (pid_ > 0) {
      (void)end();
    }
    ::close(out_);
  }

  // The next byte of its output; none where it has ended. Throws Failure where none comes.
  std::optional<char> read() {
    pollfd wanted{out_, POLLIN, 0};
    char byte = 0;
    if (::poll(&wanted, 1, static_cast<int>(kPatienceSeconds * 1e3)) <= 0) {
      throw Failure(fmt::format("no word of the child in {} s", kPatienceSeconds));
    }
    return ::read(out_, &byte, 1) == 1 ? std::optional<char>(byte) : std::nullopt;
  }

  void read_until(char wanted) {
    for (std::optional<char> seen = read(); seen != wanted; seen = read()) {
      if (!seen) {
        throw Failure("the child ended by itself");
      }
    }
  }

  // Kills it and waits until it is gone; its status.
  int end() {
    ::kill(pid_, SIGKILL);
    return wait();
  }

  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
};

Text child_text(const Material& material) {
  return {6, 32 * material.page_tokens()};
}

Engine child_engine(const Rig& rig, const Material& material) {
  EngineCase with;
  with.layers = kLayers;
  with.context_tokens = child_text(material).loaded_tokens + kSpan;
  with.stream.group_pages = 8;
  with.stream.resident_pages_max = 8;
  return Engine(rig, material, with);
}

std::uint64_t folded(const std::vector<std::uint64_t>& hashes) {
  std::uint64_t all = 0;
  for (const std::uint64_t hash : hashes) {
    all = (all << 7 | all >> 57) ^ hash;
  }
  return all;
}

std::string again(const Asked& asked) {
  Child child(asked, "once");
  std::string text;
  for (std::optional<char> byte = child.read(); byte; byte = child.read()) {
    text.push_back(*byte);
  }
  if (const int status = child.wait(); !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Failure(fmt::format("the run behind a killed one ended with status {:#x}", status));
  }
  return text;
}

// The least that was ever missing of what was free, until nothing is or time is over.
std::uint64_t missing_bytes(std::uint64_t free_before) {
  std::uint64_t missing = UINT64_MAX;
  for (const auto begin = Clock::now(); missing > kDriverPiece;) {
    const std::uint64_t now = device_free_bytes().value_or(0);
    missing = std::min(missing, now >= free_before ? 0 : free_before - now);
    if (seconds_since(begin) > kReturnSeconds) {
      break;
    }
  }
  return missing;
}

}  // namespace

int be_the_child(const Asked& asked, bool once) {
  const Rig rig(asked.plugin);
  const Material material = Material::make(asked.small);
  Engine engine = child_engine(rig, material);
  const Text text = child_text(material);
  const SequenceId sequence = engine.add(text);
  const auto say = [](const std::string& what) {
    return ::write(STDOUT_FILENO, what.data(), what.size()) == static_cast<ssize_t>(what.size());
  };
  if (once) {
    std::vector<std::uint64_t> hashes;
    for (std::uint32_t step = 0; step < kOnceSteps; ++step) {
      take(engine.step(sequence, kDecodeRows, Phase::decode), "a step");
      const auto rows = engine.row_hashes();
      hashes.insert(hashes.end(), rows.begin(), rows.end());
    }
    return say(fmt::format("{:016x}", folded(hashes))) ? 0 : 1;
  }
  bool heard = say("r");
  while (heard) {
    take(engine.session().truncate(sequence, text.loaded_tokens), "truncating");
    heard = say("s");
    take(engine.step(sequence, kDecodeRows, Phase::decode), "a step");
  }
  return 1;
}

void prove_kill(const Asked& asked, Counts& out) {
  std::string expected;
  double step_seconds = 0.0;
  {
    const Rig rig(asked.plugin);
    const Material material = Material::make(asked.small);
    expected =
        fmt::format("{:016x}",
                    folded(undisturbed(
                        rig, material, kLayers, child_text(material), kOnceSteps * kDecodeRows)));
    Engine engine = child_engine(rig, material);
    const SequenceId sequence = engine.add(child_text(material));
    take(engine.step(sequence, kDecodeRows, Phase::decode), "a step");
    const auto begin = Clock::now();
    take(engine.step(sequence, kDecodeRows, Phase::decode), "a step");
    step_seconds = seconds_since(begin);
  }
  const std::optional<std::uint64_t> free_before = device_free_bytes();
  Dice dice(asked.seed + 2);
  out["rounds"] = std::int64_t{0};
  out["compared"] = "a hash of 24 rows of the process behind, with the resident run of this one";
  std::uint64_t most_missing = 0;
  for (std::uint32_t round = 0; round < asked.kills; ++round) {
    Child child(asked, "steps");
    child.read_until('r');
    for (std::uint64_t step = dice.between(1, 20); step > 0; --step) {
      child.read_until('s');
    }
    spin_for(dice.part() * step_seconds);
    const int status = child.end();
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      throw Failure(fmt::format("the child ended with status {:#x}, not by the kill", status));
    }
    if (free_before) {
      const std::uint64_t missing = missing_bytes(*free_before);
      most_missing = std::max(most_missing, missing);
      out["device_bytes_missing_at_most"] = most_missing;
      if (missing > kDriverPiece) {
        throw Failure(fmt::format("{} bytes of the device stayed with a killed process", missing));
      }
    }
    if (const std::string seen = again(asked); seen != expected) {
      throw Failure(fmt::format("the run behind a kill gave {}, {} is right", seen, expected));
    }
    ++out["rounds"].get_ref<std::int64_t&>();
  }
  out["device_free_bytes_before"] = free_before ? Counts(*free_before) : Counts(nullptr);
}

}  // namespace kvspan::cuda_proof
