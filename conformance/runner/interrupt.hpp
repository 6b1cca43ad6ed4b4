// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a question: was it pressed? The run then ends after the case at work and still writes
// its reports.
#ifndef KVSPAN_CONFORMANCE_RUNNER_INTERRUPT_H
#define KVSPAN_CONFORMANCE_RUNNER_INTERRUPT_H

namespace kvspan::runner {

// From here on the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once.
void watch_for_interrupt();

// Any thread.
[[nodiscard]] bool interrupted();

}  // namespace kvspan::runner

#endif
