// SPDX-License-Identifier: Apache-2.0
// The translation of backends' results, and that no code lacks a spelling of its own.
#include "kvspan/core/error.hpp"

#include "kvspan/error.h"
#include "kvspan/result.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

kvspan_error_t detail_of(kvspan_result_t code, const char* where, const char* message) {
  kvspan_error_t detail{};
  detail.struct_size = sizeof(detail);
  detail.code = code;
  std::strncpy(detail.where, where, sizeof(detail.where) - 1);
  std::strncpy(detail.message, message, sizeof(detail.message) - 1);
  return detail;
}

TEST(Error, EveryResultCodeHasItsMeaning) {
  const std::vector<std::pair<kvspan_result_t, Errc>> meanings = {
      {KVSPAN_NOT_READY, Errc::busy},
      {KVSPAN_TIMEOUT, Errc::timeout},
      {KVSPAN_E_INVALID_ARG, Errc::invalid_argument},
      {KVSPAN_E_BAD_STRUCT_SIZE, Errc::invalid_argument},
      {KVSPAN_E_UNKNOWN_TAIL, Errc::invalid_argument},
      {KVSPAN_E_BUSY, Errc::busy},
      {KVSPAN_E_UNSUPPORTED, Errc::unsupported},
      {KVSPAN_E_HOST_MEMORY, Errc::host_memory},
      {KVSPAN_E_DEVICE_MEMORY, Errc::device_memory},
      {KVSPAN_E_WORKSPACE, Errc::workspace},
      {KVSPAN_E_QUEUE_FULL, Errc::queue_full},
      {KVSPAN_E_CANCELLED, Errc::cancelled},
      {KVSPAN_E_DEVICE_LOST, Errc::device_lost},
      {KVSPAN_E_WAIT_FAILED, Errc::wait_failed},
      {KVSPAN_E_FAILED, Errc::wait_failed},
      {KVSPAN_E_VERSION, Errc::version},
      {KVSPAN_E_NO_DEVICE, Errc::not_found},
      {KVSPAN_E_INTERNAL, Errc::internal},
      {KVSPAN_OK, Errc::internal},
  };
  for (const auto& [result, code] : meanings) {
    SCOPED_TRACE(result);
    EXPECT_EQ(name(from_abi(result, detail_of(result, "slot", "why"), "doing").code), name(code));
  }
}

TEST(Error, CodeOfALaterMinorVersionMeansItsRange) {
  const std::vector<std::pair<kvspan_result_t, Errc>> meanings = {
      {-1999, Errc::invalid_argument},
      {-2999, Errc::unsupported},
      {-3999, Errc::too_large},
      {-4999, Errc::device_lost},
      {-5999, Errc::version},
      {-6000, Errc::internal},
      {-999, Errc::internal},
      {INT32_MIN, Errc::internal},
  };
  for (const auto& [result, code] : meanings) {
    SCOPED_TRACE(result);
    EXPECT_EQ(name(from_abi(result, detail_of(result, "slot", "why"), "doing").code), name(code));
  }
}

TEST(Error, UnknownShortageMeansTheResourceThatRanOut) {
  const std::vector<std::pair<std::uint32_t, Errc>> meanings = {
      {KVSPAN_RESOURCE_HOST_MEMORY, Errc::host_memory},
      {KVSPAN_RESOURCE_LOCKED_MEMORY, Errc::host_memory},
      {KVSPAN_RESOURCE_DEVICE_MEMORY, Errc::device_memory},
      {KVSPAN_RESOURCE_WORKSPACE, Errc::workspace},
      {KVSPAN_RESOURCE_SPLIT_STATE, Errc::workspace},
      {KVSPAN_RESOURCE_QUEUE_DEPTH, Errc::queue_full},
      {KVSPAN_RESOURCE_PREPARED, Errc::too_large},
  };
  for (const auto& [resource, code] : meanings) {
    SCOPED_TRACE(resource);
    kvspan_error_t detail = detail_of(-3500, "slot", "why");
    detail.resource = resource;
    EXPECT_EQ(name(from_abi(-3500, detail, "doing").code), name(code));
  }
}

TEST(Error, KeepsSentenceAmountsAndSlot) {
  kvspan_error_t detail = detail_of(KVSPAN_E_DEVICE_MEMORY, "memory.alloc", "8 bytes are short");
  detail.required = 100;
  detail.provided = 92;
  detail.missing = 8;
  const Error error = from_abi(KVSPAN_E_DEVICE_MEMORY, detail, "allocating the arena");
  EXPECT_EQ(error.message, "allocating the arena: 8 bytes are short");
  EXPECT_EQ(error.component, "memory.alloc");
  EXPECT_EQ(error.required, 100u);
  EXPECT_EQ(error.provided, 92u);
  EXPECT_EQ(error.missing, 8u);
}

TEST(Error, KeepsAnUnknownAmountUnknown) {
  kvspan_error_t detail = detail_of(KVSPAN_E_HOST_MEMORY, "memory.import_host", "cannot lock");
  detail.missing = KVSPAN_UNKNOWN_AMOUNT;
  EXPECT_EQ(from_abi(KVSPAN_E_HOST_MEMORY, detail, "importing").missing, KVSPAN_UNKNOWN_AMOUNT);
}

TEST(Error, RecordOfAnotherResultIsNotBelieved) {
  kvspan_error_t detail = detail_of(KVSPAN_E_DEVICE_MEMORY, "memory.alloc", "stale");
  detail.required = 7;
  const Error error = from_abi(KVSPAN_E_BUSY, detail, "releasing");
  EXPECT_EQ(error.code, Errc::busy);
  EXPECT_EQ(error.message, "releasing: busy (result -1004), the backend gave no details");
  EXPECT_EQ(error.required, 0u);
  EXPECT_EQ(error.component, "");
}

TEST(Error, TextWithoutTerminatorStopsAtItsField) {
  kvspan_error_t detail = detail_of(KVSPAN_E_INTERNAL, "", "");
  std::memset(detail.where, 'w', sizeof(detail.where));
  std::memset(detail.message, 'm', sizeof(detail.message));
  const Error error = from_abi(KVSPAN_E_INTERNAL, detail, "x");
  EXPECT_EQ(error.component, std::string(sizeof(detail.where), 'w'));
  EXPECT_EQ(error.message, "x: " + std::string(sizeof(detail.message), 'm'));
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Errc::queue_full); ++code) {
    names.emplace(name(static_cast<Errc>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Errc::queue_full) + 1);
  EXPECT_EQ(names.count("queue_full"), 1u);
}

}  // namespace
}  // namespace kvspan
