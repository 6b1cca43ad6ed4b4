// SPDX-License-Identifier: Apache-2.0
// fail() and its kin fill every field; guard() lets nothing through.
#include "kvspan/sdk/error.hpp"

#include "kvspan/sdk/guard.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace kvspan::sdk {
namespace {

kvspan_error_t poisoned() {
  kvspan_error_t error;
  std::memset(&error, 0xA5, sizeof error);
  return error;
}

TEST(Fail, FillsEveryFieldOfAPoisonedRecord) {
  kvspan_error_t error = poisoned();
  EXPECT_EQ(fail(&error, KVSPAN_E_BUSY, "queue.destroy", "%d submits", 3), KVSPAN_E_BUSY);
  kvspan_error_t expected{};
  expected.struct_size = sizeof expected;
  expected.code = KVSPAN_E_BUSY;
  expected.field_offset = UINT32_MAX;
  std::strcpy(expected.where, "queue.destroy");
  std::strcpy(expected.message, "3 submits");
  error.message[std::strlen(error.message)] = '\0';
  EXPECT_STREQ(error.message, "3 submits");
  EXPECT_EQ(std::memcmp(&error, &expected, offsetof(kvspan_error_t, message)), 0);
}

TEST(Fail, WithoutARecordReturnsTheCode) {
  EXPECT_EQ(fail(nullptr, KVSPAN_E_INTERNAL, "x", "%s", "y"), KVSPAN_E_INTERNAL);
  EXPECT_EQ(fail_argument(nullptr, Place{1, 2}, "x", "y"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fail_amount(nullptr, KVSPAN_E_WORKSPACE, "x", Amount{1, 2, 3}, "y"),
            KVSPAN_E_WORKSPACE);
  EXPECT_EQ(fail_reasons(nullptr, "x", 1, "y"), KVSPAN_E_UNSUPPORTED);
}

TEST(Fail, CutsAtTheEndOfACharacter) {
  for (const char* letter : {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, '.');
      while (text.size() < 400) {
        text += letter;
      }
      kvspan_error_t error = poisoned();
      fail(&error, KVSPAN_E_INTERNAL, text.c_str(), "%s", text.c_str());
      for (const char* kept : {error.where, error.message}) {
        const std::size_t capacity = kept == error.where ? sizeof error.where : 208;
        const std::size_t length = strnlen(kept, capacity);
        ASSERT_LT(length, capacity);
        EXPECT_EQ(text.compare(0, length, kept), 0);
        EXPECT_EQ((length - shift) % std::strlen(letter), 0u) << letter << shift;
        EXPECT_GT(length + std::strlen(letter), capacity - 1);
      }
    }
  }
}

TEST(Fail, KeepsATextThatJustFits) {
  const std::string text(sizeof(kvspan_error_t::message) - 1, 'x');
  kvspan_error_t error = poisoned();
  fail(&error, KVSPAN_E_INTERNAL, nullptr, "%s", text.c_str());
  EXPECT_EQ(error.message, text);
  EXPECT_STREQ(error.where, "");
}

TEST(FailAmount, SubtractsWhatIsKnown) {
  const std::uint64_t unknown = KVSPAN_UNKNOWN_AMOUNT;

  struct Case {
    std::uint64_t required, provided, missing;
  };

  for (const Case& c : {Case{10, 4, 6},
                        Case{4, 10, 0},
                        Case{unknown, 4, unknown},
                        Case{10, unknown, unknown},
                        Case{unknown - 1, 0, unknown - 1}}) {
    kvspan_error_t error = poisoned();
    fail_amount(&error,
                KVSPAN_E_DEVICE_MEMORY,
                "memory.alloc",
                Amount{KVSPAN_RESOURCE_DEVICE_MEMORY, c.required, c.provided},
                "no");
    EXPECT_EQ(error.resource, KVSPAN_RESOURCE_DEVICE_MEMORY);
    EXPECT_EQ(error.required, c.required);
    EXPECT_EQ(error.provided, c.provided);
    EXPECT_EQ(error.missing, c.missing);
    EXPECT_EQ(error.flags, 0u);
  }
}

TEST(FailArgument, NamesThePlace) {
  kvspan_error_t error = poisoned();
  fail_argument(&error, Place{3, 24}, "codec.encode", "no");
  EXPECT_EQ(error.code, KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 3u);
  EXPECT_EQ(error.field_offset, 24u);
}

TEST(FailReasons, CarriesTheBits) {
  kvspan_error_t error = poisoned();
  fail_reasons(&error, "attention.run", KVSPAN_WHY_PAIR, "no");
  EXPECT_EQ(error.reasons, KVSPAN_WHY_PAIR);
}

TEST(Guard, PassesResultsOn) {
  kvspan_error_t error = poisoned();
  const kvspan_error_t before = error;
  EXPECT_EQ(guard(&error, "x", [] { return KVSPAN_TIMEOUT; }), KVSPAN_TIMEOUT);
  EXPECT_EQ(std::memcmp(&error, &before, sizeof error), 0) << "written on success";
}

TEST(Guard, TurnsExceptionsIntoCodes) {
  kvspan_error_t error = poisoned();
  const auto out_of_memory = []() -> kvspan_result_t { throw std::bad_alloc(); };
  EXPECT_EQ(guard(&error, "x", out_of_memory), KVSPAN_E_HOST_MEMORY);
  EXPECT_EQ(error.resource, KVSPAN_RESOURCE_HOST_MEMORY);
  EXPECT_EQ(error.required, KVSPAN_UNKNOWN_AMOUNT);
  const auto broken = []() -> kvspan_result_t { throw std::runtime_error("a wheel came off"); };
  EXPECT_EQ(guard(&error, "copy.copy", broken), KVSPAN_E_INTERNAL);
  EXPECT_NE(std::strstr(error.message, "a wheel came off"), nullptr);
  EXPECT_STREQ(error.where, "copy.copy");
  EXPECT_EQ(guard(nullptr, "x", []() -> kvspan_result_t { throw 1; }), KVSPAN_E_INTERNAL);
}

}  // namespace
}  // namespace kvspan::sdk
