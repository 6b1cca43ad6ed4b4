// SPDX-License-Identifier: Apache-2.0
// Reads the state of this process from the C library and from /proc.
#include "worker/process_state.hpp"

#include "proc/proc_files.hpp"

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvspan::conformance {
namespace {

/// The C library keeps its own two signals (SIGCANCEL, SIGSETXID) open in every thread.
constexpr unsigned long long kOfTheLibrary = (1ull << 31) | (1ull << 32);

/// The numbers that name entries of a folder of /proc, without that of the look itself.
std::vector<int> numbers_in(const char* folder) {
  std::vector<int> numbers;
  DIR* open = ::opendir(folder);
  if (open == nullptr) {
    return numbers;
  }
  const bool descriptors = std::strcmp(folder, "/proc/self/fd") == 0;
  while (const dirent* entry = ::readdir(open)) {
    const int number = std::atoi(entry->d_name);
    const bool digits = entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
    if (digits && !(descriptors && number == ::dirfd(open))) {
      numbers.push_back(number);
    }
  }
  ::closedir(open);
  return numbers;
}

std::string target_of(int descriptor) {
  char text[512] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), text, sizeof text - 1);
  return length < 0 ? "" : std::string(text, static_cast<std::size_t>(length));
}

std::string handler_of(int signal) {
  struct sigaction action = {};
  if (::sigaction(signal, nullptr, &action) != 0) {
    return "";
  }
  std::ostringstream text;
  text << std::hex << action.sa_flags << " ";
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    text << reinterpret_cast<uintptr_t>(action.sa_sigaction);
  } else {
    text << reinterpret_cast<uintptr_t>(action.sa_handler);
  }
  for (int other = 1; other < NSIG; ++other) {
    text << (sigismember(&action.sa_mask, other) == 1 ? " " + std::to_string(other) : "");
  }
  return text.str();
}

std::vector<std::string> environment_now() {
  std::vector<std::string> found;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    found.emplace_back(*at);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// What `after` has and `before` has not, and unless it may go the reverse, as sentences.
template <class Key>
void compare(const char* rule,
             const char* thing,
             const std::map<Key, std::string>& before,
             const std::map<Key, std::string>& after,
             bool may_go,
             std::vector<std::string>& out) {
  for (const auto& [key, value] : after) {
    const auto found = before.find(key);
    const std::string name = std::string(thing) + " " + std::to_string(key) + " (" + value + ")";
    if (found == before.end()) {
      out.push_back(std::string(rule) + ": " + name + " was not there before");
    } else if (found->second != value) {
      out.push_back(std::string(rule) + ": " + name + " was " + found->second);
    }
  }
  for (const auto& [key, value] : before) {
    if (!may_go && after.find(key) == after.end()) {
      out.push_back(std::string(rule) + ": " + thing + " " + std::to_string(key) + " (" + value +
                    ") is gone");
    }
  }
}

}  // namespace

ThreadState ThreadState::now() {
  ThreadState state;
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  for (int signal = 1; signal < NSIG; ++signal) {
    state.signal_mask += sigismember(&mask, signal) == 1 ? std::to_string(signal) + " " : "";
  }
#if defined(__x86_64__)
  constexpr uint32_t kStickyFlags = 0x3F;  // which exceptions have happened is no setting
  state.float_control = _mm_getcsr() & ~kStickyFlags;
#endif
  state.rounding = std::fegetround();
  return state;
}

std::vector<std::string> ThreadState::changes(const ThreadState& after) const {
  std::vector<std::string> found;
  if (signal_mask != after.signal_mask) {
    found.push_back("KV-MANNERS-4: the thread's signal mask was {" + signal_mask + "}, now {" +
                    after.signal_mask + "}");
  }
  if (float_control != after.float_control || rounding != after.rounding) {
    std::ostringstream text;
    text << "KV-MANNERS-4: the floating-point control word was 0x" << std::hex << float_control
         << ", now 0x" << after.float_control << " (rounding " << rounding << ", now "
         << after.rounding << ")";
    found.push_back(text.str());
  }
  return found;
}

ProcessState ProcessState::now() {
  ProcessState state;
  state.thread = ThreadState::now();
  for (const int id : numbers_in("/proc/self/task")) {
    state.threads[id] = first_line("/proc/self/task/" + std::to_string(id) + "/comm");
  }
  for (const int fd : numbers_in("/proc/self/fd")) {
    state.descriptors[fd] = target_of(fd);
  }
  for (int signal = 1; signal < NSIG; ++signal) {
    state.signal_handlers[signal] = handler_of(signal);
  }
  const char* locale = std::setlocale(LC_ALL, nullptr);
  state.locale = locale == nullptr ? "" : locale;
  char folder[4096] = {};
  state.folder = ::getcwd(folder, sizeof folder) == nullptr ? "" : folder;
  state.umask = status_field("/proc/self/status", "Umask");
  state.environment = environment_now();
  state.terminate = std::get_terminate();
  return state;
}

std::vector<std::string> ProcessState::changes(const ProcessState& after) const {
  std::vector<std::string> found = thread.changes(after.thread);
  // A thread of the plugin before may have been listed a moment longer than it lived.
  compare("KV-MANNERS-3", "thread", threads, after.threads, true, found);
  compare("KV-MANNERS-3", "descriptor", descriptors, after.descriptors, false, found);
  compare(
      "KV-MANNERS-4", "handler of signal", signal_handlers, after.signal_handlers, false, found);
  const auto same = [&](const char* what, const std::string& before, const std::string& now) {
    if (before != now) {
      found.push_back("KV-MANNERS-4: the " + std::string(what) + " was " + before + ", now " + now);
    }
  };
  same("locale", locale, after.locale);
  same("working folder", folder, after.folder);
  same("umask", umask, after.umask);
  if (environment != after.environment) {
    found.push_back("KV-MANNERS-4: the environment has changed");
  }
  if (terminate != after.terminate) {
    found.push_back("KV-MANNERS-4: the terminate handler has changed");
  }
  return found;
}

std::vector<std::string> ProcessState::settled_changes() const {
  const auto begin = std::chrono::steady_clock::now();
  ProcessState after = now();
  const auto more_threads = [&] {
    return std::any_of(after.threads.begin(), after.threads.end(), [&](const auto& one) {
      return threads.find(one.first) == threads.end();
    });
  };
  while (more_threads() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
    std::this_thread::yield();
    after = now();
  }
  return changes(after);
}

namespace {

ProcessState& remembered() {
  static ProcessState state;
  return state;
}

/// The C library blocks all signals, its own two included, until a new thread's function runs;
/// afterwards its own two are open, whatever the function asks for. Signal masks before that say
/// nothing about the thread.
bool some_thread_starts(const ProcessState& before) {
  for (const int id : numbers_in("/proc/self/task")) {
    const std::string blocked =
        status_field("/proc/self/task/" + std::to_string(id) + "/status", "SigBlk");
    const unsigned long long mask = std::strtoull(blocked.c_str(), nullptr, 16);
    if (before.threads.count(id) == 0 && !blocked.empty() &&
        (mask & kOfTheLibrary) == kOfTheLibrary) {
      return true;
    }
  }
  return false;
}

}  // namespace

void remember_process(ProcessState state) {
  remembered() = std::move(state);
}

const ProcessState& remembered_process() {
  return remembered();
}

std::vector<std::string> threads_that_take_signals(const ProcessState& before) {
  const auto begin = std::chrono::steady_clock::now();
  while (some_thread_starts(before) &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
    std::this_thread::yield();
  }
  constexpr unsigned long long kKillAndStop = (1ull << (SIGKILL - 1)) | (1ull << (SIGSTOP - 1));
  std::vector<std::string> found;
  for (const int id : numbers_in("/proc/self/task")) {
    const std::string folder = "/proc/self/task/" + std::to_string(id);
    const std::string blocked = status_field(folder + "/status", "SigBlk");
    if (before.threads.count(id) != 0 || blocked.empty()) {
      continue;
    }
    const unsigned long long mask = std::strtoull(blocked.c_str(), nullptr, 16);
    // Faults of a thread itself are delivered whether blocked or not.
    const unsigned long long faults = (1ull << (SIGSEGV - 1)) | (1ull << (SIGBUS - 1)) |
                                      (1ull << (SIGFPE - 1)) | (1ull << (SIGILL - 1));
    if ((mask | kKillAndStop | kOfTheLibrary | faults) != ~0ull) {
      found.push_back("thread " + std::to_string(id) + " (" + first_line(folder + "/comm") +
                      ") blocks only 0x" + blocked);
    }
  }
  return found;
}

}  // namespace kvspan::conformance
