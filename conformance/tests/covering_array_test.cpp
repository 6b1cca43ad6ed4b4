// SPDX-License-Identifier: Apache-2.0
// The covering array covers: every three values of three factors that may come together do, in rows
// that are all allowed, and the same rows each time.
#include "covering_array.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvspan::conformance {
namespace {

bool everything(const Choice&) {
  return true;
}

/// Value 1 of the first factor never comes with value 0 of the second.
bool not_one_with_zero(const Choice& choice) {
  return choice[0] != 1 || choice[1] != 0;
}

/// Triples that are allowed and that no row has.
uint32_t missing(const std::vector<uint32_t>& sizes,
                 const Allowed& allowed,
                 const std::vector<Choice>& rows) {
  uint32_t count = 0;
  const auto factors = static_cast<uint32_t>(sizes.size());
  Choice want(factors, kOpen);
  for (uint32_t a = 0; a < factors; ++a) {
    for (uint32_t b = a + 1; b < factors; ++b) {
      for (uint32_t c = b + 1; c < factors; ++c) {
        for (uint32_t i = 0; i < sizes[a] * sizes[b] * sizes[c]; ++i) {
          want.assign(factors, kOpen);
          want[a] = i / (sizes[b] * sizes[c]);
          want[b] = i / sizes[c] % sizes[b];
          want[c] = i % sizes[c];
          const bool found = std::any_of(rows.begin(), rows.end(), [&](const Choice& row) {
            return row[a] == want[a] && row[b] == want[b] && row[c] == want[c];
          });
          count += allowed(want) && !found ? 1u : 0u;
        }
      }
    }
  }
  return count;
}

struct Shape {
  std::vector<uint32_t> sizes;
  Allowed allowed;
  std::size_t rows_max;  // of a greedy array of that shape, with some air
};

std::vector<Shape> shapes() {
  return {{{2, 2, 2}, everything, 8},
          {{3, 4, 5}, everything, 60},
          {{2, 2, 2, 2, 2, 2, 2, 2}, everything, 24},
          {{4, 3, 3, 2, 5}, not_one_with_zero, 120},
          {{8, 8, 6, 4, 3, 2, 9, 3, 5}, not_one_with_zero, 1100}};
}

TEST(CoveringArray, EveryAllowedTripleIsInSomeRow) {
  for (const Shape& shape : shapes()) {
    const std::vector<Choice> rows = covering_array(shape.sizes, shape.allowed, 1);
    EXPECT_EQ(missing(shape.sizes, shape.allowed, rows), 0u);
    EXPECT_LE(rows.size(), shape.rows_max);
    for (const Choice& row : rows) {
      EXPECT_TRUE(shape.allowed(row));
      for (std::size_t factor = 0; factor < row.size(); ++factor) {
        EXPECT_LT(row[factor], shape.sizes[factor]);
      }
    }
  }
}

TEST(CoveringArray, IsTheSameEachTimeAndAnotherForAnotherSeed) {
  const Shape shape = shapes()[3];
  const auto rows = covering_array(shape.sizes, shape.allowed, 5);
  EXPECT_EQ(rows, covering_array(shape.sizes, shape.allowed, 5));
  EXPECT_NE(rows, covering_array(shape.sizes, shape.allowed, 6));
}

/// Three values that may come together by themselves, and with no value of the fourth factor.
TEST(CoveringArray, WhatCannotBeHadIsGivenUp) {
  const auto allowed = [](const Choice& choice) {
    return choice[0] != 0 || choice[1] != 0 || choice[2] != 0 || choice[3] == kOpen;
  };
  const auto rows = covering_array({2, 2, 2, 2}, allowed, 1);
  EXPECT_EQ(missing({2, 2, 2, 2}, allowed, rows), 1u);
}

/// Without the last row something is missing: the test above can fail.
TEST(CoveringArray, NoRowIsForNothing) {
  for (const Shape& shape : shapes()) {
    std::vector<Choice> rows = covering_array(shape.sizes, shape.allowed, 1);
    rows.pop_back();
    EXPECT_GT(missing(shape.sizes, shape.allowed, rows), 0u);
  }
}

TEST(CoveringArray, ItsFirstTenthCoversALotAlready) {
  const Shape shape = shapes().back();
  std::vector<Choice> rows = covering_array(shape.sizes, shape.allowed, 1);
  const uint32_t all = missing(shape.sizes, shape.allowed, {});
  rows.resize(rows.size() / 10);
  EXPECT_LT(missing(shape.sizes, shape.allowed, rows), all * 7 / 10);
}

}  // namespace
}  // namespace kvspan::conformance
