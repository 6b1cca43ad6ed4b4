// SPDX-License-Identifier: Apache-2.0
// Weights come out of every type exactly as the format says.
// Read next: model/tensor.hpp.
#include "model/gguf.hpp"
#include "model/tensor.hpp"
#include "tests/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

using testing::ByteSink;
using testing::GgufWriter;
using ::testing::HasSubstr;

TEST(Tensor, ConvertsEveryHalfExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    const double expected = testing::half_value(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TEST(Tensor, ConvertsBfloat16ByItsTopBits) {
  EXPECT_EQ(bfloat16_to_float(0x3F80), 1.0f);
  EXPECT_EQ(bfloat16_to_float(0xC040), -3.0f);
  EXPECT_EQ(bfloat16_to_float(0x7F80), HUGE_VALF);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(0x7FC0)));
}

// A block by hand: d = 0.5, levels 0..31 minus 16.
TEST(Tensor, ReadsQ80BlocksByTheirLayout) {
  ByteSink sink;
  sink.number(std::uint16_t{0x3800});
  for (int i = 0; i < 32; ++i) {
    sink.number(static_cast<std::int8_t>(i - 16));
  }
  GgufTensor tensor;
  tensor.type = TensorType::q8_0;
  tensor.dimensions = {32, 1, 1, 1};
  tensor.data = sink.bytes();
  auto matrix = unpack_tensor(tensor, 1, 32);
  ASSERT_TRUE(matrix) << matrix.error().message;
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(matrix->data()[i], 0.5f * static_cast<float>(i - 16));
  }
}

// A block by hand: d = 2, byte j holds element j (low) = j and element 16 + j (high) = 15 - j.
TEST(Tensor, ReadsQ40NibblesLowThenHigh) {
  ByteSink sink;
  sink.number(std::uint16_t{0x4000});
  for (unsigned j = 0; j < 16; ++j) {
    sink.number(static_cast<std::uint8_t>(j | ((15 - j) << 4)));
  }
  GgufTensor tensor;
  tensor.type = TensorType::q4_0;
  tensor.dimensions = {32, 1, 1, 1};
  tensor.data = sink.bytes();
  auto matrix = unpack_tensor(tensor, 1, 32);
  ASSERT_TRUE(matrix) << matrix.error().message;
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(matrix->data()[j], 2.0f * static_cast<float>(j - 8));
    EXPECT_EQ(matrix->data()[16 + j], 2.0f * static_cast<float>(15 - j - 8));
  }
}

TEST(Tensor, UnpacksRandomMatricesOfEveryType) {
  for (const TensorType type :
       {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0, TensorType::q4_0}) {
    SCOPED_TRACE("seed 11, type " + std::string(tensor_type_name(type)));
    std::mt19937 random(11);
    std::normal_distribution<double> distribution;
    std::vector<double> values(3 * 96);
    for (double& value : values) {
      value = distribution(random);
    }
    const auto packed = testing::pack_tensor(type, values);
    GgufWriter writer;
    writer.add_tensor("w", {96, 3}, type, packed.bytes);
    const auto bytes = writer.file();
    auto file = GgufFile::from_bytes(bytes, "test");
    ASSERT_TRUE(file) << file.error().message;
    auto matrix = unpack_tensor(*file->find_tensor("w"), 3, 96);
    ASSERT_TRUE(matrix) << matrix.error().message;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(matrix->data()[i], static_cast<float>(packed.values[i])) << "element " << i;
    }
  }
}

TEST(Tensor, RefusesOtherDimensions) {
  GgufTensor tensor;
  tensor.name = "w";
  tensor.dimensions = {4, 2, 1, 1};
  const std::vector<std::byte> data(32);
  tensor.data = data;
  EXPECT_TRUE(unpack_tensor(tensor, 2, 4));
  auto turned = unpack_tensor(tensor, 4, 2);
  ASSERT_FALSE(turned);
  EXPECT_EQ(turned.error().code, Errc::bad_file);
  EXPECT_THAT(turned.error().message, HasSubstr("'w' is 4 x 2"));
}

TEST(Matrix, RefusesSizesThatOverflow) {
  auto matrix = Matrix::create(std::size_t{1} << 62, 16);
  ASSERT_FALSE(matrix);
  EXPECT_EQ(matrix.error().code, Errc::host_memory);
}

}  // namespace

}  // namespace kvspan::model
