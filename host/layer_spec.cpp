// SPDX-License-Identifier: Apache-2.0
// A count, then a word at a time.
#include "layer_spec.hpp"

#include "kvspan/core/layout/kv_type.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace kvspan::host {

namespace {

constexpr std::uint32_t kCountMax = 4096;
constexpr std::uint32_t kLayerSizeMax = 1U << 14;  // heads, and elements of one
constexpr std::uint64_t kWindowMax = 1ULL << 40;

tl::unexpected<Error> no_layers(std::string_view text, std::string_view why) {
  return tl::unexpected(error_of(
      Errc::invalid_argument,
      fmt::format("'{}' describes no layers: {}; write COUNT:key=value,... with k, v, q-heads, "
                  "kv-heads, head-size, head-size-v, window, latent",
                  text,
                  why),
      "layer"));
}

std::optional<std::uint64_t> number(std::string_view text,
                                    std::uint64_t least,
                                    std::uint64_t most) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  const bool whole = failure == std::errc{} && rest == end && !text.empty();
  return whole && value >= least && value <= most ? std::optional(value) : std::nullopt;
}

// One key=value; false with `why` filled where it is none.
bool set_word(std::string_view word, LayerGeometry& layer, bool& has_v_size, std::string& why) {
  const std::size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
  if (word == "latent") {
    layer.v_in_k = true;
    return true;
  }
  if (key == "k" || key == "v") {
    const auto type = kv_type_named(value);
    if (!type) {
      why = type.error().message;
      return false;
    }
    (key == "k" ? layer.k_type : layer.v_type) = type->id;
    return true;
  }
  if (key == "window") {
    const auto tokens = number(value, 0, kWindowMax);
    layer.window_tokens = tokens.value_or(0);
    why = fmt::format("the window '{}' is no number of tokens up to {}", value, kWindowMax);
    return tokens.has_value();
  }
  const std::pair<std::string_view, std::uint32_t*> sizes[] = {{"q-heads", &layer.q_heads},
                                                               {"kv-heads", &layer.kv_heads},
                                                               {"head-size", &layer.head_size_k},
                                                               {"head-size-v", &layer.head_size_v}};
  for (const auto& [name, target] : sizes) {
    if (key == name) {
      const auto size = number(value, 1, kLayerSizeMax);
      *target = static_cast<std::uint32_t>(size.value_or(0));
      has_v_size = has_v_size || key == "head-size-v";
      if (key == "head-size" && !has_v_size) {
        layer.head_size_v = layer.head_size_k;
      }
      why = fmt::format("{} is 1 to {}, not '{}'", name, kLayerSizeMax, value);
      return size.has_value();
    }
  }
  why = fmt::format("'{}' is not known", word);
  return false;
}

}  // namespace

Result<std::vector<LayerGeometry>> parse_layers(std::string_view text,
                                                const LayerGeometry& defaults) {
  std::string_view rest = text;
  std::uint64_t count = 1;
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    const auto given = number(rest.substr(0, colon), 1, kCountMax);
    if (!given) {
      return no_layers(text, fmt::format("the count before ':' is 1 to {}", kCountMax));
    }
    count = *given;
    rest.remove_prefix(colon + 1);
  }
  LayerGeometry layer = defaults;
  bool has_v_size = false;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    std::string why;
    if (!set_word(rest.substr(0, comma), layer, has_v_size, why)) {
      return no_layers(text, why);
    }
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  if (layer.q_heads == 0 || layer.kv_heads == 0 || layer.head_size_k == 0) {
    return no_layers(text, "heads or head size are missing");
  }
  return std::vector<LayerGeometry>(count, layer);
}

}  // namespace kvspan::host
