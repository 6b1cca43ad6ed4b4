// SPDX-License-Identifier: Apache-2.0
// Filling a kvspan_error_t: every field, once, in one call, and the code comes back to be returned.
// For plugins and for code that stands in for one. A NULL error is legal: then only the code
// counts. A message is one sentence that names the thing, the limit and the fix; longer ones are
// cut at a character's edge. Not here: catching exceptions (guard.hpp), checks of arguments
// (validate.hpp).
#pragma once

#include "kvspan/error.h"
#include "kvspan/result.h"

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvspan::sdk {

/// How much of what a call needed and had; units are those of the resource (bytes, submits, items).
struct Amount {
  std::uint32_t resource = 0;  ///< KVSPAN_RESOURCE_*
  std::uint64_t required = 0;  ///< total for the call to succeed, or KVSPAN_UNKNOWN_AMOUNT
  std::uint64_t provided = 0;  ///< what there was
  std::uint32_t flags = 0;     ///< KVSPAN_ERROR_*
};

/// The argument that is wrong: 1-based position and byte offset inside its struct.
struct Place {
  std::uint32_t argument = 0;               ///< 0 = none in particular
  std::uint32_t field_offset = UINT32_MAX;  ///< UINT32_MAX = no field
};

/// A 64-bit amount as %llu takes it.
constexpr unsigned long long number(std::uint64_t value) noexcept {
  return value;
}

namespace detail {

/// Ends `text` of `capacity` bytes before a character that was cut: `length` is what it would be.
inline void end_at_character(char* text, std::size_t capacity, std::size_t length) noexcept {
  if (length < capacity) {
    return;
  }
  std::size_t end = capacity - 1;  // the NUL that snprintf wrote
  std::size_t lead = end;
  while (lead > 0 && (static_cast<unsigned char>(text[lead - 1]) & 0xC0u) == 0x80u) {
    --lead;  // over continuation bytes, to behind the byte that leads them
  }
  if (lead > 0) {
    const auto first = static_cast<unsigned char>(text[lead - 1]);
    const std::size_t want = first >= 0xF0u ? 4 : first >= 0xE0u ? 3 : first >= 0xC0u ? 2 : 1;
    if (lead - 1 + want > end) {
      end = lead - 1;
    }
  }
  text[end] = '\0';
}

inline void copy_text(char* target, std::size_t capacity, const char* text) noexcept {
  const std::size_t length = std::strlen(text);
  const std::size_t bytes = length < capacity ? length : capacity - 1;
  std::memcpy(target, text, bytes);
  std::memset(target + bytes, 0, capacity - bytes);
  end_at_character(target, capacity, length);
}

inline kvspan_error_t blank_error(kvspan_result_t code) noexcept {
  kvspan_error_t error{};
  error.struct_size = sizeof(kvspan_error_t);
  error.code = code;
  error.field_offset = UINT32_MAX;
  return error;
}

inline kvspan_result_t finish_error(kvspan_error_t* target,
                                    kvspan_error_t& error,
                                    const char* where,
                                    const char* format,
                                    std::va_list arguments) noexcept {
  if (target != nullptr) {
    copy_text(error.where, sizeof error.where, where == nullptr ? "" : where);
    const int length = std::vsnprintf(error.message, sizeof error.message, format, arguments);
    if (length < 0) {
      copy_text(error.message, sizeof error.message, "(the message could not be written)");
    } else {
      end_at_character(error.message, sizeof error.message, static_cast<std::size_t>(length));
    }
    *target = error;
  }
  return error.code;
}

}  // namespace detail

/// Fills every field of `error` (may be NULL) and returns `code`, which is below 0. `where` is the
/// slot's name ("copy.fill"), `format` is printf's. Allocates nothing. Any thread.
[[gnu::format(printf, 4, 5)]] inline kvspan_result_t fail(kvspan_error_t* error,
                                                          kvspan_result_t code,
                                                          const char* where,
                                                          const char* format,
                                                          ...) noexcept {
  kvspan_error_t value = detail::blank_error(code);
  std::va_list arguments;
  va_start(arguments, format);
  const kvspan_result_t result = detail::finish_error(error, value, where, format, arguments);
  va_end(arguments);
  return result;
}

/// INVALID_ARG with the place that is wrong.
[[gnu::format(printf, 4, 5)]] inline kvspan_result_t fail_argument(
    kvspan_error_t* error, Place place, const char* where, const char* format, ...) noexcept {
  kvspan_error_t value = detail::blank_error(KVSPAN_E_INVALID_ARG);
  value.argument = place.argument;
  value.field_offset = place.field_offset;
  std::va_list arguments;
  va_start(arguments, format);
  const kvspan_result_t result = detail::finish_error(error, value, where, format, arguments);
  va_end(arguments);
  return result;
}

/// A -3xxx code with its amounts; missing = required - provided (0 where nothing is missing),
/// KVSPAN_UNKNOWN_AMOUNT where either is that.
[[gnu::format(printf, 5, 6)]] inline kvspan_result_t fail_amount(kvspan_error_t* error,
                                                                 kvspan_result_t code,
                                                                 const char* where,
                                                                 Amount amount,
                                                                 const char* format,
                                                                 ...) noexcept {
  kvspan_error_t value = detail::blank_error(code);
  const bool known =
      amount.required != KVSPAN_UNKNOWN_AMOUNT && amount.provided != KVSPAN_UNKNOWN_AMOUNT;
  const std::uint64_t missing =
      amount.required > amount.provided ? amount.required - amount.provided : 0;
  value.resource = amount.resource;
  value.flags = amount.flags;
  value.required = amount.required;
  value.provided = amount.provided;
  value.missing = known ? missing : KVSPAN_UNKNOWN_AMOUNT;
  std::va_list arguments;
  va_start(arguments, format);
  const kvspan_result_t result = detail::finish_error(error, value, where, format, arguments);
  va_end(arguments);
  return result;
}

/// UNSUPPORTED with the KVSPAN_WHY_* bits that the capability query gives for the same question.
[[gnu::format(printf, 4, 5)]] inline kvspan_result_t fail_reasons(kvspan_error_t* error,
                                                                  const char* where,
                                                                  std::uint32_t reasons,
                                                                  const char* format,
                                                                  ...) noexcept {
  kvspan_error_t value = detail::blank_error(KVSPAN_E_UNSUPPORTED);
  value.reasons = reasons;
  std::va_list arguments;
  va_start(arguments, format);
  const kvspan_result_t result = detail::finish_error(error, value, where, format, arguments);
  va_end(arguments);
  return result;
}

}  // namespace kvspan::sdk
