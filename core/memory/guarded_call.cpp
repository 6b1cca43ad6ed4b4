// SPDX-License-Identifier: Apache-2.0
// Read first: guarded_call.hpp.
#include "memory/guarded_call.hpp"

#include <exception>
#include <new>
#include <string>

namespace kvspan {

Error told(Errc code,
           std::initializer_list<std::string_view> parts,
           std::string_view component) noexcept {
  Error error{code, {}};
  try {
    for (const std::string_view part : parts) {
      error.message += part;
    }
    error.component = component;
  } catch (...) {
    const std::string_view word = name(code);
    error.message = word.size() <= error.message.capacity() ? word : "failed";
    error.component.clear();
  }
  return error;
}

Error thrown_error(const char* doing) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return told(Errc::host_memory,
                {doing, " ran out of host memory; free some, then try again"},
                "host memory");
  } catch (const std::exception& thrown) {
    return told(Errc::internal, {doing, " threw: ", thrown.what()});
  } catch (...) {
    return told(Errc::internal, {doing, " threw what is no std::exception"});
  }
}

}  // namespace kvspan
