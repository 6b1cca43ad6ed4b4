// SPDX-License-Identifier: Apache-2.0
// Asks codec and attention what they offer, over every pair of types and the usual head sizes.
#include "worker/probe_parts.hpp"

#include <string>
#include <utility>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

constexpr std::pair<uint32_t, const char*> kOptionNames[] = {
    {KVSPAN_OPTION_WINDOW, "window"},
    {KVSPAN_OPTION_SUFFIX_MASK, "suffix_mask"},
    {KVSPAN_OPTION_SOFT_CAP, "soft_cap"},
    {KVSPAN_OPTION_SINKS, "sinks"},
    {KVSPAN_OPTION_ALIBI, "alibi"},
    {KVSPAN_OPTION_V_IN_K, "v_in_k"},
    {KVSPAN_OPTION_LSE, "lse"}};

constexpr uint32_t kHeadSizes[] = {64, 80, 96, 128, 192, 256};

const char* level_name(uint32_t level) {
  return level == KVSPAN_LEVEL_NATIVE     ? "native"
         : level == KVSPAN_LEVEL_CONVERTS ? "converts"
                                          : "unsupported";
}

kvspan_attention_shape_t plain_shape(kvspan_type_t k, kvspan_type_t v, uint32_t head_size) {
  kvspan_attention_shape_t shape = {};
  shape.struct_size = sizeof shape;
  shape.k_type = k;
  shape.v_type = v;
  shape.q_type = KVSPAN_TYPE_F32;
  shape.out_type = KVSPAN_TYPE_F32;
  shape.head_size_k = head_size;
  shape.head_size_v = head_size;
  shape.q_heads = 1;
  shape.kv_heads = 1;
  shape.row_class = KVSPAN_ROWS_DECODE;
  shape.error_class = KVSPAN_ERROR_E1;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 1;
  shape.entries_max = 1;
  shape.items_max = 1;
  shape.spans_max = 1;
  shape.tokens_max = 4096;
  return shape;
}

kvspan_attention_caps_t answer(const Tables& tables,
                               kvspan_device_t* device,
                               const kvspan_attention_shape_t& shape) {
  kvspan_attention_caps_t caps = {};
  caps.struct_size = sizeof caps;
  if (tables.attention->query(device, &shape, &caps, nullptr) != KVSPAN_OK) {
    caps = {};
  }
  return caps;
}

}  // namespace

json codec_grid(const Tables& tables, kvspan_device_t* device) {
  json grid = json::array();
  for (const kvspan_type_t row_type : {kTypes[0], kTypes[1], kTypes[2]}) {
    for (const kvspan_type_t type : kTypes) {
      for (const uint32_t head_size : kHeadSizes) {
        kvspan_codec_caps_t caps = {};
        caps.struct_size = sizeof caps;
        if (tables.codec->query(device, row_type, type, head_size, &caps, nullptr) != KVSPAN_OK) {
          caps = {};
        }
        grid.push_back({{"row_type", type_name(row_type)},
                        {"type", type_name(type)},
                        {"head_size", head_size},
                        {"encode", level_name(caps.encode_level)},
                        {"decode", level_name(caps.decode_level)},
                        {"reasons", caps.reasons}});
      }
    }
  }
  return grid;
}

void add_attention(const Tables& tables, kvspan_device_t* device, json& found) {
  json grid = json::array();
  kvspan_attention_shape_t works = plain_shape(KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64);
  bool any = false;
  for (const kvspan_type_t k : kTypes) {
    for (const kvspan_type_t v : kTypes) {
      for (const uint32_t head_size : kHeadSizes) {
        const kvspan_attention_shape_t shape = plain_shape(k, v, head_size);
        const kvspan_attention_caps_t caps = answer(tables, device, shape);
        grid.push_back({{"k", type_name(k)},
                        {"v", type_name(v)},
                        {"head_size_k", head_size},
                        {"head_size_v", head_size},
                        {"level", level_name(caps.level)},
                        {"reasons", caps.reasons},
                        {"error_class", caps.error_class},
                        {"determinism", caps.determinism},
                        {"width_invariant_max", caps.width_invariant_max},
                        {"split_count", caps.split_count},
                        {"workspace_bytes", caps.run_workspace_bytes}});
        if (!any && caps.level != KVSPAN_LEVEL_UNSUPPORTED) {
          any = true;
          works = shape;
        }
      }
    }
  }
  found["attention"] = std::move(grid);
  json options = json::object();
  for (const auto& [bit, name] : kOptionNames) {
    kvspan_attention_shape_t shape = works;
    shape.options = bit;
    options[name] = level_name(answer(tables, device, shape).level);
  }
  found["attention_options"] = std::move(options);
  kvspan_attention_shape_t prefill = works;
  prefill.row_class = KVSPAN_ROWS_PREFILL;
  prefill.rows_max = 512;
  found["row_classes"] = {{"decode", level_name(answer(tables, device, works).level)},
                          {"prefill", level_name(answer(tables, device, prefill).level)}};
}

std::string absent_tuple(const Tables& tables,
                         kvspan_device_t* device,
                         const std::vector<Tuple>& tuples) {
  const auto offers = [&](const Tuple& tuple, uint32_t head_size) {
    for (const kvspan_type_t k : kTypes) {
      for (const kvspan_type_t v : kTypes) {
        if (tuple.fits(k, v) && tables.attention != nullptr &&
            answer(tables, device, plain_shape(k, v, head_size)).level !=
                KVSPAN_LEVEL_UNSUPPORTED) {
          return true;
        }
      }
    }
    return false;
  };
  for (const Tuple& tuple : tuples) {
    bool some = false;
    for (const uint32_t head_size : kHeadSizes) {
      some = some || offers(tuple, tuple.head_size.value_or(head_size));
    }
    if (!some) {
      return "--tuple " + tuple.text +
             " selects nothing: the plugin offers no attention over these types and head sizes";
    }
  }
  return "";
}

}  // namespace kvspan::conformance
