// SPDX-License-Identifier: Apache-2.0
// A program that is a worker and nothing else, for ctest and debuggers: no parent, no reports.
// The program that authors get is conformance/runner/.
#include "worker/worker.hpp"

int main(int argc, char** argv) {
  return kvspan::conformance::worker_main(argc, argv);
}
