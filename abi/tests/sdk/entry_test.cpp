// SPDX-License-Identifier: Apache-2.0
// Negotiation, swept over all small ranges, and the entry's judgement of a host on a fake major.
#include "kvspan/sdk/entry.hpp"

#include "kvspan/sdk/host_services.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace kvspan::sdk {
namespace {

// The definition, word for word: some minor is in both ranges; the chosen one is min of the maxima.
TEST(Negotiate, MeetsExactlyWhereTheRangesShareAMinor) {
  constexpr std::uint32_t kMost = 6;
  for (std::uint32_t a = 0; a <= kMost; ++a) {
    for (std::uint32_t b = 0; b <= kMost; ++b) {
      for (std::uint32_t c = 0; c <= kMost; ++c) {
        for (std::uint32_t d = 0; d <= kMost; ++d) {
          bool shared = false;
          for (std::uint32_t minor = 0; minor <= kMost; ++minor) {
            shared = shared || (a <= minor && minor <= b && c <= minor && minor <= d);
          }
          const Negotiation met = negotiate({a, b}, {c, d});
          const Negotiation mirrored = negotiate({c, d}, {a, b});
          ASSERT_EQ(met.meets, shared) << a << b << c << d;
          ASSERT_EQ(met.minor, shared ? std::min(b, d) : 0u);
          ASSERT_EQ(mirrored.meets, met.meets);
          ASSERT_EQ(mirrored.minor, met.minor);
        }
      }
    }
  }
}

TEST(Negotiate, TakesTheWholeRangeOfNumbers) {
  EXPECT_EQ(negotiate({0, UINT32_MAX}, {3, 9}).minor, 9u);
  EXPECT_TRUE(negotiate({UINT32_MAX, UINT32_MAX}, {0, UINT32_MAX}).meets);
  EXPECT_FALSE(negotiate({1, 0}, {0, UINT32_MAX}).meets) << "an empty range";
}

// A private major: another hash and ranges than this build's, so that all outcomes can be seen.
class AcceptOpen : public ::testing::Test {
 protected:
  AcceptOpen() : services_(LoadOptions{}) {
    info_.struct_size = sizeof info_;
    info_.host_minor_min = 2;
    info_.host_minor_max = 5;
    info_.header_hash = own_.header_hash;
    info_.host = services_.table();
    std::memset(&plugin_, 0xEE, sizeof plugin_);
    plugin_.struct_size = sizeof plugin_;
    std::memset(&error_, 0xEE, sizeof error_);
  }

  kvspan_result_t accept() { return accept_open(&info_, &plugin_, &error_, own_); }

  PluginIdentity own_{{3, 7}, 0xFEEDu};
  HostServices services_;
  kvspan_open_info_t info_{};
  kvspan_plugin_t plugin_;
  kvspan_error_t error_;
};

TEST_F(AcceptOpen, ChoosesTheMinorAndFillsEveryField) {
  ASSERT_EQ(accept(), KVSPAN_OK);
  EXPECT_EQ(plugin_.minor, 5u);
  EXPECT_EQ(plugin_.plugin_minor_min, 3u);
  EXPECT_EQ(plugin_.plugin_minor_max, 7u);
  EXPECT_EQ(plugin_.self, nullptr);
  EXPECT_EQ(plugin_.table, nullptr);
  EXPECT_EQ(plugin_.close, nullptr);
}

TEST_F(AcceptOpen, SweepsHostsBelowTouchingInsideAndAbove) {
  for (std::uint32_t low = 0; low <= 9; ++low) {
    for (std::uint32_t high = low; high <= 9; ++high) {
      info_.host_minor_min = low;
      info_.host_minor_max = high;
      plugin_.struct_size = sizeof plugin_;
      const bool meets = low <= 7 && high >= 3;
      ASSERT_EQ(accept(), meets ? KVSPAN_OK : KVSPAN_E_VERSION) << low << ".." << high;
      EXPECT_EQ(plugin_.minor, meets ? std::min(high, 7u) : 0u);
      EXPECT_EQ(plugin_.plugin_minor_min, 3u) << "filled on failure too";
      EXPECT_EQ(plugin_.plugin_minor_max, 7u) << "filled on failure too";
    }
  }
}

TEST_F(AcceptOpen, SaysBothRanges) {
  info_.host_minor_min = 8;
  info_.host_minor_max = 9;
  ASSERT_EQ(accept(), KVSPAN_E_VERSION);
  EXPECT_NE(std::strstr(error_.message, "8..9"), nullptr) << error_.message;
  EXPECT_NE(std::strstr(error_.message, "3..7"), nullptr) << error_.message;
}

TEST_F(AcceptOpen, RefusesAnotherHeaderHashAndSaysBoth) {
  info_.header_hash = 0xBEEF;
  ASSERT_EQ(accept(), KVSPAN_E_VERSION);
  EXPECT_NE(std::strstr(error_.message, "beef"), nullptr) << error_.message;
  EXPECT_NE(std::strstr(error_.message, "feed"), nullptr) << error_.message;
  EXPECT_EQ(plugin_.plugin_minor_max, 7u);
  EXPECT_EQ(plugin_.self, nullptr);
}

TEST_F(AcceptOpen, RefusesNullSizesAndReservedFields) {
  EXPECT_EQ(accept_open(nullptr, &plugin_, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(accept_open(&info_, nullptr, nullptr), KVSPAN_E_INVALID_ARG);
  info_.struct_size -= 8;
  EXPECT_EQ(accept(), KVSPAN_E_BAD_STRUCT_SIZE);
  info_.struct_size = sizeof info_;
  plugin_.struct_size += 8;
  EXPECT_EQ(accept(), KVSPAN_E_BAD_STRUCT_SIZE);
  plugin_.struct_size = sizeof plugin_;
  info_.reserved = 1;
  EXPECT_EQ(accept(), KVSPAN_E_INVALID_ARG);
  info_.reserved = 0;
  info_.host = nullptr;
  EXPECT_EQ(accept(), KVSPAN_E_INVALID_ARG);
}

}  // namespace
}  // namespace kvspan::sdk
