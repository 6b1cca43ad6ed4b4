// SPDX-License-Identifier: Apache-2.0
// The worker: one process, one plugin, one group of cases. All it is told it is told by arguments.
//
//   kvspan-conformance --worker --plugin PATH [--option K=V]... [--device N] [--seed N]
//     [--effort PERCENT] [--soak N] [--mutate NAME] [--tuple k=T,v=T,hd=N]... [--retained JSON]
//     [--record-fd FD] [--stack-fd FD --stack-signal N]
//     --cases GLOBS | FILE | --probe
//
// --cases: globs apart by ':', or, with a '/' in it, a file with one case id a line. With
// --record-fd the cases speak through records alone (record.hpp) and nothing is printed. Without it
// the worker plans for itself: it probes, skips what the plugin lacks, prints as GoogleTest does
// (which also reads its own GTEST_* variables), and ends with 0 or 1.
#ifndef KVSPAN_CONFORMANCE_WORKER_WORKER_H
#define KVSPAN_CONFORMANCE_WORKER_WORKER_H

namespace kvspan::conformance {

/// argv[1] is "--worker". Returns the exit status: record.hpp says which.
int worker_main(int argc, char** argv);

}  // namespace kvspan::conformance

#endif
