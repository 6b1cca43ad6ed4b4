// SPDX-License-Identifier: Apache-2.0
// The decoder-only transformer of the LLaMA and Qwen3 families on the CPU, all but the attention: a
// Model holds what never changes, an Evaluator holds buffers and threads and computes chunks of
// rows.
// Not here: the KV cache (kv_attention.hpp), text (tokenizer.hpp), the choice of the next token
// (sampler.hpp).
// Source: Touvron et al., LLaMA, arXiv:2302.13971; Yang et al., Qwen3, arXiv:2505.09388.
// Read next: transformer.cpp, forward().
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"
#include "model/kv_attention.hpp"
#include "model/matmul.hpp"
#include "model/model_config.hpp"
#include "model/rope.hpp"
#include "model/tensor.hpp"
#include "model/thread_team.hpp"
#include "model/weights.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvspan::model {

// Configuration and weights. Independent of the file after load().
// Thread rule: const, any thread.
class Model {
 public:
  // Errors: those of read_model_config() and load_weights().
  [[nodiscard]] static Result<Model> load(const GgufFile& file);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }

  [[nodiscard]] const ModelGeometry& geometry() const noexcept { return config_.geometry; }

  [[nodiscard]] const ModelWeights& weights() const noexcept { return weights_; }

  // [vocabulary, width]: what turns the last row into logits.
  [[nodiscard]] const Matrix& output() const noexcept {
    return weights_.output.empty() ? weights_.embedding : weights_.output;
  }

 private:
  Model() = default;

  ModelConfig config_;
  ModelWeights weights_;
};

// A run of consecutive tokens of one sequence.
struct Chunk {
  std::span<const std::uint32_t> tokens;  // [row], 1 to rows_max of them, each below the vocabulary
  std::uint64_t first_position = 0;       // of tokens[0]; positions end at the model's context
  std::span<const std::uint32_t> logit_rows;  // rows whose logits are wanted, strictly ascending
};

struct EvaluatorOptions {
  std::uint32_t rows_max = 512;  // the largest chunk
  MatmulIsa isa = matmul_isa_best();
};

// Computes chunks. Invariants: (1) a row's logits are the same bits whatever the number of threads,
// the size of its chunk and the rows beside it, as long as attend() gives the same bits; (2) no
// allocation after create() but those of Matmul::run(). Keeps references to the model and the team:
// both must outlive it.
// Thread rule: one call at a time.
class Evaluator {
 public:
  // Errors: invalid_argument (rows_max is 0 or above the context), unsupported (isa), host_memory
  // (use fewer rows).
  [[nodiscard]] static Result<Evaluator> create(const Model& model,
                                                ThreadTeam& team,
                                                const EvaluatorOptions& options);

  // Bytes of buffers that create() allocates. [any-thread]
  [[nodiscard]] static std::uint64_t buffer_bytes(const ModelConfig& config,
                                                  std::uint32_t rows_max) noexcept;

  // Runs the chunk through all layers, calling `attention` once per layer. logits: [logit row,
  // vocabulary], in the order of chunk.logit_rows. Rows whose logits are not wanted skip the part
  // of the last layer that only logits need.
  // Errors: invalid_argument (the chunk or the span breaks its rule; the message says which),
  // too_large (beyond the context: stop there), host_memory (Matmul::run's), and whatever attend()
  // returns.
  [[nodiscard]] Result<void> forward(const Chunk& chunk,
                                     KvAttention& attention,
                                     std::span<float> logits);

 private:
  struct Buffers {
    Matrix residual;   // [row, width]
    Matrix normed;     // [row, width]
    Matrix projected;  // [row, width]
    Matrix q;          // [row, q_head, head_size_k]
    Matrix k;          // [row, kv_head, head_size_k]
    Matrix v;          // [row, kv_head, head_size_v]
    Matrix attended;   // [row, q_head, head_size_v]
    Matrix gate;       // [row, feed_forward_width]
    Matrix up;         // [row, feed_forward_width]
  };

  Evaluator(const Model& model, ThreadTeam& team, RopeTable rope, Matmul matmul, Buffers buffers);

  [[nodiscard]] static Result<Buffers> create_buffers(const ModelConfig& config,
                                                      std::uint32_t rows_max);
  [[nodiscard]] Result<void> check(const Chunk& chunk, std::span<const float> logits) const;

  template <class Function>
  void each_row(std::size_t rows, Function&& function);

  [[nodiscard]] Result<void> multiply(std::span<const Product> products) {
    return matmul_.run(*team_, products);
  }

  void embed(std::span<const std::uint32_t> tokens);
  void norm(const Matrix& weight, std::size_t rows);
  void add_and_norm(const Matrix& weight, std::size_t rows);
  [[nodiscard]] Result<void> project_qkv(const LayerWeights& layer, std::size_t rows);
  void finish_qkv_row(const LayerWeights& layer, std::size_t row);
  void keep_rows(std::span<const std::uint32_t> kept);
  [[nodiscard]] Result<void> run_layer(std::size_t index,
                                       const Chunk& chunk,
                                       KvAttention& attention);
  [[nodiscard]] Result<void> feed_forward(const LayerWeights& layer, std::size_t rows);

  const Model* model_;
  ThreadTeam* team_;
  RopeTable rope_;
  Matmul matmul_;
  Buffers buffers_;
};

}  // namespace kvspan::model
