// SPDX-License-Identifier: Apache-2.0
// A GGUF file, versions 2 and 3: its metadata and where each tensor's bytes lie. Every length,
// count and offset in it is checked against the file before use, so that a damaged file ends as an
// Error and as nothing else.
// Not here: what the metadata means (model_config.hpp, tokenizer.hpp) or how weights are unpacked
// (tensor.hpp).
// Source of the format: the GGUF specification in the ggml project, docs/gguf.md.
// Read next: gguf_parser.cpp for the checks.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/mapped_file.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvspan::model {

// Type of a metadata value; the numbers are the file's.
enum class GgufType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};

// Type of a tensor's elements; the numbers are the file's. Only what tensor.hpp can unpack.
enum class TensorType : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

// Name of a tensor type as people write it, for example "Q8_0". [any-thread]
[[nodiscard]] std::string_view tensor_type_name(TensorType type) noexcept;

// An array in the metadata. `bytes` are its packed elements as they lie in the file; the strings of
// a string array are each preceded by their length, and all were walked when the file was read.
struct GgufArray {
  GgufType element = GgufType::u8;
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;
};

// A metadata value, widened: every unsigned type to uint64, signed to int64, floats to double. Text
// and arrays point into the file's bytes.
using GgufValue =
    std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, GgufArray>;

// A tensor's place. `dimensions[0]` is the innermost (contiguous) one; a weight matrix of a model
// is stored as dimensions {in, out}, that is row-major [out, in].
struct GgufTensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::uint32_t dimension_count = 0;
  std::array<std::uint64_t, 4> dimensions = {1, 1, 1, 1};
  std::uint64_t elements = 0;       // product of the dimensions, never 0
  std::span<const std::byte> data;  // exactly the bytes of `elements` elements, inside the file
};

// What the parser found; views point into the bytes that it was given.
struct GgufContents {
  std::uint32_t version = 0;
  std::uint64_t alignment_bytes = 32;
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<GgufTensor> tensors;  // in the file's order
};

// An open GGUF file. Owns the mapping that all its views point into. Moves; does not copy.
// Thread rule: const members from any thread.
class GgufFile {
 public:
  // Opens and checks the file at `path`.
  // Errors: not_found or io (correct the path or its permissions), bad_file (not GGUF or damaged:
  // the message names the entry; fetch the file again), unsupported (a GGUF version or tensor type
  // that this reader lacks: the message names it; convert the file), host_memory.
  [[nodiscard]] static Result<GgufFile> open(const std::string& path);

  // The same over bytes in memory, which the caller keeps alive and unchanged as long as this
  // object. `name` stands for the path in messages.
  [[nodiscard]] static Result<GgufFile> from_bytes(std::span<const std::byte> bytes,
                                                   const std::string& name);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  [[nodiscard]] std::uint32_t version() const noexcept { return contents_.version; }

  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& values() const noexcept {
    return contents_.values;
  }

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const noexcept {
    return contents_.tensors;
  }

  // The tensor called `tensor_name`, or nullptr.
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view tensor_name) const noexcept;

  [[nodiscard]] bool has_value(std::string_view key) const noexcept;

  // One value of the wanted kind. Whole numbers convert between signed and unsigned where the value
  // allows it and count as numbers too.
  // Errors: not_found (no such key), bad_file (the key holds another kind; the message says which).
  [[nodiscard]] Result<std::uint64_t> count_value(std::string_view key) const;
  [[nodiscard]] Result<double> number_value(std::string_view key) const;
  [[nodiscard]] Result<bool> flag_value(std::string_view key) const;
  [[nodiscard]] Result<std::string_view> text_value(std::string_view key) const;
  // Views into the file; valid as long as this object.
  [[nodiscard]] Result<std::vector<std::string_view>> text_array(std::string_view key) const;
  // Elements of any whole-number type; a u64 above the int64 range is bad_file.
  [[nodiscard]] Result<std::vector<std::int64_t>> integer_array(std::string_view key) const;

 private:
  [[nodiscard]] Result<const GgufValue*> need(std::string_view key) const;
  [[nodiscard]] Result<const GgufArray*> need_array(std::string_view key) const;

  std::string name_;
  std::optional<MappedFile> file_;
  GgufContents contents_;
  std::map<std::string, std::size_t, std::less<>> tensor_index_;
};

}  // namespace kvspan::model
