// SPDX-License-Identifier: Apache-2.0
// A worker as a child process: started in a process group of its own, watched until it ends or its
// time is over, then killed with all its descendants and reaped. Knows lines and clocks, not what
// the lines mean (group_run.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_WORKER_PROCESS_H
#define KVSPAN_CONFORMANCE_RUNNER_WORKER_PROCESS_H

#include "duration.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

// How a worker is started: the program and the arguments that come before those of a group.
struct WorkerCommand {
  std::string program;
  std::vector<std::string> arguments;
};

// What the watcher of the lines wants after one of them.
enum class Next {
  go_on,
  restart_clock,  // a step is done: the time limit counts anew
  stop            // kill the worker now
};

struct WorkerWatch {
  // What came from stdout and stderr; then the lines of the record stream that came with it, among
  // them the begin of the case that printed it; then a pause, after which more may come.
  std::function<void(std::string_view text)> on_printed;
  std::function<Next(std::string_view line)> on_line;
  std::function<void()> on_pause;
  Nanoseconds step_timeout{};  // from one restart of the clock to the next
};

struct WorkerEnd {
  enum class How {
    exited,      // `value` is the status
    signalled,   // `value` is the signal
    timed_out,   // killed by us
    stopped,     // killed by us because the watcher said so
    not_started  // `words` says why
  };
  How how = How::not_started;
  int value = 0;
  bool half_line = false;           // the record stream ended within a line
  bool left_processes = false;      // somebody else still held its pipes when it was gone
  std::vector<std::string> stacks;  // of a worker that timed out (stack_dump.hpp), a line a frame
  std::string words;

  // "ended with status 3", "was killed by signal 11 (Segmentation fault)": the rest of a sentence
  // that begins with "the worker".
  [[nodiscard]] std::string spoken() const;
};

// The descriptor on which a worker writes its records; the next one is for stacks.
inline constexpr int kRecordDescriptor = 3;

// Runs one worker to its end. stdin is empty; the record stream is descriptor 3. Blocks the calling
// thread, which must live as long as the worker: a worker may ask the kernel to die with it. Any
// thread; several at a time.
[[nodiscard]] WorkerEnd run_worker(const WorkerCommand& command,
                                   const std::vector<std::string>& arguments,
                                   const WorkerWatch& watch);

}  // namespace kvspan::runner

#endif
