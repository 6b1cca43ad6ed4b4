// SPDX-License-Identifier: Apache-2.0
// Read first: machine.hpp.
#include "machine.hpp"

#include <fstream>
#include <sched.h>
#include <sys/utsname.h>

namespace kvspan::host {

Machine this_machine() {
  Machine machine;
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      machine.processor = line.substr(colon + 2);
      break;
    }
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    machine.cores = CPU_COUNT(&set);
  }
  utsname system{};
  if (uname(&system) == 0) {
    machine.system = std::string(system.sysname) + " " + system.release;
  }
  return machine;
}

}  // namespace kvspan::host
