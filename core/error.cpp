// SPDX-License-Identifier: Apache-2.0
// The translation of a backend's result and error record into core's Error, and the codes'
// spellings.
// Read next: kvspan/result.h, whose thousand-ranges decide about codes that this build does not
// know.
#include "kvspan/core/error.hpp"

#include "kvspan/result.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace kvspan {
namespace {

// A field of the record up to its NUL, or all of it: a backend that forgot the NUL is survived.
template <std::size_t Size>
std::string_view text_of(const char (&field)[Size]) {
  const std::string_view whole(field, Size);
  return whole.substr(0, whole.find('\0'));
}

Errc code_of_range(kvspan_result_t result, std::uint32_t resource) {
  if (result <= -1000 && result > -2000) {
    return Errc::invalid_argument;
  }
  if (result <= -2000 && result > -3000) {
    return Errc::unsupported;
  }
  if (result <= -3000 && result > -4000) {
    switch (resource) {
      case KVSPAN_RESOURCE_HOST_MEMORY:
      case KVSPAN_RESOURCE_LOCKED_MEMORY:
        return Errc::host_memory;
      case KVSPAN_RESOURCE_DEVICE_MEMORY:
        return Errc::device_memory;
      case KVSPAN_RESOURCE_QUEUE_DEPTH:
        return Errc::queue_full;
      case KVSPAN_RESOURCE_WORKSPACE:
      case KVSPAN_RESOURCE_SPLIT_STATE:
        return Errc::workspace;
      default:
        return Errc::too_large;
    }
  }
  if (result <= -4000 && result > -5000) {
    return Errc::device_lost;
  }
  if (result <= -5000 && result > -6000) {
    return Errc::version;
  }
  return Errc::internal;
}

Errc code_of(kvspan_result_t result, std::uint32_t resource) {
  switch (result) {
    case KVSPAN_NOT_READY:
    case KVSPAN_E_BUSY:
      return Errc::busy;
    case KVSPAN_TIMEOUT:
      return Errc::timeout;
    case KVSPAN_E_HOST_MEMORY:
      return Errc::host_memory;
    case KVSPAN_E_DEVICE_MEMORY:
      return Errc::device_memory;
    case KVSPAN_E_WORKSPACE:
      return Errc::workspace;
    case KVSPAN_E_QUEUE_FULL:
      return Errc::queue_full;
    case KVSPAN_E_CANCELLED:
      return Errc::cancelled;
    // A fence that core failed itself stops the work behind it exactly as a point that failed.
    case KVSPAN_E_WAIT_FAILED:
    case KVSPAN_E_FAILED:
      return Errc::wait_failed;
    case KVSPAN_E_NO_DEVICE:
      return Errc::not_found;
    // INVALID_ARG, BAD_STRUCT_SIZE, UNKNOWN_TAIL, UNSUPPORTED, DEVICE_LOST and VERSION mean their
    // range; so does every code that a later minor version may add.
    default:
      return code_of_range(result, resource);
  }
}

}  // namespace

Error error_of(Errc code, std::string message, std::string component) {
  return Error{code, std::move(message), 0, 0, 0, std::move(component)};
}

Error from_abi(kvspan_result_t result, const kvspan_error_t& detail, std::string_view doing) {
  // A record of another result is a left-over: this call did not write it.
  const bool written = detail.code == result;
  Error error{code_of(result, written ? detail.resource : KVSPAN_RESOURCE_NONE),
              std::string(doing)};
  if (!written || text_of(detail.message).empty()) {
    error.message += ": ";
    error.message += name(error.code);
    error.message += " (result " + std::to_string(result) + "), the backend gave no details";
  } else {
    error.message += ": ";
    error.message += text_of(detail.message);
  }
  if (written) {
    error.required = detail.required;
    error.provided = detail.provided;
    error.missing = detail.missing;
    error.component = text_of(detail.where);
  }
  return error;
}

std::string_view name(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::unsupported:
      return "unsupported";
    case Errc::host_memory:
      return "host_memory";
    case Errc::device_memory:
      return "device_memory";
    case Errc::workspace:
      return "workspace";
    case Errc::too_large:
      return "too_large";
    case Errc::cancelled:
      return "cancelled";
    case Errc::device_lost:
      return "device_lost";
    case Errc::wait_failed:
      return "wait_failed";
    case Errc::version:
      return "version";
    case Errc::not_found:
      return "not_found";
    case Errc::bad_file:
      return "bad_file";
    case Errc::io:
      return "io";
    case Errc::internal:
      return "internal";
    case Errc::busy:
      return "busy";
    case Errc::timeout:
      return "timeout";
    case Errc::queue_full:
      return "queue_full";
  }
  return "internal";
}

}  // namespace kvspan
