// SPDX-License-Identifier: Apache-2.0
// Makes small GGUF files in memory for the model's tests, sound ones and, by hand, unsound ones.
// Not a tool for users: it writes what the tests need and checks nothing.
// Read next: tiny_model.hpp, which writes whole random models with it.
#pragma once

#include "model/gguf.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::model::testing {

// Little-endian bytes, appended to.
class ByteSink {
 public:
  template <class T>
  void number(T value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }

  void text(std::string_view value);  // with its length in front
  void raw(const std::vector<std::byte>& value);
  void pad_to(std::size_t alignment_bytes);

  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// A tensor's packed bytes and the exact value of each element.
struct PackedTensor {
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

// Packs `values` as `type`, rounding as it likes; `values` of the result are exactly what the bytes
// stand for.
[[nodiscard]] PackedTensor pack_tensor(TensorType type, const std::vector<double>& values);

// The exact value of a binary16. Independent of the product's own conversion.
[[nodiscard]] double half_value(std::uint16_t bits);

class GgufWriter {
 public:
  void add_u32(std::string_view key, std::uint32_t value);
  void add_f32(std::string_view key, float value);
  void add_flag(std::string_view key, std::uint8_t value);
  void add_text(std::string_view key, std::string_view value);
  void add_texts(std::string_view key, const std::vector<std::string>& values);
  void add_i32s(std::string_view key, const std::vector<std::int32_t>& values);
  // A value of any type, its bytes given.
  void add_raw(std::string_view key, std::uint32_t type, const std::vector<std::byte>& value);

  void add_tensor(std::string_view name,
                  const std::vector<std::uint64_t>& dimensions,
                  TensorType type,
                  const std::vector<std::byte>& data);

  // Replaces this file's tensors by those of `other`.
  void take_tensors_of(const GgufWriter& other) { tensors_ = other.tensors_; }

  // The file. The last tensor's data is not padded, so that every shorter prefix is damaged.
  [[nodiscard]] std::vector<std::byte> file(std::uint32_t version = 3,
                                            std::size_t alignment_bytes = 32) const;

 private:
  std::uint64_t value_count_ = 0;
  ByteSink values_;

  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dimensions;
    TensorType type;
    std::vector<std::byte> data;
  };

  std::vector<Tensor> tensors_;
};

}  // namespace kvspan::model::testing
