// SPDX-License-Identifier: Apache-2.0
// Making random models. Weights are scaled so that no activation grows or dies over the layers.
// Read next: tiny_model.hpp.
#include "tests/tiny_model.hpp"

#include <cmath>
#include <random>

namespace kvspan::model::testing {

namespace {

class Maker {
 public:
  explicit Maker(TinyModel& model) : model_(model), random_(model.options.seed) {}

  void matrix(const std::string& name, std::size_t rows, std::size_t columns) {
    std::normal_distribution<double> distribution(0.0, 1.0 / std::sqrt(double(columns)));
    add(name, model_.options.type, rows, columns, distribution, 0.0);
  }

  // Norms and biases stay f32, as converters leave them.
  void vector(const std::string& name, std::size_t columns, double mean) {
    std::normal_distribution<double> distribution(0.0, 0.3);
    add(name, TensorType::f32, 1, columns, distribution, mean);
  }

 private:
  void add(const std::string& name,
           TensorType type,
           std::size_t rows,
           std::size_t columns,
           std::normal_distribution<double>& distribution,
           double mean) {
    std::vector<double> values(rows * columns);
    for (double& value : values) {
      value = mean + distribution(random_);
    }
    PackedTensor packed = pack_tensor(type, values);
    std::vector<std::uint64_t> dimensions = {columns};
    if (rows > 1) {
      dimensions.push_back(rows);
    }
    model_.writer.add_tensor(name, dimensions, type, packed.bytes);
    model_.weights.emplace(name, std::move(packed.values));
  }

  TinyModel& model_;
  std::mt19937 random_;
};

void add_metadata(const TinyOptions& options, GgufWriter& writer) {
  const auto key = [&](const char* rest) { return options.family + "." + rest; };
  writer.add_text("general.architecture", options.family);
  writer.add_u32(key("block_count"), options.layers);
  writer.add_u32(key("context_length"), options.context);
  writer.add_u32(key("embedding_length"), options.width);
  writer.add_u32(key("feed_forward_length"), options.inner);
  writer.add_u32(key("attention.head_count"), options.q_heads);
  writer.add_u32(key("attention.head_count_kv"), options.kv_heads);
  writer.add_u32(key("attention.key_length"), options.head_size_k);
  writer.add_u32(key("attention.value_length"), options.head_size_v);
  writer.add_u32(key("rope.dimension_count"), options.rotated);
  writer.add_f32(key("rope.freq_base"), options.rope_base);
  writer.add_f32(key("attention.layer_norm_rms_epsilon"), options.epsilon);
  writer.add_u32(key("vocab_size"), options.vocabulary);
}

}  // namespace

TinyModel make_tiny_model(const TinyOptions& options) {
  TinyModel model{options, {}, {}};
  add_metadata(options, model.writer);
  Maker maker(model);
  const std::size_t width = options.width;
  const std::size_t q_rows = std::size_t{options.q_heads} * options.head_size_k;
  const std::size_t k_rows = std::size_t{options.kv_heads} * options.head_size_k;
  const std::size_t v_rows = std::size_t{options.kv_heads} * options.head_size_v;
  maker.matrix("token_embd.weight", options.vocabulary, width);
  for (std::uint32_t layer = 0; layer < options.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    maker.vector(prefix + "attn_norm.weight", width, 1.0);
    maker.matrix(prefix + "attn_q.weight", q_rows, width);
    maker.matrix(prefix + "attn_k.weight", k_rows, width);
    maker.matrix(prefix + "attn_v.weight", v_rows, width);
    if (options.biases == Biases::present) {
      maker.vector(prefix + "attn_q.bias", q_rows, 0.0);
      maker.vector(prefix + "attn_k.bias", k_rows, 0.0);
      maker.vector(prefix + "attn_v.bias", v_rows, 0.0);
    }
    if (options.family == "qwen3") {
      maker.vector(prefix + "attn_q_norm.weight", options.head_size_k, 1.0);
      maker.vector(prefix + "attn_k_norm.weight", options.head_size_k, 1.0);
    }
    maker.matrix(
        prefix + "attn_output.weight", width, std::size_t{options.q_heads} * options.head_size_v);
    maker.vector(prefix + "ffn_norm.weight", width, 1.0);
    maker.matrix(prefix + "ffn_gate.weight", options.inner, width);
    maker.matrix(prefix + "ffn_up.weight", options.inner, width);
    maker.matrix(prefix + "ffn_down.weight", width, options.inner);
  }
  maker.vector("output_norm.weight", width, 1.0);
  if (options.output == OutputTable::own) {
    maker.matrix("output.weight", options.vocabulary, width);
  }
  return model;
}

}  // namespace kvspan::model::testing
