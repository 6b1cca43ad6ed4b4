// SPDX-License-Identifier: Apache-2.0
// The forward pass. Products go through Matmul, everything else is row by row on the team. Every
// step treats a row as if it were alone; that is what makes chunk sizes invisible in the results.
// Read next: row_math.hpp, matmul.hpp, rope.hpp for the steps.
#include "model/transformer.hpp"

#include "model/fail.hpp"
#include "model/row_math.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kvspan::model {

namespace {

// Below this many rows the caller does the row-wise steps alone: waking the team takes longer than
// the rows.
constexpr std::size_t kRowsWorthWaking = 16;

std::size_t q_width(const ModelGeometry& geometry) noexcept {
  return std::size_t{geometry.q_heads} * geometry.head_size_k;
}

std::size_t k_width(const ModelGeometry& geometry) noexcept {
  return std::size_t{geometry.kv_heads} * geometry.head_size_k;
}

std::size_t v_width(const ModelGeometry& geometry) noexcept {
  return std::size_t{geometry.kv_heads} * geometry.head_size_v;
}

std::size_t attended_width(const ModelGeometry& geometry) noexcept {
  return std::size_t{geometry.q_heads} * geometry.head_size_v;
}

// The largest sums over the products of one call: q, k and v; gate and up; logits.
MatmulLimits matmul_limits(const ModelConfig& config) noexcept {
  const ModelGeometry& geometry = config.geometry;
  const std::size_t width = config.width;
  const std::size_t inner = config.feed_forward_width;
  return {std::max({3 * width, inner, attended_width(geometry)}),
          std::max({q_width(geometry) + k_width(geometry) + v_width(geometry),
                    2 * inner,
                    width,
                    std::size_t{geometry.vocabulary}})};
}

}  // namespace

Result<Model> Model::load(const GgufFile& file) {
  auto config = read_model_config(file);
  if (!config) {
    return pass_on(config);
  }
  auto weights = load_weights(file, *config);
  if (!weights) {
    return pass_on(weights);
  }
  Model model;
  model.config_ = *config;
  model.weights_ = std::move(*weights);
  return model;
}

Evaluator::Evaluator(
    const Model& model, ThreadTeam& team, RopeTable rope, Matmul matmul, Buffers buffers)
    : model_(&model),
      team_(&team),
      rope_(std::move(rope)),
      matmul_(std::move(matmul)),
      buffers_(std::move(buffers)) {}

Result<Evaluator::Buffers> Evaluator::create_buffers(const ModelConfig& config,
                                                     std::uint32_t rows_max) {
  const ModelGeometry& geometry = config.geometry;
  Buffers buffers;

  struct Wanted {
    Matrix* to;
    std::size_t columns;
  };

  const std::array<Wanted, 9> wanted = {{{&buffers.residual, config.width},
                                         {&buffers.normed, config.width},
                                         {&buffers.projected, config.width},
                                         {&buffers.q, q_width(geometry)},
                                         {&buffers.k, k_width(geometry)},
                                         {&buffers.v, v_width(geometry)},
                                         {&buffers.attended, attended_width(geometry)},
                                         {&buffers.gate, config.feed_forward_width},
                                         {&buffers.up, config.feed_forward_width}}};
  for (const Wanted& one : wanted) {
    auto matrix = Matrix::create(rows_max, one.columns);
    if (!matrix) {
      return pass_on(matrix);
    }
    *one.to = std::move(*matrix);
  }
  return buffers;
}

Result<Evaluator> Evaluator::create(const Model& model,
                                    ThreadTeam& team,
                                    const EvaluatorOptions& options) {
  const ModelConfig& config = model.config();
  if (options.rows_max < 1 || options.rows_max > config.geometry.context_tokens) {
    return fail(Errc::invalid_argument,
                "chunks of up to {} rows were asked for: use 1 to {}, the model's context",
                options.rows_max,
                config.geometry.context_tokens);
  }
  auto rope = RopeTable::create(config.rope, options.rows_max);
  if (!rope) {
    return pass_on(rope);
  }
  auto matmul = Matmul::create(options.isa, matmul_limits(config));
  if (!matmul) {
    return pass_on(matmul);
  }
  auto buffers = create_buffers(config, options.rows_max);
  if (!buffers) {
    return pass_on(buffers);
  }
  return Evaluator(model, team, std::move(*rope), std::move(*matmul), std::move(*buffers));
}

std::uint64_t Evaluator::buffer_bytes(const ModelConfig& config, std::uint32_t rows_max) noexcept {
  const ModelGeometry& geometry = config.geometry;
  const std::size_t row = 3 * std::size_t{config.width} + q_width(geometry) + k_width(geometry) +
                          v_width(geometry) + attended_width(geometry) +
                          2 * std::size_t{config.feed_forward_width};
  return std::uint64_t{rows_max} * row * sizeof(float) +
         RopeTable::table_bytes(config.rope, rows_max) +
         Matmul::scratch_bytes(matmul_limits(config));
}

Result<void> Evaluator::check(const Chunk& chunk, std::span<const float> logits) const {
  const ModelGeometry& geometry = model_->geometry();
  const std::size_t rows = chunk.tokens.size();
  if (rows < 1 || rows > buffers_.residual.rows()) {
    return fail(Errc::invalid_argument,
                "a chunk of {} rows was given: this evaluator takes 1 to {}",
                rows,
                buffers_.residual.rows());
  }
  if (chunk.first_position > geometry.context_tokens ||
      rows > geometry.context_tokens - chunk.first_position) {
    return fail(Errc::too_large,
                "position {} is beyond the model's context of {} tokens: shorten the prompt or "
                "generate less",
                chunk.first_position + rows - 1,
                geometry.context_tokens);
  }
  for (const std::uint32_t token : chunk.tokens) {
    if (token >= geometry.vocabulary) {
      return fail(Errc::invalid_argument,
                  "token {} is not in the vocabulary of {}",
                  token,
                  geometry.vocabulary);
    }
  }
  std::uint64_t least = 0;
  for (const std::uint32_t row : chunk.logit_rows) {
    if (row >= rows || row < least) {
      return fail(
          Errc::invalid_argument,
          "logits of row {} were asked for: name rows of the chunk of {} in ascending order",
          row,
          rows);
    }
    least = std::uint64_t{row} + 1;
  }
  if (logits.size() != chunk.logit_rows.size() * geometry.vocabulary) {
    return fail(Errc::invalid_argument,
                "{} floats were given for the logits of {} of {} rows: {} a row are needed",
                logits.size(),
                chunk.logit_rows.size(),
                rows,
                geometry.vocabulary);
  }
  return {};
}

template <class Function>
void Evaluator::each_row(std::size_t rows, Function&& function) {
  const auto share = [&](std::size_t member, std::size_t members) {
    const ItemRange mine = member_share(rows, member, members);
    for (std::size_t row = mine.begin; row < mine.end; ++row) {
      function(row);
    }
  };
  if (rows < kRowsWorthWaking) {
    share(0, 1);
    return;
  }
  const std::size_t members = team_->members();
  team_->run([&](std::size_t member) { share(member, members); });
}

void Evaluator::embed(std::span<const std::uint32_t> tokens) {
  const Matrix& table = model_->weights().embedding;
  const std::size_t width = table.columns();
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    std::copy_n(table.row(tokens[row]), width, buffers_.residual.data() + row * width);
  }
}

void Evaluator::norm(const Matrix& weight, std::size_t rows) {
  const std::size_t width = weight.columns();
  each_row(rows, [&](std::size_t row) {
    rms_norm_row(buffers_.residual.row(row),
                 weight.data(),
                 model_->config().norm_epsilon,
                 width,
                 buffers_.normed.data() + row * width);
  });
}

void Evaluator::add_and_norm(const Matrix& weight, std::size_t rows) {
  const std::size_t width = weight.columns();
  each_row(rows, [&](std::size_t row) {
    float* const residual = buffers_.residual.data() + row * width;
    add_row(residual, buffers_.projected.row(row), width);
    rms_norm_row(residual,
                 weight.data(),
                 model_->config().norm_epsilon,
                 width,
                 buffers_.normed.data() + row * width);
  });
}

void Evaluator::finish_qkv_row(const LayerWeights& layer, std::size_t row) {
  const ModelConfig& config = model_->config();
  const std::size_t head_size = config.geometry.head_size_k;

  struct Side {
    Matrix* rows;
    const Matrix* bias;
    const Matrix* head_norm;
    std::size_t heads;
  };

  for (const Side& side :
       {Side{&buffers_.q, &layer.q_bias, &layer.q_norm, config.geometry.q_heads},
        Side{&buffers_.k, &layer.k_bias, &layer.k_norm, config.geometry.kv_heads}}) {
    float* const values = side.rows->data() + row * side.rows->columns();
    if (!side.bias->empty()) {
      add_row(values, side.bias->data(), side.rows->columns());
    }
    for (std::size_t h = 0; h < side.heads; ++h) {
      float* const head = values + h * head_size;
      if (!side.head_norm->empty()) {
        rms_norm_row(head, side.head_norm->data(), config.norm_epsilon, head_size, head);
      }
      rope_.rotate(row, head);
    }
  }
  if (!layer.v_bias.empty()) {
    const std::size_t columns = buffers_.v.columns();
    add_row(buffers_.v.data() + row * columns, layer.v_bias.data(), columns);
  }
}

Result<void> Evaluator::project_qkv(const LayerWeights& layer, std::size_t rows) {
  const std::size_t width = model_->config().width;
  const float* const x = buffers_.normed.data();
  const std::array<Product, 3> products = {
      {{x, layer.q.data(), buffers_.q.data(), rows, layer.q.rows(), width},
       {x, layer.k.data(), buffers_.k.data(), rows, layer.k.rows(), width},
       {x, layer.v.data(), buffers_.v.data(), rows, layer.v.rows(), width}}};
  auto multiplied = multiply(products);
  if (multiplied) {
    each_row(rows, [&](std::size_t row) { finish_qkv_row(layer, row); });
  }
  return multiplied;
}

// Moves the rows that go on to logits to the front. They ascend, so no row is overwritten before it
// has moved.
void Evaluator::keep_rows(std::span<const std::uint32_t> kept) {
  for (Matrix* const rows : {&buffers_.residual, &buffers_.attended}) {
    const std::size_t columns = rows->columns();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] != i) {
        std::copy_n(rows->row(kept[i]), columns, rows->data() + i * columns);
      }
    }
  }
}

Result<void> Evaluator::feed_forward(const LayerWeights& layer, std::size_t rows) {
  const std::size_t width = model_->config().width;
  const std::size_t inner = model_->config().feed_forward_width;
  const float* const x = buffers_.normed.data();
  const std::array<Product, 2> in = {
      {{x, layer.gate.data(), buffers_.gate.data(), rows, inner, width},
       {x, layer.up.data(), buffers_.up.data(), rows, inner, width}}};
  auto multiplied = multiply(in);
  if (!multiplied) {
    return multiplied;
  }
  each_row(rows, [&](std::size_t row) {
    swiglu_row(buffers_.gate.data() + row * inner, buffers_.up.row(row), inner);
  });
  const Product out{
      buffers_.gate.data(), layer.down.data(), buffers_.projected.data(), rows, width, inner};
  return multiply({&out, 1});
}

// From the layer's normed input to the next norm's output. In the last layer only the rows whose
// logits are wanted go on after the attention.
Result<void> Evaluator::run_layer(std::size_t index, const Chunk& chunk, KvAttention& attention) {
  const ModelWeights& weights = model_->weights();
  const LayerWeights& layer = weights.layers[index];
  const bool last = index + 1 == weights.layers.size();
  std::size_t rows = chunk.tokens.size();
  auto projected = project_qkv(layer, rows);
  if (!projected) {
    return projected;
  }
  auto attended = attention.attend(static_cast<std::uint32_t>(index),
                                   {buffers_.q.data(),
                                    buffers_.k.data(),
                                    buffers_.v.data(),
                                    buffers_.attended.data(),
                                    chunk.first_position,
                                    static_cast<std::uint32_t>(rows)});
  if (!attended) {
    return attended;
  }
  if (last) {
    keep_rows(chunk.logit_rows);
    rows = chunk.logit_rows.size();
    if (rows == 0) {
      return {};
    }
  }
  const Product output{buffers_.attended.data(),
                       layer.attention_output.data(),
                       buffers_.projected.data(),
                       rows,
                       model_->config().width,
                       layer.attention_output.columns()};
  auto multiplied = multiply({&output, 1});
  if (!multiplied) {
    return multiplied;
  }
  add_and_norm(layer.feed_forward_norm, rows);
  auto fed = feed_forward(layer, rows);
  if (!fed) {
    return fed;
  }
  add_and_norm(last ? weights.output_norm : weights.layers[index + 1].attention_norm, rows);
  return {};
}

Result<void> Evaluator::forward(const Chunk& chunk,
                                KvAttention& attention,
                                std::span<float> logits) {
  auto sound = check(chunk, logits);
  if (!sound) {
    return sound;
  }
  const std::vector<LayerWeights>& layers = model_->weights().layers;
  embed(chunk.tokens);
  rope_.fill(chunk.first_position, chunk.tokens.size());
  norm(layers.front().attention_norm, chunk.tokens.size());
  for (std::size_t index = 0; index < layers.size(); ++index) {
    auto done = run_layer(index, chunk, attention);
    if (!done) {
      return done;
    }
  }
  if (chunk.logit_rows.empty()) {
    return {};
  }
  const Matrix& table = model_->output();
  const Product product{buffers_.normed.data(),
                        table.data(),
                        logits.data(),
                        chunk.logit_rows.size(),
                        table.rows(),
                        table.columns()};
  return multiply({&product, 1});
}

}  // namespace kvspan::model
