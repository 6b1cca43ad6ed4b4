// SPDX-License-Identifier: Apache-2.0
// Writes records: one write(2) a line, so that nothing of a line is lost in a buffer.
#include "record.hpp"

#include <cerrno>
#include <unistd.h>

namespace kvspan::conformance {

bool RecordStream::write(const std::string& kind, nlohmann::json fields) {
  if (!on()) {
    return true;
  }
  fields["record"] = kind;
  const std::string line =
      fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t now = ::write(fd_, line.data() + written, line.size() - written);
    if (now < 0 && errno != EINTR) {
      return false;
    }
    written += now < 0 ? 0 : static_cast<std::size_t>(now);
  }
  return true;
}

}  // namespace kvspan::conformance
