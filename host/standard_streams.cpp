// SPDX-License-Identifier: Apache-2.0
// Standard streams as descriptors: no buffer of stdio stands between a result and its error.
#include "standard_streams.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace kvspan::host {

namespace {

// 0, or the reason why not all of `text` was written.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(descriptor, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0) {
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return 0;
}

}  // namespace

void prepare_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      // Lowest free number, so this one. Read-only: writing to a closed stdout stays an error.
      static_cast<void>(::open("/dev/null", O_RDONLY));
    }
  }
}

Result<void> write_stdout(std::string_view text) {
  const int reason = write_all(STDOUT_FILENO, text);
  if (reason == 0) {
    return {};
  }
  return tl::unexpected(error_of(Errc::io,
                                 std::string("cannot write the result to stdout: ") +
                                     std::strerror(reason) +
                                     "; give it a place with room, or a reader that stays",
                                 "stdout"));
}

void tell(std::string_view text) {
  static_cast<void>(write_all(STDERR_FILENO, text));
}

}  // namespace kvspan::host
