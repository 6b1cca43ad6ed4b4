// SPDX-License-Identifier: Apache-2.0
// Structs that cross the ABI: take() judges one that came in, give() writes one that goes out.
// Both look at struct_size before they touch anything else. Not here: what the fields mean.
#pragma once

#include "kvspan/sdk/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kvspan::sdk {

/// OK when `in` may be read as a T. INVALID_ARG for NULL; BAD_STRUCT_SIZE unless the sizes are
/// equal (exact while the ABI's major is 0: host and plugin carry one header hash). `argument` is
/// the 1-based position for the error record.
template <class T>
[[nodiscard]] kvspan_result_t take(const T* in,
                                   kvspan_error_t* error,
                                   const char* where,
                                   std::uint32_t argument = 0) noexcept {
  static_assert(offsetof(T, struct_size) == 0 && std::is_trivially_copyable_v<T>);
  if (in == nullptr) {
    return fail_argument(error, Place{argument}, where, "%s: a struct is NULL: pass one", where);
  }
  if (in->struct_size != sizeof(T)) {
    const kvspan_result_t code = KVSPAN_E_BAD_STRUCT_SIZE;
    fail(error,
         code,
         where,
         "%s: struct_size is %u, this ABI has %zu: set it to sizeof the struct",
         where,
         in->struct_size,
         sizeof(T));
    if (error != nullptr) {
      error->argument = argument;
      error->field_offset = 0;
    }
    return code;
  }
  return KVSPAN_OK;
}

/// Writes `value` to `out`: as many bytes as both sides know, and their number into out's
/// struct_size, never a byte behind it. INVALID_ARG for NULL; BAD_STRUCT_SIZE where the caller's
/// struct_size cannot even hold itself. On failure `out` is untouched.
template <class T>
[[nodiscard]] kvspan_result_t give(T* out,
                                   const T& value,
                                   kvspan_error_t* error,
                                   const char* where,
                                   std::uint32_t argument = 0) noexcept {
  static_assert(offsetof(T, struct_size) == 0 && std::is_trivially_copyable_v<T>);
  if (out == nullptr) {
    return fail_argument(error, Place{argument}, where, "%s: the output is NULL: pass one", where);
  }
  if (out->struct_size < sizeof(std::uint32_t)) {
    const kvspan_result_t code = KVSPAN_E_BAD_STRUCT_SIZE;
    fail(error,
         code,
         where,
         "%s: struct_size of the output is %u: set it to sizeof the struct before the call",
         where,
         out->struct_size);
    if (error != nullptr) {
      error->argument = argument;
      error->field_offset = 0;
    }
    return code;
  }
  const std::size_t room = out->struct_size;
  const std::size_t bytes = room < sizeof(T) ? room : sizeof(T);
  T filled = value;
  filled.struct_size = static_cast<std::uint32_t>(bytes);
  std::memcpy(static_cast<void*>(out), &filled, bytes);
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
