// SPDX-License-Identifier: Apache-2.0
// What a loaded plugin asks of the C library: the slots through which its file reaches a few named
// functions are pointed at functions of ours, which take note and go on. Calls of the plugin's own
// file alone are seen, neither ours nor those of libraries that it is linked to; what it did while
// it was loaded is over by then. Linux, x86-64. Not here: what it leaves behind
// (process_state.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_CALL_WATCH_H
#define KVSPAN_CONFORMANCE_WORKER_CALL_WATCH_H

#include "worker/library.hpp"

#include <string>
#include <vector>

namespace kvspan::conformance {

/// Watches from its making to its end; one at a time. The library stays loaded that long.
class CallWatch {
 public:
  explicit CallWatch(const Library& library);
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;
  CallWatch(CallWatch&&) = delete;
  CallWatch& operator=(CallWatch&&) = delete;
  ~CallWatch();

  /// False when the file is not among the loaded ones: nothing is watched then.
  bool found() const { return found_; }

  /// Names of environment variables that it asked for.
  static std::vector<std::string> variables_read();

  /// Functions that it registered for the end of the process, by how. Destructors of its static
  /// objects do not count: they belong to the file and go with it.
  static std::vector<std::string> exit_handlers();

 private:
  struct Slot {
    void** at;
    void* before;
  };

  std::vector<Slot> slots_;
  bool found_ = false;
};

}  // namespace kvspan::conformance

#endif
