// SPDX-License-Identifier: Apache-2.0
// Names, ids and row sizes of the element types, and what a refusal says.
#include "kvspan/core/layout/kv_type.hpp"

#include "kvspan/core/error.hpp"
#include "kvspan/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;

struct RowSize {
  const char* type_name;
  kvspan_type_t id;
  std::uint64_t bytes_of_256;
  std::uint64_t bytes_of_1024;
};

// Bytes of rows as the format defines them: blocks of 32 elements with their scales.
std::vector<RowSize> row_sizes() {
  return {
      {"f32", KVSPAN_TYPE_F32, 1024, 4096},
      {"f16", KVSPAN_TYPE_F16, 512, 2048},
      {"bf16", KVSPAN_TYPE_BF16, 512, 2048},
      {"q8_0", KVSPAN_TYPE_Q8_0, 272, 1088},
      {"q5_1", KVSPAN_TYPE_Q5_1, 192, 768},
      {"q5_0", KVSPAN_TYPE_Q5_0, 176, 704},
      {"q4_1", KVSPAN_TYPE_Q4_1, 160, 640},
      {"q4_0", KVSPAN_TYPE_Q4_0, 144, 576},
  };
}

TEST(KvType, RowsHaveTheBytesOfTheFormat) {
  for (const RowSize& row : row_sizes()) {
    SCOPED_TRACE(row.type_name);
    EXPECT_EQ(row_bytes(row.id, 256), row.bytes_of_256);
    EXPECT_EQ(row_bytes(row.id, 1024), row.bytes_of_1024);
    EXPECT_EQ(row_bytes(row.id, 0), 0u);
  }
}

TEST(KvType, IdsAndNamesNameTheSameTypes) {
  ASSERT_EQ(kv_types().size(), row_sizes().size());
  for (const RowSize& row : row_sizes()) {
    SCOPED_TRACE(row.type_name);
    const auto by_name = kv_type_named(row.type_name);
    const auto by_id = kv_type(row.id);
    ASSERT_TRUE(by_name && by_id);
    EXPECT_EQ(by_name->id, row.id);
    EXPECT_EQ(by_id->name, row.type_name);
  }
}

TEST(KvType, UnknownNameIsAnsweredWithTheKnownOnes) {
  for (const char* unknown : {"iq4_nl", "q8_1", "Q8_0", "", "q8_0 "}) {
    SCOPED_TRACE(unknown);
    const auto type = kv_type_named(unknown);
    ASSERT_FALSE(type);
    EXPECT_EQ(type.error().code, Errc::invalid_argument);
    EXPECT_EQ(type.error().message,
              "unknown KV type '" + std::string(unknown) +
                  "'; known types are f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 and q4_0");
  }
}

TEST(KvType, VeryLongNameIsShownInPart) {
  const auto type = kv_type_named(std::string(100000, 'q'));
  ASSERT_FALSE(type);
  EXPECT_LT(type.error().message.size(), 200u);
}

TEST(KvType, UnknownIdIsAnsweredWithTheKnownOnes) {
  for (const kvspan_type_t id : {4u, 5u, 9u, 20u, 31u, 0x7fffffffu}) {
    SCOPED_TRACE(id);
    const auto type = kv_type(id);
    ASSERT_FALSE(type);
    EXPECT_EQ(type.error().code, Errc::unsupported);
    EXPECT_THAT(type.error().message, HasSubstr("KV type " + std::to_string(id)));
    EXPECT_THAT(type.error().message, HasSubstr("q4_1 and q4_0"));
  }
}

TEST(KvType, VendorIdIsSaidToBelongToAPlugin) {
  const auto bytes = row_bytes(KVSPAN_TYPE_VENDOR + 1, 64);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, Errc::unsupported);
  EXPECT_THAT(bytes.error().message, HasSubstr("belongs to a plugin"));
}

TEST(KvType, BlockThatDoesNotDivideTheHeadIsRefusedByName) {
  const auto bytes = row_bytes(KVSPAN_TYPE_Q8_0, 80);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, Errc::unsupported);
  EXPECT_EQ(bytes.error().message,
            "head size 80 is not a multiple of the 32-element block of q8_0; use f32, f16 or bf16, "
            "or head size 64 or 96");
}

TEST(KvType, EightyIsFineWithoutBlocks) {
  EXPECT_EQ(row_bytes(KVSPAN_TYPE_F32, 80), 320u);
  EXPECT_EQ(row_bytes(KVSPAN_TYPE_F16, 80), 160u);
  EXPECT_EQ(row_bytes(KVSPAN_TYPE_BF16, 80), 160u);
}

TEST(KvType, EverySizeIsEitherExactOrRefused) {
  for (const KvType& type : kv_types()) {
    for (std::uint64_t elements = 1; elements <= 512; ++elements) {
      const auto bytes = row_bytes(type.id, elements);
      ASSERT_EQ(bytes.has_value(), elements % type.block_elements == 0)
          << type.name << " " << elements;
      if (bytes) {
        ASSERT_EQ(*bytes * type.block_elements, elements * type.block_bytes);
      }
    }
  }
}

TEST(KvType, AdviceNeverNamesASizeOfZeroOrOneThatWraps) {
  const auto small = row_bytes(KVSPAN_TYPE_Q4_0, 20);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, HasSubstr("or head size 32"));
  const auto large = row_bytes(KVSPAN_TYPE_Q4_0, std::numeric_limits<std::uint64_t>::max());
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("or head size 18446744073709551584"));
}

TEST(KvType, RowBeyondSixtyFourBitsIsTooLarge) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / 4;
  EXPECT_EQ(row_bytes(KVSPAN_TYPE_F32, most), most * 4);
  const auto bytes = row_bytes(KVSPAN_TYPE_F32, most + 1);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, Errc::too_large);
}

}  // namespace
}  // namespace kvspan
