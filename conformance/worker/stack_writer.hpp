// SPDX-License-Identifier: Apache-2.0
// A worker that hangs tells where: a signal makes the thread that gets it write its stack, as
// addresses, to a descriptor that was opened before. Names are found by whoever reads it
// (runner/stack_dump.hpp), so that nothing here allocates, locks or opens.
#ifndef KVSPAN_CONFORMANCE_WORKER_STACK_WRITER_H
#define KVSPAN_CONFORMANCE_WORKER_STACK_WRITER_H

namespace kvspan::conformance {

/// From now on `signal` writes, in one write(2):
///   "thread TID\n", an address a line from the innermost frame on ("0x7f12...\n"), "end\n".
/// Call it once, from the first thread, before the state of the process is remembered: the handler
/// stays.
void arm_stack_writer(int descriptor, int signal);

}  // namespace kvspan::conformance

#endif
