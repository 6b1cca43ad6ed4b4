// SPDX-License-Identifier: Apache-2.0
// Reading a model's metadata. Keys are `<architecture>.<rest>`; every such key in the file must be
// one that is known here, since an unknown one may change what the model computes.
// Source of the keys: the GGUF specification in the ggml project, docs/gguf.md, and gguf-py's
// constants.
// Read next: model_config.hpp.
#include "model/model_config.hpp"

#include "model/fail.hpp"
#include "model/gguf_parser.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

namespace kvspan::model {

namespace {

// Keys that are read below, or that say nothing about the computation.
constexpr std::array<std::string_view, 16> kReadKeys = {"attention.head_count",
                                                        "attention.head_count_kv",
                                                        "attention.key_length",
                                                        "attention.layer_norm_rms_epsilon",
                                                        "attention.value_length",
                                                        "block_count",
                                                        "context_length",
                                                        "embedding_length",
                                                        "feed_forward_length",
                                                        "rope.dimension_count",
                                                        "rope.freq_base",
                                                        "rope.scaling.finetuned",
                                                        "rope.scaling.original_context_length",
                                                        "tensor_data_layout",
                                                        "vocab_size",
                                                        "attention.causal"};

// Options that are accepted only when they are off.
constexpr std::array<std::string_view, 6> kMustBeZero = {"expert_count",
                                                         "expert_used_count",
                                                         "attention.sliding_window",
                                                         "attention.max_alibi_bias",
                                                         "attention.clamp_kqv",
                                                         "attn_logit_softcapping"};

// Upper bounds that no real model comes near: they keep every later product of sizes far from
// overflow.
constexpr std::uint64_t kMaxLayers = 4096;
constexpr std::uint64_t kMaxHeads = 1 << 14;
constexpr std::uint64_t kMaxHeadSize = 1 << 14;
constexpr std::uint64_t kMaxWidth = 1 << 24;
constexpr std::uint64_t kMaxTokens = 1u << 31;

// Reads `<architecture>.<rest>` keys of one file.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  [[nodiscard]] std::string key(std::string_view rest) const { return prefix_ + std::string(rest); }

  [[nodiscard]] bool has(std::string_view rest) const { return file_.has_value(key(rest)); }

  // A count from 1 to `most`.
  [[nodiscard]] Result<std::uint32_t> count(std::string_view rest, std::uint64_t most) const {
    auto value = file_.count_value(key(rest));
    if (!value) {
      return pass_on(value);
    }
    if (*value < 1 || *value > most) {
      return fail(Errc::bad_file,
                  "'{}': {} is {} where 1 to {} is possible",
                  file_.name(),
                  key(rest),
                  *value,
                  most);
    }
    return static_cast<std::uint32_t>(*value);
  }

  [[nodiscard]] Result<std::uint32_t> count_or(std::string_view rest,
                                               std::uint64_t most,
                                               std::uint64_t otherwise) const {
    if (!has(rest)) {
      return static_cast<std::uint32_t>(otherwise);
    }
    return count(rest, most);
  }

  // A positive finite number.
  [[nodiscard]] Result<double> number_or(std::string_view rest, double otherwise) const {
    if (!has(rest)) {
      return otherwise;
    }
    auto value = file_.number_value(key(rest));
    if (value && !(*value > 0.0 && std::isfinite(*value))) {
      return fail(
          Errc::bad_file, "'{}': {} is {}, not a positive number", file_.name(), key(rest), *value);
    }
    return value;
  }

  [[nodiscard]] const GgufFile& file() const noexcept { return file_; }

  [[nodiscard]] const std::string& prefix() const noexcept { return prefix_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

bool is_zero(const GgufValue& value) {
  if (const auto* const whole = std::get_if<std::uint64_t>(&value)) {
    return *whole == 0;
  }
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) {
    return *whole == 0;
  }
  const auto* const fraction = std::get_if<double>(&value);
  return fraction != nullptr && *fraction == 0.0;
}

// True when the option `rest` with this value asks for nothing beyond what is computed here.
bool is_harmless(std::string_view rest, const GgufValue& value) {
  if (rest == "rope.scaling.type") {
    const auto* const text = std::get_if<std::string_view>(&value);
    return text != nullptr && *text == "none";
  }
  if (rest == "attention.causal") {
    const auto* const flag = std::get_if<bool>(&value);
    return flag != nullptr && *flag;
  }
  if (std::find(kMustBeZero.begin(), kMustBeZero.end(), rest) != kMustBeZero.end()) {
    return is_zero(value);
  }
  return std::find(kReadKeys.begin(), kReadKeys.end(), rest) != kReadKeys.end();
}

Result<void> refuse_unknown_options(const Keys& keys) {
  for (const auto& [key, value] : keys.file().values()) {
    if (key.compare(0, keys.prefix().size(), keys.prefix()) != 0) {
      continue;
    }
    if (!is_harmless(std::string_view(key).substr(keys.prefix().size()), value)) {
      const auto* const text = std::get_if<std::string_view>(&value);
      return fail(Errc::unsupported,
                  "'{}' asks by metadata '{}'{} for something that this program does not compute",
                  keys.file().name(),
                  printable(key),
                  text == nullptr ? std::string() : " = '" + printable(*text) + "'");
    }
  }
  return {};
}

Result<ModelFamily> read_family(const GgufFile& file) {
  auto architecture = file.text_value("general.architecture");
  if (!architecture) {
    return pass_on(architecture);
  }
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::qwen3}) {
    if (*architecture == model_family_name(family)) {
      return family;
    }
  }
  return fail(Errc::unsupported,
              "'{}' is of architecture '{}'; this program computes llama and qwen3",
              file.name(),
              printable(*architecture));
}

Result<void> read_attention_sizes(const Keys& keys, ModelConfig& config) {
  ModelGeometry& geometry = config.geometry;
  auto q_heads = keys.count("attention.head_count", kMaxHeads);
  if (!q_heads) {
    return pass_on(q_heads);
  }
  auto kv_heads = keys.count_or("attention.head_count_kv", kMaxHeads, *q_heads);
  if (!kv_heads) {
    return pass_on(kv_heads);
  }
  if (*q_heads % *kv_heads != 0) {
    return fail(Errc::bad_file,
                "'{}': {} query heads cannot share {} K/V heads evenly",
                keys.file().name(),
                *q_heads,
                *kv_heads);
  }
  const std::uint64_t usual = config.width / *q_heads;
  const bool stated = keys.has("attention.key_length") && keys.has("attention.value_length");
  if (!stated && (usual == 0 || config.width % *q_heads != 0)) {
    return fail(Errc::bad_file,
                "'{}': {} heads do not divide the width {}, and no key_length and value_length are "
                "given",
                keys.file().name(),
                *q_heads,
                config.width);
  }
  auto head_size_k = keys.count_or("attention.key_length", kMaxHeadSize, usual);
  if (!head_size_k) {
    return pass_on(head_size_k);
  }
  auto head_size_v = keys.count_or("attention.value_length", kMaxHeadSize, usual);
  if (!head_size_v) {
    return pass_on(head_size_v);
  }
  if (*head_size_k < 2 || *head_size_v < 2) {
    return fail(Errc::unsupported, "'{}' has heads of a single element", keys.file().name());
  }
  geometry.q_heads = *q_heads;
  geometry.kv_heads = *kv_heads;
  geometry.head_size_k = *head_size_k;
  geometry.head_size_v = *head_size_v;
  geometry.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(*head_size_k)));
  return {};
}

Result<void> read_rope(const Keys& keys, ModelConfig& config) {
  const std::uint32_t head_size = config.geometry.head_size_k;
  auto dimensions = keys.count_or("rope.dimension_count", kMaxHeadSize, head_size);
  if (!dimensions) {
    return pass_on(dimensions);
  }
  if (*dimensions % 2 != 0 || *dimensions > head_size) {
    return fail(
        Errc::bad_file,
        "'{}': {} rotated elements of a head of {}: it must be an even number within the head",
        keys.file().name(),
        *dimensions,
        head_size);
  }
  auto base =
      keys.number_or("rope.freq_base", 10000.0);  // the default that the GGUF specification gives
  if (!base) {
    return pass_on(base);
  }
  config.rope.style =
      config.family == ModelFamily::llama ? RopeStyle::interleaved : RopeStyle::halves;
  config.rope.dimensions = *dimensions;
  config.rope.base = *base;
  return {};
}

// The vocabulary is as large as the embedding table has rows.
Result<void> read_vocabulary(const Keys& keys, ModelConfig& config) {
  const GgufTensor* const table = keys.file().find_tensor("token_embd.weight");
  if (table == nullptr) {
    return fail(Errc::bad_file, "'{}' has no tensor 'token_embd.weight'", keys.file().name());
  }
  const std::uint64_t tokens = table->dimensions[1];
  if (tokens < 2 || tokens > kMaxTokens) {
    return fail(Errc::bad_file, "'{}' embeds {} tokens", keys.file().name(), tokens);
  }
  auto stated = keys.count_or("vocab_size", kMaxTokens, tokens);
  if (!stated) {
    return pass_on(stated);
  }
  if (*stated != tokens) {
    return fail(
        Errc::bad_file, "'{}' says {} tokens and embeds {}", keys.file().name(), *stated, tokens);
  }
  config.geometry.vocabulary = *stated;
  return {};
}

}  // namespace

std::string_view model_family_name(ModelFamily family) noexcept {
  switch (family) {
    case ModelFamily::llama:
      return "llama";
    case ModelFamily::qwen3:
      return "qwen3";
  }
  return "unknown";
}

Result<ModelConfig> read_model_config(const GgufFile& file) {
  auto family = read_family(file);
  if (!family) {
    return pass_on(family);
  }
  const Keys keys(file, model_family_name(*family));
  auto known = refuse_unknown_options(keys);
  if (!known) {
    return pass_on(known);
  }
  ModelConfig config;
  config.family = *family;

  struct Size {
    std::string_view rest;
    std::uint64_t most;
    std::uint32_t* to;
  };

  for (const Size& size : {Size{"block_count", kMaxLayers, &config.geometry.layers},
                           Size{"context_length", kMaxTokens, &config.geometry.context_tokens},
                           Size{"embedding_length", kMaxWidth, &config.width},
                           Size{"feed_forward_length", kMaxWidth, &config.feed_forward_width}}) {
    auto value = keys.count(size.rest, size.most);
    if (!value) {
      return pass_on(value);
    }
    *size.to = *value;
  }
  if (config.width < 2 || config.feed_forward_width < 2) {
    return fail(Errc::unsupported, "'{}' has rows of a single element", file.name());
  }
  auto epsilon = file.number_value(keys.key("attention.layer_norm_rms_epsilon"));
  if (!epsilon) {
    return pass_on(epsilon);
  }
  if (!(*epsilon >= 0.0 && *epsilon < 1.0)) {
    return fail(Errc::bad_file, "'{}': the norms' epsilon is {}", file.name(), *epsilon);
  }
  config.norm_epsilon = static_cast<float>(*epsilon);
  for (const auto read : {read_attention_sizes, read_rope, read_vocabulary}) {
    auto done = read(keys, config);
    if (!done) {
      return pass_on(done);
    }
  }
  return config;
}

}  // namespace kvspan::model
