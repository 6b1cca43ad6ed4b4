// SPDX-License-Identifier: Apache-2.0
// The weights of a model, unpacked to f32, each checked against the sizes that the metadata states.
// A tensor in the file that no part of the computation uses is an error: it would change what the
// model means.
// Read next: tensor.hpp for the types, transformer.hpp for the computation.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"
#include "model/model_config.hpp"
#include "model/tensor.hpp"

#include <cstdint>
#include <vector>

namespace kvspan::model {

// One layer. Matrices are [out, in]; norms and biases have one row. The optional ones are empty
// when the file has none.
struct LayerWeights {
  Matrix attention_norm;     // [width]
  Matrix q;                  // [q_heads * head_size_k, width]
  Matrix k;                  // [kv_heads * head_size_k, width]
  Matrix v;                  // [kv_heads * head_size_v, width]
  Matrix q_bias;             // optional, as long as q has rows
  Matrix k_bias;             // optional
  Matrix v_bias;             // optional
  Matrix q_norm;             // [head_size_k], qwen3 only
  Matrix k_norm;             // [head_size_k], qwen3 only
  Matrix attention_output;   // [width, q_heads * head_size_v]
  Matrix feed_forward_norm;  // [width]
  Matrix gate;               // [feed_forward_width, width]
  Matrix up;                 // [feed_forward_width, width]
  Matrix down;               // [width, feed_forward_width]
};

struct ModelWeights {
  Matrix embedding;  // [vocabulary, width]
  Matrix output;     // [vocabulary, width]; empty when the embedding serves as output too
  Matrix output_norm;
  std::vector<LayerWeights> layers;
};

// Unpacks all of `file`'s tensors.
// Errors: bad_file (a tensor is missing or of other sizes; the message names it), unsupported (a
// tensor that this program does not compute with), host_memory.
[[nodiscard]] Result<ModelWeights> load_weights(const GgufFile& file, const ModelConfig& config);

// Bytes that load_weights() allocates for `file`. [any-thread]
[[nodiscard]] std::uint64_t weight_bytes(const GgufFile& file) noexcept;

}  // namespace kvspan::model
