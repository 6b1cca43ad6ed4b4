// SPDX-License-Identifier: Apache-2.0
// take() and give() over every size a caller may state; nothing behind a struct is touched.
#include "kvspan/sdk/fill.hpp"

#include "kvspan/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvspan::sdk {
namespace {

kvspan_device_info_t value() {
  kvspan_device_info_t info;
  std::memset(&info, 0x3C, sizeof info);
  return info;
}

TEST(Take, AcceptsOnlyTheExactSize) {
  kvspan_device_info_t info = value();
  for (std::uint64_t size = 0; size <= sizeof info + 64; ++size) {
    info.struct_size = static_cast<std::uint32_t>(size);
    kvspan_error_t error{};
    const kvspan_result_t result = take(&info, &error, "device.describe", 3);
    EXPECT_EQ(result, size == sizeof info ? KVSPAN_OK : KVSPAN_E_BAD_STRUCT_SIZE) << size;
    EXPECT_EQ(error.code, result);
    EXPECT_EQ(error.argument, size == sizeof info ? 0u : 3u);
  }
  info.struct_size = UINT32_MAX;
  EXPECT_EQ(take(&info, nullptr, "x"), KVSPAN_E_BAD_STRUCT_SIZE);
}

TEST(Take, RefusesNull) {
  kvspan_error_t error{};
  const kvspan_device_info_t* none = nullptr;
  EXPECT_EQ(take(none, &error, "device.describe", 3), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 3u);
}

TEST(Give, WritesWhatTheCallerHasRoomForAndNoByteMore) {
  const kvspan_device_info_t wanted = value();
  for (std::size_t room = 4; room <= sizeof wanted + 40; ++room) {
    std::vector<unsigned char> bytes(room + 32, 0xEE);
    const auto stated = static_cast<std::uint32_t>(room);
    std::memcpy(bytes.data(), &stated, sizeof stated);
    auto* out = reinterpret_cast<kvspan_device_info_t*>(bytes.data());
    ASSERT_EQ(give(out, wanted, nullptr, "device.describe"), KVSPAN_OK);
    const std::size_t written = std::min(room, sizeof wanted);
    std::uint32_t said = 0;
    std::memcpy(&said, bytes.data(), sizeof said);
    EXPECT_EQ(said, written);
    EXPECT_EQ(
        std::memcmp(
            bytes.data() + 4, reinterpret_cast<const unsigned char*>(&wanted) + 4, written - 4),
        0);
    for (std::size_t i = written; i < bytes.size(); ++i) {
      ASSERT_EQ(bytes[i], 0xEE) << "room " << room << " byte " << i;
    }
  }
}

TEST(Give, RefusesNullAndSizesThatCannotHoldThemselves) {
  const kvspan_device_info_t wanted = value();
  kvspan_device_info_t* none = nullptr;
  EXPECT_EQ(give(none, wanted, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  for (std::uint32_t size = 0; size < 4; ++size) {
    kvspan_device_info_t out{};
    out.struct_size = size;
    kvspan_error_t error{};
    EXPECT_EQ(give(&out, wanted, &error, "x", 2), KVSPAN_E_BAD_STRUCT_SIZE);
    EXPECT_EQ(error.argument, 2u);
    EXPECT_EQ(out.struct_size, size);
    EXPECT_EQ(out.flags, 0u);
  }
}

}  // namespace
}  // namespace kvspan::sdk
