// SPDX-License-Identifier: Apache-2.0
// The matrix product against double precision, and the promise that a row's bits depend on nothing
// but that row.
// Read next: model/matmul.hpp.
#include "model/matmul.hpp"
#include "model/thread_team.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

struct Shape {
  std::size_t rows;
  std::size_t outs;
  std::size_t ins;
};

std::vector<MatmulIsa> available() {
  std::vector<MatmulIsa> found;
  for (const MatmulIsa isa : {MatmulIsa::v2, MatmulIsa::avx2, MatmulIsa::avx512}) {
    if (matmul_isa_available(isa)) {
      found.push_back(isa);
    }
  }
  return found;
}

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) {
    value = distribution(random);
  }
  return values;
}

// y for the first `rows` rows of x, between two guard floats that must survive.
std::vector<float> multiply(
    MatmulIsa isa, std::size_t members, const Shape& shape, const float* x, const float* w) {
  auto team = ThreadTeam::create(members).value();
  auto matmul = Matmul::create(isa, {shape.ins, shape.outs}).value();
  const float guard = 12345.0f;
  std::vector<float> y(shape.rows * shape.outs + 2, std::numeric_limits<float>::quiet_NaN());
  y.front() = guard;
  y.back() = guard;
  const Product product{x, w, y.data() + 1, shape.rows, shape.outs, shape.ins};
  auto done = matmul.run(team, {&product, 1});
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_EQ(y.front(), guard);
  EXPECT_EQ(y.back(), guard);
  return {y.begin() + 1, y.end() - 1};
}

std::vector<Shape> random_shapes(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<Shape> shapes = {
      {1, 2, 1}, {1, 2, 7}, {5, 3, 2}, {9, 49, 33}, {4, 97, 384}, {150, 259, 384}, {131, 95, 1500}};
  while (shapes.size() < count) {
    shapes.push_back({1 + random() % 200, 2 + random() % 300, 1 + random() % 400});
  }
  return shapes;
}

std::string describe(MatmulIsa isa, const Shape& shape) {
  return std::string(matmul_isa_name(isa)) + " rows " + std::to_string(shape.rows) + " outs " +
         std::to_string(shape.outs) + " ins " + std::to_string(shape.ins);
}

TEST(Matmul, AgreesWithDoublePrecision) {
  for (const MatmulIsa isa : available()) {
    for (const Shape& shape : random_shapes(21, 30)) {
      SCOPED_TRACE("seed 21, " + describe(isa, shape));
      const auto x = random_floats(shape.rows * shape.ins, 1);
      const auto w = random_floats(shape.outs * shape.ins, 2);
      const auto y = multiply(isa, 1, shape, x.data(), w.data());
      for (std::size_t row = 0; row < shape.rows; ++row) {
        for (std::size_t out = 0; out < shape.outs; ++out) {
          double sum = 0.0;
          double size = 0.0;
          for (std::size_t in = 0; in < shape.ins; ++in) {
            const double term = static_cast<double>(x[row * shape.ins + in]) *
                                static_cast<double>(w[out * shape.ins + in]);
            sum += term;
            size += std::fabs(term);
          }
          // Half an ulp (2^-24) for each of at most `ins` additions and products, of what they add
          // up to.
          const double bound = std::ldexp(size, -23) * static_cast<double>(shape.ins + 1);
          ASSERT_NEAR(static_cast<double>(y[row * shape.outs + out]), sum, bound)
              << row << ' ' << out;
        }
      }
    }
  }
}

TEST(Matmul, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const MatmulIsa isa : available()) {
    for (const Shape& shape : random_shapes(22, 25)) {
      SCOPED_TRACE("seed 22, " + describe(isa, shape));
      const auto x = random_floats(shape.rows * shape.ins, 3);
      const auto w = random_floats(shape.outs * shape.ins, 4);
      const auto alone = multiply(isa, 1, shape, x.data(), w.data());
      for (const std::size_t members : {2u, 3u, 5u}) {
        const auto shared = multiply(isa, members, shape, x.data(), w.data());
        ASSERT_EQ(std::memcmp(alone.data(), shared.data(), alone.size() * sizeof(float)), 0)
            << members << " threads";
      }
    }
  }
}

TEST(Matmul, GivesARowTheSameBitsAloneAndInAnyBatch) {
  for (const MatmulIsa isa : available()) {
    for (const Shape& shape : random_shapes(23, 25)) {
      SCOPED_TRACE("seed 23, " + describe(isa, shape));
      const auto x = random_floats(shape.rows * shape.ins, 5);
      const auto w = random_floats(shape.outs * shape.ins, 6);
      const auto batch = multiply(isa, 1, shape, x.data(), w.data());
      std::mt19937 random(23);
      for (int trial = 0; trial < 6; ++trial) {
        const std::size_t begin = random() % shape.rows;
        const std::size_t rows = trial == 0 ? 1 : 1 + random() % (shape.rows - begin);
        const auto part = multiply(isa,
                                   1 + random() % 3,
                                   {rows, shape.outs, shape.ins},
                                   x.data() + begin * shape.ins,
                                   w.data());
        ASSERT_EQ(std::memcmp(
                      part.data(), batch.data() + begin * shape.outs, part.size() * sizeof(float)),
                  0)
            << "rows " << begin << " to " << begin + rows;
      }
    }
  }
}

// Rows that are not a number, beside rows that are: nothing spreads.
TEST(Matmul, KeepsPoisonedRowsToThemselves) {
  const Shape shape{7, 100, 65};
  for (const MatmulIsa isa : available()) {
    SCOPED_TRACE("seeds 7 and 8, " + describe(isa, shape));
    auto x = random_floats(shape.rows * shape.ins, 7);
    const auto w = random_floats(shape.outs * shape.ins, 8);
    const auto clean = multiply(isa, 2, shape, x.data(), w.data());
    for (std::size_t in = 0; in < shape.ins; ++in) {
      x[5 * shape.ins + in] = std::numeric_limits<float>::quiet_NaN();
    }
    const auto poisoned = multiply(isa, 2, shape, x.data(), w.data());
    for (std::size_t i = 0; i < clean.size(); ++i) {
      if (i / shape.outs == 5) {
        ASSERT_TRUE(std::isnan(poisoned[i])) << i;
      } else {
        ASSERT_EQ(poisoned[i], clean[i]) << i;
      }
    }
  }
}

TEST(Matmul, RunsSeveralProductsAtOnce) {
  const auto x = random_floats(90 * 64, 9);
  const auto w = random_floats(300 * 64, 10);
  auto team = ThreadTeam::create(3).value();
  auto matmul = Matmul::create(matmul_isa_best(), {3 * 64, 300 + 48 + 7}).value();
  for (const std::size_t rows : {1u, 6u, 90u}) {
    SCOPED_TRACE("seeds 9 and 10, rows " + std::to_string(rows));
    std::vector<std::vector<float>> y;
    std::vector<Product> products;
    const std::vector<std::size_t> outs = {300, 48, 7};
    for (const std::size_t count : outs) {
      y.emplace_back(rows * count);
    }
    for (std::size_t i = 0; i < outs.size(); ++i) {
      products.push_back({x.data(), w.data(), y[i].data(), rows, outs[i], 64});
    }
    ASSERT_TRUE(matmul.run(team, products));
    for (std::size_t i = 0; i < outs.size(); ++i) {
      EXPECT_EQ(y[i], multiply(matmul_isa_best(), 1, {rows, outs[i], 64}, x.data(), w.data()));
    }
  }
}

TEST(Matmul, RefusesAnInstructionSetThatIsNotHere) {
  EXPECT_TRUE(matmul_isa_available(MatmulIsa::v2));
  EXPECT_TRUE(matmul_isa_available(matmul_isa_best()));
  for (const MatmulIsa isa : {MatmulIsa::avx2, MatmulIsa::avx512}) {
    auto matmul = Matmul::create(isa, {8, 8});
    EXPECT_EQ(matmul.has_value(), matmul_isa_available(isa));
    if (!matmul) {
      EXPECT_EQ(matmul.error().code, Errc::unsupported);
    }
  }
}

}  // namespace

}  // namespace kvspan::model
