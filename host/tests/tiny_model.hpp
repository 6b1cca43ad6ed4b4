// SPDX-License-Identifier: Apache-2.0
// Random models of a few thousand weights, as GGUF files, with the exact value of every weight
// beside them, so that the oracle computes from the same numbers as the product without sharing its
// code.
// Read next: oracle_transformer.hpp.
#pragma once

#include "model/gguf.hpp"
#include "tests/gguf_writer.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvspan::model::testing {

enum class Biases { absent, present };
enum class OutputTable { tied, own };

struct TinyOptions {
  std::string family = "llama";  // or "qwen3"
  TensorType type = TensorType::f32;
  std::uint32_t layers = 2;
  std::uint32_t width = 64;
  std::uint32_t inner = 96;
  std::uint32_t q_heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_size_k = 16;
  std::uint32_t head_size_v = 16;
  std::uint32_t rotated = 16;
  std::uint32_t vocabulary = 50;
  std::uint32_t context = 128;
  float rope_base = 10000.0f;
  float epsilon = 1e-5f;
  Biases biases = Biases::absent;
  OutputTable output = OutputTable::tied;
  std::uint32_t seed = 1;
};

struct TinyModel {
  TinyOptions options;
  std::map<std::string, std::vector<double>> weights;  // by tensor name, row-major
  GgufWriter writer;                                   // may be added to before file()
};

[[nodiscard]] TinyModel make_tiny_model(const TinyOptions& options);

}  // namespace kvspan::model::testing
