// SPDX-License-Identifier: Apache-2.0
// How the tool speaks to people: errors and progress. Not here: JSON (json_file.hpp).
#pragma once

#include "kvspan/core/error.hpp"

#include "generation.hpp"

#include <cstdint>
#include <string>

namespace kvspan::host {

// "error: <sentence>" on stderr, one line whatever is in it (a file may have a line break in its
// name), with the amounts when there are any that the sentence does not have.
void print_error(const Error& error);

// The exit status of a command that returned this: its error, if any, is printed.
[[nodiscard]] int status_of(const Result<void>& done);

// A live line on stderr: phase, rate, resident share. Redrawn on a terminal, one line per tenth
// elsewhere.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(const Progress& progress);

 private:
  bool terminal_;
  bool open_ = false;
  std::string phase_;
  std::uint64_t tenth_ = 0;
};

}  // namespace kvspan::host
