// SPDX-License-Identifier: Apache-2.0
// The cursor of the GGUF parser: walks a file's bytes from front to back and cannot leave them. The
// first failure sticks: after it every read answers zero or nothing, so that the parser checks once
// per entry, not once per field.
// Not a general reader: little-endian, as GGUF and this project's targets are.
// Read next: gguf_parser.cpp, gguf_tensors.cpp.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf_parser.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvspan::model {

// One walk over one file, by one thread. Views that it hands out point into the file's bytes.
class GgufCursor {
 public:
  // `bytes` and `name` (for messages) must outlive the cursor.
  GgufCursor(std::span<const std::byte> bytes, const std::string& name)
      : rest_(bytes), name_(&name) {}

  [[nodiscard]] bool failed() const noexcept { return error_.has_value(); }

  // The first failure, to be returned by the parser.
  // Pre: failed().
  [[nodiscard]] tl::unexpected<Error> error() const { return tl::unexpected<Error>(*error_); }

  // Records a failure unless there is one already: `'<file>': <sentence>`.
  template <class... Args>
  void refuse(Errc code, fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) {
      std::string sentence = fmt::format("'{}': ", *name_);
      sentence += fmt::format(format, std::forward<Args>(args)...);
      error_ = error_of(code, std::move(sentence), "model");
    }
  }

  // The next `size_bytes` bytes, or nothing when fewer are left. `what` names the entry for the
  // message.
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t size_bytes, std::string_view what) {
    if (size_bytes > rest_.size()) {
      refuse(Errc::bad_file,
             "damaged or cut short: {} needs {} bytes where {} are left",
             what,
             size_bytes,
             rest_.size());
    }
    if (failed()) {
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(size_bytes));
    rest_ = rest_.subspan(static_cast<std::size_t>(size_bytes));
    return taken;
  }

  template <class T>
  [[nodiscard]] T number(std::string_view what) {
    const auto taken = take(sizeof(T), what);
    return taken.empty() ? T{} : load_number<T>(taken);
  }

  // A length in 8 bytes, then that many bytes.
  [[nodiscard]] std::string_view text(std::string_view what) {
    const auto taken = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return rest_; }

 private:
  std::span<const std::byte> rest_;
  const std::string* name_;
  std::optional<Error> error_;
};

}  // namespace kvspan::model
