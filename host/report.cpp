// SPDX-License-Identifier: Apache-2.0
// Everything that is printed for people goes to stderr, so that stdout is text or JSON only.
#include "report.hpp"

#include "kvspan/error.h"

#include "exit_code.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>

#include <unistd.h>

namespace kvspan::host {

namespace {

// Control characters would break the line, or drive the terminal.
std::string one_line(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) {
      letter = '?';
    }
  }
  return text;
}

}  // namespace

void print_error(const Error& error) {
  std::string amounts;
  if (error.required != 0 && error.required != KVSPAN_UNKNOWN_AMOUNT &&
      error.message.find(std::to_string(error.required)) == std::string::npos) {
    amounts = fmt::format(
        " (required {}, provided {}, missing {})", error.required, error.provided, error.missing);
  }
  tell(fmt::format("error: {}{}\n", one_line(error.message), amounts));
}

int status_of(const Result<void>& done) {
  if (done) {
    return kExitOk;
  }
  print_error(done.error());
  return exit_code(done.error());
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (open_) {
    tell("\n");
  }
}

void ProgressLine::show(const Progress& progress) {
  const std::uint64_t tenth = progress.total == 0 ? 10 : progress.done * 10 / progress.total;
  const bool fresh = phase_ != progress.phase;
  if (!terminal_ && !fresh && tenth == tenth_) {
    return;
  }
  const double rate =
      progress.seconds > 0.0 ? static_cast<double>(progress.timed_tokens) / progress.seconds : 0.0;
  const std::string line =
      fmt::format("{:<8}{:>9} / {} tokens  {:>9.1f} tok/s  {:>5.1f} % of pages read resident",
                  progress.phase,
                  progress.done,
                  progress.total,
                  rate,
                  100.0 * progress.resident_share);
  if (terminal_) {
    tell(fmt::format("{}\r\x1b[K{}", fresh && open_ ? "\n" : "", line));
    open_ = true;
  } else {
    tell(line + "\n");
  }
  phase_ = progress.phase;
  tenth_ = tenth;
}

}  // namespace kvspan::host
