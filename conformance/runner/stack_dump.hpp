// SPDX-License-Identifier: Apache-2.0
// Where a worker hangs: the stack of each of its threads, asked for by a signal whose handler in
// the worker (worker/stack_writer.hpp) writes addresses to a file that both have open. A thread
// that blocks the signal, as those of a plugin do, is told by what the kernel says of it. Bounded
// in time whatever the worker does. Not here: when to ask (worker_process.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_STACK_DUMP_H
#define KVSPAN_CONFORMANCE_RUNNER_STACK_DUMP_H

#include <string>
#include <sys/types.h>
#include <vector>

namespace kvspan::runner {

// The descriptor of that file in a worker.
inline constexpr int kStackDescriptor = 4;

// The signal: of the real-time ones, which nothing but a debugger's user sends.
[[nodiscard]] int stack_signal();

// A new file in memory that appends, with a number above those of a worker; -1 without one.
[[nodiscard]] int open_stack_file();

// The stacks of a worker's threads, the first thread first, a line a frame. The worker lives and is
// not reaped; `file` is of open_stack_file(). Takes at most two seconds.
[[nodiscard]] std::vector<std::string> stacks_of(pid_t worker, int file);

}  // namespace kvspan::runner

#endif
