// SPDX-License-Identifier: Apache-2.0
// One thread at a time: asks, waits for the file to grow by a whole answer. Read next:
// stack_dump.hpp.
#include "stack_dump.hpp"

#include "duration.hpp"
#include "proc/proc_files.hpp"
#include "symbols.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvspan::runner {

namespace {

using conformance::first_line;
using conformance::status_field;

constexpr std::size_t kThreadsMax = 64;
constexpr std::size_t kAnswerBytesMax = 8192;
constexpr auto kAnswerTime = std::chrono::milliseconds(250);
constexpr auto kWholeTime = std::chrono::milliseconds(1500);

bool holds_signal(const std::string& mask, int signal) {
  return ((std::strtoull(mask.c_str(), nullptr, 16) >> (signal - 1)) & 1u) != 0;
}

// The first thread of the process, then the others in the order of their numbers.
std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  DIR* folder = ::opendir(fmt::format("/proc/{}/task", process).c_str());
  if (folder == nullptr) {
    return threads;
  }
  while (const dirent* entry = ::readdir(folder)) {
    if (const pid_t thread = std::atoi(entry->d_name); thread > 0) {
      threads.push_back(thread);
    }
  }
  ::closedir(folder);
  std::sort(threads.begin(), threads.end(), [process](pid_t a, pid_t b) {
    return a != b && (a == process || (b != process && a < b));
  });
  return threads;
}

// One dump: the worker, its file, the time that is left.
class Dump {
 public:
  Dump(pid_t worker, int file) : worker_(worker), file_(file), symbols_(worker) {}

  std::vector<std::string> taken() {
    const std::vector<pid_t> threads = threads_of(worker_);
    for (std::size_t i = 0; i < threads.size(); ++i) {
      if (i == kThreadsMax || Clock::now() >= end_) {
        lines_.push_back(fmt::format("and {} threads more", threads.size() - i));
        break;
      }
      take(threads[i]);
    }
    return std::move(lines_);
  }

 private:
  void take(pid_t thread) {
    const std::string folder = fmt::format("/proc/{}/task/{}", worker_, thread);
    const std::string state = status_field(folder + "/status", "State");
    if (state.empty()) {
      return;  // it has just ended
    }
    lines_.push_back(fmt::format("thread {} {}: {}", thread, first_line(folder + "/comm"), state));
    if (!holds_signal(status_field(folder + "/status", "SigCgt"), stack_signal())) {
      return take_from_kernel(folder, "has no handler for the signal");
    }
    if (holds_signal(status_field(folder + "/status", "SigBlk"), stack_signal())) {
      return take_from_kernel(folder, "blocks the signal");
    }
    const std::string answer = asked(thread);
    if (answer.empty()) {
      return take_from_kernel(folder, "did not answer the signal");
    }
    std::istringstream addresses(answer);
    std::string word;
    bool innermost = true;
    while (addresses >> word) {
      if (word.rfind("0x", 0) == 0) {
        // A return address is behind the call; only the innermost is where the thread is.
        const std::uint64_t address = std::strtoull(word.c_str(), nullptr, 16);
        lines_.push_back("  " + symbols_.name(innermost ? address : address - 1));
        innermost = false;
      }
    }
  }

  // Its answer as a whole; empty when there is none in time.
  std::string asked(pid_t thread) {
    const off_t begin = ::lseek(file_, 0, SEEK_END);
    if (begin < 0 || ::syscall(SYS_tgkill, worker_, thread, stack_signal()) != 0) {
      return "";
    }
    const auto limit = std::min(end_, Clock::now() + kAnswerTime);
    std::string answer(kAnswerBytesMax, '\0');
    do {
      static_cast<void>(::poll(nullptr, 0, 1));
      const ssize_t got = ::pread(file_, answer.data(), answer.size(), begin);
      std::string text = answer.substr(0, got > 0 ? static_cast<std::size_t>(got) : 0);
      if (text.rfind(fmt::format("thread {}\n", thread), 0) == 0 &&
          text.find("end\n") != std::string::npos) {
        return text;
      }
    } while (Clock::now() < limit);
    return "";
  }

  // Without its help: the system call that it is in and the address behind it.
  void take_from_kernel(const std::string& folder, const char* why) {
    std::istringstream call(first_line(folder + "/syscall"));
    std::vector<std::string> words;
    for (std::string word; call >> word;) {
      words.push_back(word);
    }
    const std::string place =
        words.size() < 2
            ? (words.empty() ? std::string("no place is known") : words.front())
            : fmt::format("in system call {} at {}",
                          words.front(),
                          symbols_.name(std::strtoull(words.back().c_str(), nullptr, 16)));
    lines_.push_back(fmt::format("  {}; {}", why, place));
  }

  pid_t worker_;
  int file_;
  Symbols symbols_;
  Clock::time_point end_ = Clock::now() + kWholeTime;
  std::vector<std::string> lines_;
};

}  // namespace

int stack_signal() {
  return SIGRTMAX - 2;
}

int open_stack_file() {
  constexpr int kNumberMin = 16;
  const int made = ::memfd_create("stacks", MFD_CLOEXEC);
  if (made < 0) {
    return -1;
  }
  const int file = ::fcntl(made, F_DUPFD_CLOEXEC, kNumberMin);
  ::close(made);
  if (file >= 0) {
    static_cast<void>(::fcntl(file, F_SETFL, O_APPEND));
  }
  return file;
}

std::vector<std::string> stacks_of(pid_t worker, int file) {
  return file < 0 ? std::vector<std::string>() : Dump(worker, file).taken();
}

}  // namespace kvspan::runner
