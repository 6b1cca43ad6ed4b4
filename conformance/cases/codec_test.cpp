// SPDX-License-Identifier: Apache-2.0
// The codec stores the bytes of the C reference and reads them back to its values, for every type,
// row type, stride and page layout, NaN and infinities included, and writes nothing beside them.
// Not here: the reference's own golden bytes (abi/tests).
#include "kvspan/sdk/reference/quant.h"

#include "attention_case.hpp"
#include "worker/case.hpp"

#include <cmath>
#include <iterator>
#include <limits>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(copy);

constexpr kvspan_type_t kRowTypes[] = {KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16};

/// Values of all kinds: ordinary, huge, tiny, zeros of both signs, and where asked NaN and Inf.
float odd_value(Dice& dice, bool special) {
  const float ordinary = dice.normal();
  switch (dice.below(special ? 24 : 20)) {
    case 0:
      return 0.0F;
    case 1:
      return -0.0F;
    case 2:
      return ordinary * 1e-6F;
    case 3:
      return ordinary * 3e4F;
    case 4:
      return std::ldexp(ordinary, static_cast<int>(dice.below(60)) - 30);
    case 5:
      return static_cast<float>(dice.below(17)) * 0.125F;  // ties
    case 20:
      return std::numeric_limits<float>::quiet_NaN();
    case 21:
      return std::numeric_limits<float>::infinity();
    case 22:
      return -std::numeric_limits<float>::infinity();
    case 23:
      return std::numeric_limits<float>::max() * dice.uniform();
    default:
      return ordinary;
  }
}

/// A list of items over two buffers: rows in one, planes in the other.
class CodecTest : public PluginTest {
 protected:
  struct Job {
    Buffer* rows = nullptr;
    Buffer* planes = nullptr;
    std::vector<kvspan_codec_item_t> items;
    std::vector<std::vector<uint32_t>> lists;
    uint64_t rows_used = 0;
    uint64_t planes_used = 0;
  };

  Job new_job(Dice& dice) {
    Job job;
    job.rows = rig().allocate(dice.pick<uint32_t>({KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST}),
                              uint64_t{1} << 20);
    job.planes = rig().allocate(dice.pick<uint32_t>({KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST}),
                                uint64_t{1} << 20);
    job.lists.reserve(8);
    return job;
  }

  void end_job(Job& job) {
    rig().release(job.rows);
    rig().release(job.planes);
  }

  void add_item(Job& job, kvspan_type_t row_type, kvspan_type_t type, uint64_t rows, Dice& dice);

  /// The types that the settings ask for, as K or as V.
  std::vector<kvspan_type_t> wanted_types() const {
    std::vector<kvspan_type_t> wanted;
    for (const kvspan_type_t type : kTypes) {
      const Tuple* const tuple = tuple_with(settings().tuples, type);
      if (tuple != nullptr &&
          tuple->head_size.value_or(256) % kvspan_ref_block(type).elements == 0) {
        wanted.push_back(type);
      }
    }
    return wanted;
  }

  static uint64_t row_at(const kvspan_codec_item_t& item, uint32_t row, uint32_t head) {
    return item.rows.offset + row * item.rows.row_stride + head * item.rows.head_stride;
  }

  static uint64_t plane_at(const kvspan_codec_item_t& item, uint32_t row, uint32_t head) {
    const kvspan_plane_t& plane = item.plane;
    const uint64_t token = item.first_token + row;
    uint64_t at = plane.offset + head * plane.head_stride;
    if (plane.page_tokens == 0) {
      return at + token * plane.row_stride;
    }
    const uint64_t page = token / plane.page_tokens;
    at += (plane.page_list == nullptr ? page : plane.page_list[page]) * plane.page_stride;
    return at + token % plane.page_tokens * plane.row_stride;
  }

  /// Puts the values of one row and head into the rows' image.
  static void store_row(Job& job,
                        const kvspan_codec_item_t& item,
                        uint32_t row,
                        uint32_t head,
                        const std::vector<float>& values) {
    kvspan_ref_encode_row(item.rows.type,
                          values.data(),
                          item.head_size,
                          job.rows->image.data() + row_at(item, row, head));
  }

  /// Throws every value of an item's rows into the image.
  static void fill_rows(Job& job, const kvspan_codec_item_t& item, bool special, Dice& dice) {
    std::vector<float> values(item.head_size);
    for (uint32_t row = 0; row < item.row_count; ++row) {
      for (uint32_t head = 0; head < item.head_count; ++head) {
        for (float& value : values) {
          value = odd_value(dice, special);
        }
        store_row(job, item, row, head, values);
      }
    }
  }

  /// What the plane's image has to be after encode.
  static void encode_image(Job& job, const kvspan_codec_item_t& item) {
    std::vector<float> values(item.head_size);
    for (uint32_t row = 0; row < item.row_count; ++row) {
      for (uint32_t head = 0; head < item.head_count; ++head) {
        kvspan_ref_decode_row(item.rows.type,
                              job.rows->image.data() + row_at(item, row, head),
                              item.head_size,
                              values.data());
        kvspan_ref_encode_row(item.type,
                              values.data(),
                              item.head_size,
                              job.planes->image.data() + plane_at(item, row, head));
      }
    }
  }

  /// What the rows' image has to be after decode.
  static void decode_image(Job& job, const kvspan_codec_item_t& item) {
    std::vector<float> values(item.head_size);
    for (uint32_t row = 0; row < item.row_count; ++row) {
      for (uint32_t head = 0; head < item.head_count; ++head) {
        kvspan_ref_decode_row(item.type,
                              job.planes->image.data() + plane_at(item, row, head),
                              item.head_size,
                              values.data());
        store_row(job, item, row, head, values);
      }
    }
  }

  kvspan_result_t submit(const Job& job, bool decode, kvspan_error_t* error) {
    return rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](auto* queue, const auto* submit, auto* out) {
          const auto count = static_cast<uint32_t>(job.items.size());
          return decode ? rig().calls().decode(queue, job.items.data(), count, submit, out)
                        : rig().calls().encode(queue, job.items.data(), count, submit, out);
        },
        error);
  }
};

void CodecTest::add_item(
    Job& job, kvspan_type_t row_type, kvspan_type_t type, uint64_t rows, Dice& dice) {
  kvspan_codec_item_t item = {};
  item.type = type;
  item.row_count = static_cast<uint32_t>(rows);
  item.head_count = static_cast<uint32_t>(dice.between(1, 3));
  do {
    item.head_size = dice.pick<uint32_t>({64, 80, 96, 128, 192, 256});
  } while (item.head_size % kvspan_ref_block(type).elements != 0);
  const Tuple* const tuple = tuple_with(settings().tuples, type);
  const uint32_t asked = tuple == nullptr ? 0 : tuple->head_size.value_or(0);
  if (asked != 0 && asked % kvspan_ref_block(type).elements == 0) {
    item.head_size = asked;
  }
  item.first_token = dice.below(20);
  const uint64_t pad = 4 * dice.below(3);
  item.rows.memory = job.rows->memory;
  item.rows.type = row_type;
  item.rows.head_stride = kvspan_ref_row_bytes(row_type, item.head_size) + pad;
  item.rows.row_stride = item.rows.head_stride * item.head_count + pad;
  item.rows.offset = job.rows_used;
  job.rows_used += (item.rows.row_stride * (item.row_count + 1u) + 255) / 256 * 256;
  const uint64_t typed = kvspan_ref_row_bytes(type, item.head_size);
  kvspan_plane_t& plane = item.plane;
  plane.memory = job.planes->memory;
  plane.head_stride = typed + pad;
  plane.row_stride = plane.head_stride * item.head_count + pad;
  plane.offset = job.planes_used;
  uint64_t tokens = item.first_token + item.row_count;
  if (!dice.hit(3)) {
    plane.page_tokens = dice.pick<uint32_t>({4, 8, 16});
    const uint64_t pages = tokens / plane.page_tokens + 1;
    plane.page_stride = plane.page_tokens * plane.row_stride + pad;
    if (dice.hit(2)) {
      std::vector<uint32_t> list;
      for (uint32_t page = 0; page < pages; ++page) {
        list.push_back(page);
      }
      dice.shuffle(list);
      job.lists.push_back(list);
      plane.page_list = job.lists.back().data();
      plane.page_count = static_cast<uint32_t>(list.size());
    }
    job.planes_used += pages * plane.page_stride;
  }
  job.planes_used += (tokens + 1) * plane.row_stride;
  job.planes_used = (job.planes_used + 255) / 256 * 256;
  job.items.push_back(item);
}

KVSPAN_CASE(CodecTest,
            EncodeStoresTheReferencesBytesAndNothingElse,
            "KV-CODEC-2 KV-CODEC-3",
            takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 5, 1) && !HasFailure(); ++seed) {
    for (const kvspan_type_t row_type : kRowTypes) {
      for (const kvspan_type_t type : wanted_types()) {
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", rows " << row_type << ", type " << type);
        Dice dice(settings(), seed * 1000 + row_type * 32 + type);
        Job job = new_job(dice);
        add_item(job, row_type, type, dice.between(1, 12), dice);
        const kvspan_type_t second = kTypes[dice.below(8)];
        add_item(
            job, row_type, settings().tuples.empty() ? second : type, dice.between(0, 12), dice);
        for (const kvspan_codec_item_t& item : job.items) {
          fill_rows(job, item, seed != 1, dice);
        }
        rig().upload(*job.rows);
        rig().upload(*job.planes);
        for (const kvspan_codec_item_t& item : job.items) {
          encode_image(job, item);
        }
        kvspan_error_t error = fresh_error();
        const kvspan_result_t result = submit(job, false, &error);
        ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
        ASSERT_TRUE(rig().unchanged(*job.planes));
        ASSERT_TRUE(rig().unchanged(*job.rows));
        end_job(job);
      }
    }
  }
}

KVSPAN_CASE(CodecTest,
            DecodeGivesTheReferencesValuesAndWritesNothingElse,
            "KV-CODEC-5 KV-CODEC-3",
            takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 4, 1) && !HasFailure(); ++seed) {
    for (const kvspan_type_t row_type : kRowTypes) {
      for (const kvspan_type_t type : wanted_types()) {
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", rows " << row_type << ", type " << type);
        Dice dice(settings(), seed * 2000 + row_type * 32 + type);
        Job job = new_job(dice);
        add_item(job, row_type, type, dice.between(1, 12), dice);
        for (const kvspan_codec_item_t& item : job.items) {
          fill_rows(job, item, seed != 1, dice);
          encode_image(job, item);
        }
        job.rows->fill_canary(seed);
        rig().upload(*job.rows);
        rig().upload(*job.planes);
        for (const kvspan_codec_item_t& item : job.items) {
          decode_image(job, item);
        }
        kvspan_error_t error = fresh_error();
        const kvspan_result_t result = submit(job, true, &error);
        ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
        ASSERT_TRUE(rig().unchanged(*job.rows));
        ASSERT_TRUE(rig().unchanged(*job.planes));
        end_job(job);
      }
    }
  }
}

KVSPAN_CASE(CodecTest, RowsOfOneSpecialValueAreTheReferencesToo, "KV-CODEC-2", takes_tuple) {
  const float special_values[] = {
      std::numeric_limits<float>::quiet_NaN(),
      -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(),
      -std::numeric_limits<float>::infinity(),
      0.0F,
      -0.0F,
      std::numeric_limits<float>::denorm_min(),
      std::numeric_limits<float>::min(),
      1e-39F,
      3e38F,
      65504.0F,
      65520.0F,
      -65536.0F,
      1.27e-3F,  // scales of q8_0, q4_0 and q4_1 below the least normal f16
      -8e-5F,
      3e-6F};
  for (const kvspan_type_t type : wanted_types()) {
    SCOPED_TRACE(testing::Message() << "type " << type);
    Dice dice(settings(), type);
    Job job = new_job(dice);
    add_item(job, KVSPAN_TYPE_F32, type, 3 * std::size(special_values), dice);
    const kvspan_codec_item_t& item = job.items.back();
    std::vector<float> values(item.head_size);
    for (uint32_t row = 0; row < item.row_count; ++row) {
      const float value =
          special_values[row / 3];  // all of a row, the first of each block, the last
      for (uint32_t head = 0; head < item.head_count; ++head) {
        for (uint32_t e = 0; e < item.head_size; ++e) {
          const bool here = row % 3 == 0 || (row % 3 == 1 ? e % 32 == 0 : e % 32 == 31);
          values[e] = here ? value : dice.normal();
        }
        store_row(job, item, row, head, values);
      }
    }
    rig().upload(*job.rows);
    rig().upload(*job.planes);
    encode_image(job, item);
    ASSERT_EQ(submit(job, false, nullptr), KVSPAN_OK);
    ASSERT_TRUE(rig().unchanged(*job.planes));
    end_job(job);
  }
}

KVSPAN_CASE(CodecTest, NoItemsAndNoRowsAreAcceptedAndSignal, "KV-CODEC-4") {
  Dice dice(settings(), 3);
  Job job = new_job(dice);
  rig().upload(*job.rows);
  rig().upload(*job.planes);
  EXPECT_EQ(submit(job, false, nullptr), KVSPAN_OK);
  EXPECT_EQ(submit(job, true, nullptr), KVSPAN_OK);
  add_item(job, KVSPAN_TYPE_F16, KVSPAN_TYPE_Q8_0, 0, dice);
  EXPECT_EQ(submit(job, false, nullptr), KVSPAN_OK);
  EXPECT_EQ(submit(job, true, nullptr), KVSPAN_OK);
  EXPECT_TRUE(rig().unchanged(*job.planes));
  EXPECT_TRUE(rig().unchanged(*job.rows));
}

KVSPAN_CASE(CodecTest, QuerySaysWhatEncodeDoes, "KV-CODEC-1") {
  for (const kvspan_type_t row_type : kRowTypes) {
    for (const kvspan_type_t type :
         {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 30u, 31u, 0x80000001u}) {
      for (const uint32_t head_size : {64u, 80u, 128u}) {
        SCOPED_TRACE(testing::Message()
                     << "rows " << row_type << ", type " << type << ", head " << head_size);
        const kvspan_ref_block_t block = kvspan_ref_block(type);
        const bool known = block.elements != 0;
        const bool fits = known && head_size % block.elements == 0;
        kvspan_codec_caps_t caps = {};
        caps.struct_size = sizeof caps;
        ASSERT_EQ(
            rig().tables().codec->query(rig().device(), row_type, type, head_size, &caps, nullptr),
            KVSPAN_OK);
        if (!fits) {
          EXPECT_EQ(caps.encode_level, KVSPAN_LEVEL_UNSUPPORTED);
          EXPECT_EQ(caps.decode_level, KVSPAN_LEVEL_UNSUPPORTED);
          EXPECT_NE(caps.reasons, 0u);
          EXPECT_EQ((caps.reasons & KVSPAN_WHY_BLOCK) != 0, known);
        } else {
          EXPECT_NE(caps.encode_level, KVSPAN_LEVEL_UNSUPPORTED);
          EXPECT_NE(caps.decode_level, KVSPAN_LEVEL_UNSUPPORTED);
          EXPECT_GE(caps.items_max, 1u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvspan::conformance
