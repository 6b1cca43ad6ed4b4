// SPDX-License-Identifier: Apache-2.0
// What kind of transformer a GGUF file holds, from its metadata: family, sizes, rotation, norms. A
// file that asks for anything this program does not compute is refused by name; nothing is silently
// left out.
// Not here: the weights (weights.hpp) and the tokenizer (tokenizer.hpp).
// Read next: transformer.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"
#include "model/rope.hpp"

#include <cstdint>
#include <string_view>

namespace kvspan::model {

// The families, which differ in rotation style and in the norms of single heads.
enum class ModelFamily { llama, qwen3 };

// "llama" or "qwen3", as in the file. [any-thread]
[[nodiscard]] std::string_view model_family_name(ModelFamily family) noexcept;

// What attention and a KV cache need to know about a model. The same for every layer in both
// families.
struct ModelGeometry {
  std::uint32_t layers = 0;
  std::uint32_t q_heads =
      0;  // a multiple of kv_heads; query head h uses K/V head h / (q_heads / kv_heads)
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size_k = 0;  // elements of a query or key head
  std::uint32_t head_size_v = 0;  // elements of a value head
  std::uint32_t context_tokens = 0;
  std::uint32_t vocabulary = 0;  // number of token ids
  float scale = 0.0f;            // of scores: 1 / sqrt(head_size_k)
};

// Everything about a model but its weights.
struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  ModelGeometry geometry;
  std::uint32_t width = 0;               // elements of a row of the residual stream
  std::uint32_t feed_forward_width = 0;  // elements of a row inside the feed-forward part
  RopeShape rope;
  float norm_epsilon = 0.0f;
};

// Reads and checks the metadata of `file`.
// Errors: not_found (a needed key is missing), bad_file (a key of the wrong kind, or sizes that
// contradict each other), unsupported (another architecture, or an option that is not computed
// here; the message names it).
[[nodiscard]] Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace kvspan::model
