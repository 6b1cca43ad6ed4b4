// SPDX-License-Identifier: Apache-2.0
// Log lines and options of the host. Read first: host.hpp.
#include "host.hpp"

#include <cstdarg>
#include <cstdio>

namespace kvspan::cuda {

void Host::log(uint32_t level, const char* format, ...) const noexcept {
  if (level > services_->log_level) {
    return;
  }
  char line[256];
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (length > 0) {
    const auto bytes = static_cast<uint32_t>(length);
    services_->log(services_->self, level, line, bytes < sizeof line ? bytes : sizeof line - 1);
  }
}

bool Host::option(const char* key, uint64_t absent, uint64_t& value) const noexcept {
  char text[32] = "";
  const uint64_t length = services_->option(services_->self, key, text, sizeof text);
  if (length == 0) {
    value = absent;
    return true;
  }
  if (length >= sizeof text) {
    return false;
  }
  value = 0;
  for (uint64_t i = 0; i < length; ++i) {
    const char digit = text[i];
    if (digit < '0' || digit > '9' || __builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(digit - '0'), &value)) {
      return false;
    }
  }
  return true;
}

}  // namespace kvspan::cuda
