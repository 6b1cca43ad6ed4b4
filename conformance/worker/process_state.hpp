// SPDX-License-Identifier: Apache-2.0
// What a plugin may not change of the process that lends it a home: threads, descriptors, signal
// handlers and mask, floating point, locale, folder, umask, environment, terminate handler. Read
// before a plugin is loaded and after it has closed, and compared. Linux. Not here: memory and
// mappings (cases/unload_test.cpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_PROCESS_STATE_H
#define KVSPAN_CONFORMANCE_WORKER_PROCESS_STATE_H

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <vector>

namespace kvspan::conformance {

/// Of the calling thread alone, cheap enough to read around every call.
struct ThreadState {
  std::string signal_mask;
  uint32_t float_control = 0;  // rounding, flush to zero, denormals are zero, trap masks
  int rounding = 0;

  static ThreadState now();
  /// What differs in `after`, a sentence each that begins with the rule it breaks.
  std::vector<std::string> changes(const ThreadState& after) const;
};

struct ProcessState {
  ThreadState thread;
  std::map<int, std::string> threads;          // id -> name
  std::map<int, std::string> descriptors;      // fd -> what it is
  std::map<int, std::string> signal_handlers;  // signal -> how it is handled, as bytes
  std::string locale;
  std::string folder;
  std::string umask;
  std::vector<std::string> environment;
  std::terminate_handler terminate = nullptr;

  static ProcessState now();
  /// What differs in `after`. Threads that have ended may be listed a moment longer: read again
  /// before believing that one is left (settled_changes()).
  std::vector<std::string> changes(const ProcessState& after) const;
  /// changes(now()), read again for up to two seconds while threads are left that were not there.
  std::vector<std::string> settled_changes() const;
};

/// The process as it was before any plugin was loaded into it. Told once, at the start.
void remember_process(ProcessState state);
const ProcessState& remembered_process();

/// The names of the threads of this process that are not in `before` and take some signal: those of
/// a plugin block all. A thread that has only just started is waited for, at most two seconds.
std::vector<std::string> threads_that_take_signals(const ProcessState& before);

}  // namespace kvspan::conformance

#endif
