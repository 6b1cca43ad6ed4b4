// SPDX-License-Identifier: Apache-2.0
// A whole file mapped read-only into memory, unmapped when the object goes.
// Not a cache and not for files that others shorten while they are read: touching a page beyond the
// new end of a shortened file ends the process (SIGBUS), as with every mapping.
// Read next: gguf.hpp, its only user.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace kvspan::model {

// Owns the mapping. Moves; does not copy.
// Thread rule: reads from any thread, moves by the owner alone.
class MappedFile {
 public:
  // Maps the regular file at `path`.
  // Errors: not_found (no such file: correct the path), io (no permission, a folder, a device: the
  // message says), bad_file (the file is empty).
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // The file's bytes [file_bytes]; valid until this object is destroyed or moved from.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_bytes_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size_bytes) noexcept
      : data_(data), size_bytes_(size_bytes) {}

  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace kvspan::model
