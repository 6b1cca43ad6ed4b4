// SPDX-License-Identifier: Apache-2.0
// Unpacking of weights.
// Source of the block layouts: ggml, ggml-common.h (block_q8_0, block_q4_0) and
// dequantize_row_q8_0, dequantize_row_q4_0.
// Read next: tensor.hpp for the contract.
#include "model/tensor.hpp"

#include "model/fail.hpp"
#include "model/gguf_parser.hpp"

#include <bit>
#include <new>
#include <span>
#include <utility>

namespace kvspan::model {

namespace {

constexpr std::size_t kBlock = 32;                 // elements of a q8_0 or q4_0 block
constexpr std::size_t kQ80Bytes = 2 + kBlock;      // a half d, then 32 int8
constexpr std::size_t kQ40Bytes = 2 + kBlock / 2;  // a half d, then 16 pairs of nibbles
constexpr int kQ40Zero = 8;                        // the nibble that stands for 0

float block_scale(std::span<const std::byte> block) noexcept {
  return half_to_float(load_number<std::uint16_t>(block));
}

void unpack_q8_0(std::span<const std::byte> data, float* out, std::size_t elements) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const auto block = data.subspan(i / kBlock * kQ80Bytes, kQ80Bytes);
    const auto q = load_number<std::int8_t>(block.subspan(2 + i % kBlock));
    out[i] = static_cast<float>(q) * block_scale(block);
  }
}

// Byte j of a block holds element j in its low nibble and element 16 + j in its high one.
void unpack_q4_0(std::span<const std::byte> data, float* out, std::size_t elements) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    const auto block = data.subspan(i / kBlock * kQ40Bytes, kQ40Bytes);
    const std::size_t within = i % kBlock;
    const int pair = std::to_integer<int>(block[2 + within % (kBlock / 2)]);
    const int nibble = within < kBlock / 2 ? pair & 15 : pair >> 4;
    out[i] = static_cast<float>(nibble - kQ40Zero) * block_scale(block);
  }
}

template <class T, class Convert>
void unpack_each(std::span<const std::byte> data,
                 float* out,
                 std::size_t elements,
                 Convert convert) noexcept {
  for (std::size_t i = 0; i < elements; ++i) {
    out[i] = convert(load_number<T>(data.subspan(i * sizeof(T))));
  }
}

}  // namespace

float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0x1Fu) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  }
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in f32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));  // 127 - 15
}

float bfloat16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

Result<Matrix> Matrix::create(std::size_t rows, std::size_t columns) {
  std::size_t elements = 0;
  std::size_t size_bytes = 0;
  if (!__builtin_mul_overflow(rows, columns, &elements) &&
      !__builtin_mul_overflow(elements, sizeof(float), &size_bytes)) {
    Matrix matrix;
    matrix.data_.reset(new (std::nothrow) float[elements]);
    if (matrix.data_ != nullptr) {
      matrix.rows_ = rows;
      matrix.columns_ = columns;
      return matrix;
    }
  }
  auto failure =
      fail(Errc::host_memory, "no memory for an f32 matrix of {} x {} elements", rows, columns);
  failure.value().required = size_bytes;
  return failure;
}

Result<Matrix> unpack_tensor(const GgufTensor& tensor, std::size_t rows, std::size_t columns) {
  const bool fits = tensor.dimensions[0] == columns && tensor.dimensions[1] == rows &&
                    tensor.dimensions[2] == 1 && tensor.dimensions[3] == 1;
  if (!fits) {
    return fail(Errc::bad_file,
                "tensor '{}' is {} x {} x {} x {} where the model's metadata asks for {} x {}",
                printable(tensor.name),
                tensor.dimensions[0],
                tensor.dimensions[1],
                tensor.dimensions[2],
                tensor.dimensions[3],
                columns,
                rows);
  }
  auto matrix = Matrix::create(rows, columns);
  if (!matrix) {
    return matrix;
  }
  const std::size_t elements = rows * columns;
  switch (tensor.type) {
    case TensorType::f32:
      unpack_each<float>(tensor.data, matrix->data(), elements, [](float value) { return value; });
      break;
    case TensorType::f16:
      unpack_each<std::uint16_t>(tensor.data, matrix->data(), elements, half_to_float);
      break;
    case TensorType::bf16:
      unpack_each<std::uint16_t>(tensor.data, matrix->data(), elements, bfloat16_to_float);
      break;
    case TensorType::q8_0:
      unpack_q8_0(tensor.data, matrix->data(), elements);
      break;
    case TensorType::q4_0:
      unpack_q4_0(tensor.data, matrix->data(), elements);
      break;
  }
  return matrix;
}

}  // namespace kvspan::model
