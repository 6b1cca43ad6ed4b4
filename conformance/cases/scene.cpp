// SPDX-License-Identifier: Apache-2.0
// What a scene is made of: shapes, rows, outputs. Running one: stage.cpp.
#include "scene.hpp"

#include "kvspan/sdk/reference/quant.h"

#include <algorithm>
#include <cstring>

namespace kvspan::conformance {

bool Rows::sees(uint32_t row, uint64_t token) const {
  if (token >= visible_end[row] || (!window_begin.empty() && token < window_begin[row])) {
    return false;
  }
  const uint64_t suffix_begin = token_total - suffix_count;
  if (suffix_mask.empty() || token < suffix_begin) {
    return true;
  }
  return ((suffix_mask[row] >> (token - suffix_begin)) & 1u) != 0;
}

bool option_matters(const Scene& scene, uint32_t bit) {
  if ((scene.shape.options & bit) == 0) {
    return false;
  }
  const auto any_row = [&](auto&& differs) {
    for (const Sequence& sequence : scene.sequences) {
      for (uint32_t row = 0; row < sequence.rows.count; ++row) {
        if (differs(sequence.rows, row)) {
          return true;
        }
      }
    }
    return false;
  };
  if (bit == KVSPAN_OPTION_WINDOW) {
    return any_row([](const Rows& rows, uint32_t row) {
      return rows.window_begin[row] > 0 && rows.window_begin[row] < rows.visible_end[row];
    });
  }
  if (bit == KVSPAN_OPTION_SUFFIX_MASK) {
    return any_row([](const Rows& rows, uint32_t row) {
      bool differs = false;
      for (uint32_t i = 0; i < rows.suffix_count; ++i) {
        const uint64_t token = rows.token_total - rows.suffix_count + i;
        const uint64_t other = rows.suffix_mask[row] >> (rows.suffix_count - 1 - i);
        differs = differs ||
                  (token < rows.visible_end[row] && rows.sees(row, token) != ((other & 1u) != 0));
      }
      return differs;
    });
  }
  return true;
}

kvspan_attention_shape_t shape_of(const Geometry& geometry) {
  kvspan_attention_shape_t shape = {};
  shape.struct_size = sizeof shape;
  shape.options = geometry.v_in_k ? KVSPAN_OPTION_V_IN_K : 0u;
  shape.k_type = geometry.k_type;
  shape.v_type = geometry.v_type;
  shape.q_type = KVSPAN_TYPE_F32;
  shape.out_type = KVSPAN_TYPE_F32;
  shape.head_size_k = geometry.head_size_k;
  shape.head_size_v = geometry.head_size_v;
  shape.q_heads = geometry.q_heads;
  shape.kv_heads = geometry.kv_heads;
  shape.row_class = KVSPAN_ROWS_DECODE;
  shape.error_class = KVSPAN_ERROR_E0;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 16;
  shape.entries_max = 4;
  shape.items_max = 64;
  shape.spans_max = 1024;
  shape.tokens_max = uint64_t{1} << 20;
  return shape;
}

kvspan_attention_caps_t ask(Rig& rig, const kvspan_attention_shape_t& shape) {
  kvspan_attention_caps_t caps = {};
  caps.struct_size = sizeof caps;
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = rig.tables().attention->query(rig.device(), &shape, &caps, &error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  return caps;
}

uint64_t split_for(const kvspan_attention_caps_t& caps, uint64_t tokens) {
  const uint64_t granule = std::max(1u, caps.span_granule);
  const uint64_t parts = std::max(1u, caps.split_count);
  const uint64_t share = (tokens + parts - 1) / parts;
  return std::max(granule, (share + granule - 1) / granule * granule);
}

std::vector<float> random_rows(kvspan_type_t type, uint64_t count, Dice& dice) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = dice.normal();
  }
  Bytes stored(kvspan_ref_row_bytes(type, count));
  kvspan_ref_encode_row(type, values.data(), count, stored.data());
  kvspan_ref_decode_row(type, stored.data(), count, values.data());
  return values;
}

Rows rows_over(const Scene& scene, uint64_t tokens, uint32_t count, Dice& dice) {
  Rows rows;
  rows.count = count;
  rows.visible_end.assign(count, tokens);
  rows.token_total = tokens;
  rows.split_tokens = split_for(scene.caps, tokens);
  const uint64_t row_elements = uint64_t{scene.geometry.q_heads} * scene.geometry.head_size_k;
  rows.q = random_rows(scene.shape.q_type, count * row_elements, dice);
  return rows;
}

std::vector<float> values_of(const Output& output, kvspan_type_t type) {
  const uint64_t bytes = kvspan_ref_block(type).bytes;  // 0 where there is no such type
  std::vector<float> values(bytes == 0 ? 0 : output.out.size() / bytes);
  kvspan_ref_decode_row(type, output.out.data(), values.size(), values.data());
  return values;
}

std::vector<float> lse_of(const Output& output) {
  std::vector<float> values(output.lse.size() / 4);
  if (!values.empty()) {
    std::memcpy(values.data(), output.lse.data(), output.lse.size());
  }
  return values;
}

::testing::AssertionResult same_bits(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " outputs";
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].out.size() != b[i].out.size() || a[i].lse.size() != b[i].lse.size()) {
      return ::testing::AssertionFailure() << "output " << i << " has another size";
    }
    const auto differs = std::mismatch(a[i].out.begin(), a[i].out.end(), b[i].out.begin());
    if (differs.first != a[i].out.end()) {
      return ::testing::AssertionFailure() << "sequence " << i << " differs at byte "
                                           << differs.first - a[i].out.begin() << " of its output";
    }
    if (a[i].lse != b[i].lse) {
      return ::testing::AssertionFailure() << "sequence " << i << " differs in its LSE";
    }
  }
  return ::testing::AssertionSuccess();
}

Output part_of(const Output& output, uint32_t rows, uint32_t first, uint32_t count) {
  const auto cut = [&](const Bytes& bytes) {
    const auto row = static_cast<std::ptrdiff_t>(bytes.size() / rows);
    return Bytes(bytes.begin() + row * first, bytes.begin() + row * (first + count));
  };
  return {cut(output.out), cut(output.lse)};
}

}  // namespace kvspan::conformance
