// SPDX-License-Identifier: Apache-2.0
// Faults of the codec's arithmetic: rounding, signs, small scales, NaN. Each row is right first and
// is then spoilt on the host (spoil() in edits.hpp).
#include "kvspan/sdk/reference/half.h"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/rounding.h"
#include "kvspan/sdk/reference/span.h"

#include "edits.hpp"
#include "fault_list.hpp"

#include <cmath>
#include <cstring>

namespace kvspan::faults {
namespace {

/// One row and head of an item, before and after: `row` [head_size] of the engine, `typed` of the
/// plane. Says whether it changed the side that was written.
using RowEdit = std::function<bool(const kvspan_codec_item_t& item, Bytes& row, Bytes& typed)>;

void change_item(Layer& layer,
                 kvspan_queue_t* queue,
                 const kvspan_codec_item_t& item,
                 bool encoding,
                 const RowEdit& edit) {
  for (uint32_t row = 0; row < item.row_count; ++row) {
    for (uint32_t head = 0; head < item.head_count; ++head) {
      const uint64_t at = kvspan_ref_rows_offset(&item.rows, row, head);
      const uint64_t to = kvspan_ref_plane_offset(&item.plane, item.first_token + row, head);
      const uint64_t bytes = kvspan_ref_row_bytes(item.rows.type, item.head_size);
      Bytes engine = read_memory(layer, queue, item.rows.memory, at, bytes);
      Bytes typed = read_memory(
          layer, queue, item.plane.memory, to, kvspan_ref_row_bytes(item.type, item.head_size));
      if (engine.empty() || typed.empty() || !edit(item, engine, typed)) {
        continue;
      }
      layer.ran();
      if (encoding) {
        write_memory(layer, queue, item.plane.memory, to, typed);
      } else {
        write_memory(layer, queue, item.rows.memory, at, engine);
      }
    }
  }
}

/// Spoils the rows of items that `concerns` picks: looking at others would only be slow.
void change_rows_of(Layer& layer,
                    bool encoding,
                    bool (*concerns)(const kvspan_codec_item_t& item),
                    const RowEdit& edit) {
  auto& slot = encoding ? layer.calls.encode : layer.calls.decode;
  slot = [&layer, encoding, concerns, edit, next = slot](kvspan_queue_t* queue,
                                                         const kvspan_codec_item_t* items,
                                                         uint32_t count,
                                                         const kvspan_submit_t* submit,
                                                         kvspan_error_t* error) {
    bool some = false;
    for (uint32_t i = 0; items != nullptr && i < count && i < 4096; ++i) {
      some = some || concerns(items[i]);
    }
    if (!some) {
      return next(queue, items, count, submit, error);
    }
    const Go go = [&](const kvspan_submit_t* own, kvspan_error_t* out) {
      return next(queue, items, count, own, out);
    };
    return spoil(layer, queue, submit, error, go, [&] {
      for (uint32_t i = 0; i < count; ++i) {
        if (concerns(items[i])) {
          change_item(layer, queue, items[i], encoding, edit);
        }
      }
    });
  };
}

/// Halves between two bf16 values go away from zero, not to even.
void encode_rounds_half_away(Layer& layer) {
  change_rows_of(
      layer,
      true,
      [](const kvspan_codec_item_t& item) {
        return item.type == KVSPAN_TYPE_BF16 && item.rows.type == KVSPAN_TYPE_F32;
      },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes& typed) {
        bool changed = false;
        for (uint32_t d = 0; d < item.head_size; ++d) {
          const uint32_t bits = kvspan_ref_bits_of(load_float(row, d));
          const bool half = (bits & 0xFFFFu) == 0x8000u && (bits & 0x7F800000u) != 0x7F800000u;
          if (half && (bits >> 16 & 1u) == 0) {
            kvspan_ref_store_u16(typed.data() + 2 * d, static_cast<uint16_t>((bits >> 16) + 1));
            changed = true;
          }
        }
        return changed;
      });
}

/// Cut, not rounded: the store of a bf16 is the high half of the register.
void encode_truncates(Layer& layer) {
  change_rows_of(
      layer,
      true,
      [](const kvspan_codec_item_t& item) {
        return item.type == KVSPAN_TYPE_BF16 && item.rows.type == KVSPAN_TYPE_F32;
      },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes& typed) {
        bool changed = false;
        for (uint32_t d = 0; d < item.head_size; ++d) {
          const float value = load_float(row, d);
          const auto cut = static_cast<uint16_t>(kvspan_ref_bits_of(value) >> 16);
          if (value == value && cut != kvspan_ref_load_u16(typed.data() + 2 * d)) {
            kvspan_ref_store_u16(typed.data() + 2 * d, cut);
            changed = true;
          }
        }
        return changed;
      });
}

/// The f16 scale of a block is flushed to zero where it is subnormal.
void encode_flushes_small_scales(Layer& layer) {
  change_rows_of(
      layer,
      true,
      [](const kvspan_codec_item_t& item) {
        return item.type == KVSPAN_TYPE_Q8_0 || item.type == KVSPAN_TYPE_Q4_0;
      },
      [](const kvspan_codec_item_t& item, Bytes&, Bytes& typed) {
        bool changed = false;
        const kvspan_ref_block_t block = kvspan_ref_block(item.type);
        for (std::size_t at = 0; at + 1 < typed.size(); at += block.bytes) {
          const uint16_t scale = kvspan_ref_load_u16(typed.data() + at);
          if ((scale & 0x7C00u) == 0 && (scale & 0x3FFu) != 0) {
            kvspan_ref_store_u16(typed.data() + at, 0);
            changed = true;
          }
        }
        return changed;
      });
}

/// A row with a NaN is stored as zeroes.
void encode_hides_nan(Layer& layer) {
  change_rows_of(
      layer,
      true,
      [](const kvspan_codec_item_t& item) { return item.rows.type == KVSPAN_TYPE_F32; },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes& typed) {
        for (uint32_t d = 0; d < item.head_size; ++d) {
          if (std::isnan(load_float(row, d))) {
            std::fill(typed.begin(), typed.end(), uint8_t{0});
            return true;
          }
        }
        return false;
      });
}

/// -0 comes back as +0.
void decode_drops_the_sign_of_zero(Layer& layer) {
  change_rows_of(
      layer,
      false,
      [](const kvspan_codec_item_t& item) { return item.rows.type == KVSPAN_TYPE_F32; },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes&) {
        bool changed = false;
        for (uint32_t d = 0; d < item.head_size; ++d) {
          if (load_float(row, d) == 0.0F && std::signbit(load_float(row, d))) {
            store_float(row, d, 0.0F);
            changed = true;
          }
        }
        return changed;
      });
}

/// bf16 rows get the high half of the f32 value.
void decode_truncates(Layer& layer) {
  change_rows_of(
      layer,
      false,
      [](const kvspan_codec_item_t& item) { return item.rows.type == KVSPAN_TYPE_BF16; },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes& typed) {
        std::vector<float> values(item.head_size);
        if (kvspan_ref_decode_row(item.type, typed.data(), item.head_size, values.data()) == 0) {
          return false;
        }
        bool changed = false;
        for (uint32_t d = 0; d < item.head_size; ++d) {
          const auto cut = static_cast<uint16_t>(kvspan_ref_bits_of(values[d]) >> 16);
          if (values[d] == values[d] && cut != kvspan_ref_load_u16(row.data() + 2 * d)) {
            kvspan_ref_store_u16(row.data() + 2 * d, cut);
            changed = true;
          }
        }
        return changed;
      });
}

/// The first nibbles of a q4_0 block are taken for the high ones.
void decode_swaps_nibbles(Layer& layer) {
  change_rows_of(
      layer,
      false,
      [](const kvspan_codec_item_t& item) {
        return item.type == KVSPAN_TYPE_Q4_0 && item.rows.type == KVSPAN_TYPE_F32;
      },
      [](const kvspan_codec_item_t& item, Bytes& row, Bytes&) {
        for (uint32_t d = 0; d + 31 < item.head_size; d += 32) {
          for (uint32_t j = d; j < d + 16; ++j) {
            const float low = load_float(row, j);
            store_float(row, j, load_float(row, j + 16));
            store_float(row, j + 16, low);
          }
        }
        return true;
      });
}

constexpr Fault kFaults[] = {
    {"encode_rounds_half_away", encode_rounds_half_away},
    {"encode_truncates", encode_truncates},
    {"encode_flushes_small_scales", encode_flushes_small_scales},
    {"encode_hides_nan", encode_hides_nan},
    {"decode_drops_the_sign_of_zero", decode_drops_the_sign_of_zero},
    {"decode_truncates", decode_truncates},
    {"decode_swaps_nibbles", decode_swaps_nibbles},
};

}  // namespace

std::span<const Fault> codec_value_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
