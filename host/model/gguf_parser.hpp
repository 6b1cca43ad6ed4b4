// SPDX-License-Identifier: Apache-2.0
// Reads the bytes of a GGUF file into GgufContents, checking everything on the way.
// Not the public face: GgufFile in gguf.hpp is.
// Read next: gguf_parser.cpp.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace kvspan::model {

// A little-endian number of type T at the first sizeof(T) bytes of `bytes`.
// Pre: bytes.size() >= sizeof(T). The targets of this project are little-endian, as GGUF is, so a
// copy is the conversion.
template <class T>
[[nodiscard]] T load_number(std::span<const std::byte> bytes) noexcept {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// Bytes of one element of a fixed-size metadata type; 0 for string and array. [any-thread]
[[nodiscard]] std::size_t gguf_type_bytes(GgufType type) noexcept;

// `text` shortened to 80 bytes with everything but printable ASCII replaced by '?': a damaged
// file's names go into messages, and messages go to terminals. [any-thread]
[[nodiscard]] std::string printable(std::string_view text);

class GgufCursor;

// Reads `count` tensor descriptions at `cursor` and finds their data in `bytes`, the whole file;
// appends to `contents.tensors`. A failure is left in the cursor.
void parse_gguf_tensors(GgufCursor& cursor,
                        std::uint64_t count,
                        std::span<const std::byte> bytes,
                        GgufContents& contents);

// Reads a whole file.
// Errors: bad_file and unsupported as GgufFile::open says. Views in the result point into `bytes`.
[[nodiscard]] Result<GgufContents> parse_gguf(std::span<const std::byte> bytes,
                                              const std::string& name);

}  // namespace kvspan::model
