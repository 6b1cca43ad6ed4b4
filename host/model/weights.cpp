// SPDX-License-Identifier: Apache-2.0
// Finding and unpacking a model's tensors by the names that GGUF gives them.
// Source of the names: the GGUF specification in the ggml project, docs/gguf.md, "Standardized
// tensor names".
// Read next: weights.hpp.
#include "model/weights.hpp"

#include "model/fail.hpp"
#include "model/gguf_parser.hpp"

#include <array>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace kvspan::model {

namespace {

enum class Presence { needed, optional };

// Takes tensors out of a file one by one and remembers which. The first failure sticks.
class Loader {
 public:
  explicit Loader(const GgufFile& file) : file_(file) {}

  void take(const std::string& name,
            std::size_t rows,
            std::size_t columns,
            Presence presence,
            Matrix& to) {
    const GgufTensor* const tensor = file_.find_tensor(name);
    if (!state_ || (tensor == nullptr && presence == Presence::optional)) {
      return;
    }
    if (tensor == nullptr) {
      state_ = fail(Errc::bad_file, "'{}' has no tensor '{}'", file_.name(), name);
      return;
    }
    auto matrix = unpack_tensor(*tensor, rows, columns);
    if (!matrix) {
      matrix.error().message = "'" + file_.name() + "': " + matrix.error().message;
      state_ = pass_on(matrix);
      return;
    }
    to = std::move(*matrix);
    taken_.insert(tensor->name);
  }

  // After the last take(): the first failure, or the first tensor that nobody took.
  [[nodiscard]] Result<void> finish(std::string_view family) {
    if (!state_) {
      return state_;
    }
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.find(tensor.name) == taken_.end()) {
        return fail(Errc::unsupported,
                    "'{}' holds the tensor '{}', which no {} model that this program computes has",
                    file_.name(),
                    printable(tensor.name),
                    family);
      }
    }
    return {};
  }

 private:
  const GgufFile& file_;
  std::set<std::string_view> taken_;
  Result<void> state_;
};

void load_layer(Loader& loader, const ModelConfig& config, std::size_t index, LayerWeights& to) {
  const ModelGeometry& geometry = config.geometry;
  const std::size_t width = config.width;
  const std::size_t q_rows = std::size_t{geometry.q_heads} * geometry.head_size_k;
  const std::size_t k_rows = std::size_t{geometry.kv_heads} * geometry.head_size_k;
  const std::size_t v_rows = std::size_t{geometry.kv_heads} * geometry.head_size_v;
  const std::size_t out_columns = std::size_t{geometry.q_heads} * geometry.head_size_v;
  const std::size_t inner = config.feed_forward_width;

  struct Wanted {
    std::string_view name;
    std::size_t rows;
    std::size_t columns;
    Presence presence;
    Matrix* to;
  };

  const std::array<Wanted, 12> wanted = {{
      {"attn_norm.weight", 1, width, Presence::needed, &to.attention_norm},
      {"attn_q.weight", q_rows, width, Presence::needed, &to.q},
      {"attn_k.weight", k_rows, width, Presence::needed, &to.k},
      {"attn_v.weight", v_rows, width, Presence::needed, &to.v},
      {"attn_q.bias", 1, q_rows, Presence::optional, &to.q_bias},
      {"attn_k.bias", 1, k_rows, Presence::optional, &to.k_bias},
      {"attn_v.bias", 1, v_rows, Presence::optional, &to.v_bias},
      {"attn_output.weight", width, out_columns, Presence::needed, &to.attention_output},
      {"ffn_norm.weight", 1, width, Presence::needed, &to.feed_forward_norm},
      {"ffn_gate.weight", inner, width, Presence::needed, &to.gate},
      {"ffn_up.weight", inner, width, Presence::needed, &to.up},
      {"ffn_down.weight", width, inner, Presence::needed, &to.down},
  }};
  const std::string prefix = fmt::format("blk.{}.", index);
  for (const Wanted& one : wanted) {
    loader.take(prefix + std::string(one.name), one.rows, one.columns, one.presence, *one.to);
  }
  if (config.family == ModelFamily::qwen3) {
    const std::size_t head = geometry.head_size_k;
    loader.take(prefix + "attn_q_norm.weight", 1, head, Presence::needed, to.q_norm);
    loader.take(prefix + "attn_k_norm.weight", 1, head, Presence::needed, to.k_norm);
  }
}

}  // namespace

Result<ModelWeights> load_weights(const GgufFile& file, const ModelConfig& config) {
  try {
    ModelWeights weights;
    Loader loader(file);
    const std::size_t vocabulary = config.geometry.vocabulary;
    const std::size_t width = config.width;
    loader.take("token_embd.weight", vocabulary, width, Presence::needed, weights.embedding);
    loader.take("output.weight", vocabulary, width, Presence::optional, weights.output);
    loader.take("output_norm.weight", 1, width, Presence::needed, weights.output_norm);
    weights.layers.resize(config.geometry.layers);
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
      load_layer(loader, config, i, weights.layers[i]);
    }
    auto all = loader.finish(model_family_name(config.family));
    if (!all) {
      return pass_on(all);
    }
    return weights;
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory, "not enough memory for the weights of '{}'", file.name());
  }
}

std::uint64_t weight_bytes(const GgufFile& file) noexcept {
  std::uint64_t elements = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    elements += tensor.elements;
  }
  return elements * sizeof(float);
}

}  // namespace kvspan::model
