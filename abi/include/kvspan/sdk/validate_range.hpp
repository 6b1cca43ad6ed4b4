// SPDX-License-Identifier: Apache-2.0
// Where bytes may lie: ranges, rows of the engine, planes of typed rows, and the context that all
// checks share. Nothing here knows what a table does with them.
// Read next: validate_submit.hpp.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/copy.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/types.h"

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace kvspan::sdk {

/// What bytes_of answers for a memory that is not of this device.
inline constexpr std::uint64_t kForeignMemory = UINT64_MAX;

/// The spot that a check looks at: where the error record points and what its sentence begins with
/// ("entry 3 span 7 k: ..."). Texts are borrowed for the check.
struct Spot {
  Place place;
  const char* noun = nullptr;
  std::uint64_t index = 0;
  const char* inner_noun = nullptr;
  std::uint64_t inner_index = 0;
  const char* part = nullptr;
};

/// What the checks need to know beside the value. `bytes_of` is uint64_t(kvspan_memory_t*),
/// noexcept in spirit: bytes of a memory of this device, or kForeignMemory; it is never handed
/// NULL.
template <class BytesOf>
struct Context {
  explicit Context(BytesOf function) : bytes_of(std::move(function)) {}

  /// The same context looking at one part, `field` bytes into the argument's struct.
  Context at(const char* part, std::size_t field) const {
    Context other = *this;
    other.spot.part = part;
    other.spot.place.field_offset = static_cast<std::uint32_t>(field);
    return other;
  }

  /// The same context looking at element `index` of an array.
  Context element(const char* noun, std::uint64_t index) const {
    Context other = *this;
    other.spot.noun = noun;
    other.spot.index = index;
    return other;
  }

  BytesOf bytes_of;
  Spot spot;
  /// Multiples that plane, state and workspace offsets keep: device info.memory_alignment.
  std::uint64_t memory_alignment = 1;
  /// Bytes of a row of elements, 0 = that row cannot be. A plugin with types of its own brings one.
  std::uint64_t (*row_bytes)(kvspan_type_t type, std::uint64_t elements) = kvspan_ref_row_bytes;
  /// Of the device; NULL = no limits to check (segments, fill).
  const kvspan_copy_limits_t* limits = nullptr;
  /// The answer to query(args->shape); mandatory for attention.
  const kvspan_attention_caps_t* caps = nullptr;
  /// Items of a list of codec items; the answer of the codec's query.
  std::uint32_t items_max = UINT32_MAX;
};

/// A counted array of the ABI.
template <class T>
struct List {
  const T* data;
  std::uint32_t count;
};

/// `bytes` bytes at the start of a range, which must hold them at that alignment.
struct RangeUse {
  const kvspan_range_t* range = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
};

/// Rows [row, head, element] as a call uses them.
struct RowsUse {
  const kvspan_rows_t* rows;
  std::uint64_t row_count;
  std::uint32_t head_count;
  std::uint32_t head_size;
};

/// Tokens [first_token, first_token + token_count) of a plane as a call uses them.
struct PlaneUse {
  const kvspan_plane_t* plane;
  kvspan_type_t type;
  std::uint64_t first_token;
  std::uint64_t token_count;
  std::uint32_t head_count;
  std::uint32_t head_size;
};

/// A sum of products that knows when it has left 64 bits.
class Extent {
 public:
  explicit Extent(std::uint64_t start) : bytes_(start) {}

  Extent& add(std::uint64_t count, std::uint64_t stride) noexcept {
    std::uint64_t product = 0;
    const bool wide = __builtin_mul_overflow(count, stride, &product);
    const bool over = __builtin_add_overflow(bytes_, product, &bytes_);
    fits_ = fits_ && !wide && !over;
    return *this;
  }

  Extent& times(std::uint64_t factor) noexcept {
    fits_ = !__builtin_mul_overflow(bytes_, factor, &bytes_) && fits_;
    return *this;
  }

  bool fits() const noexcept { return fits_; }

  std::uint64_t bytes() const noexcept { return bytes_; }

  /// UINT64_MAX: more than that.
  std::uint64_t saturated() const noexcept { return fits_ ? bytes_ : UINT64_MAX; }

 private:
  std::uint64_t bytes_;
  bool fits_ = true;
};

namespace detail {

/// Writes "entry 3 span 7 k: " for a spot.
inline void write_spot(const Spot& spot, char* text, std::size_t capacity) noexcept {
  text[0] = '\0';
  std::size_t used = 0;
  const auto append = [&](const char* noun, std::uint64_t index) {
    const int length = std::snprintf(text + used,
                                     capacity - used,
                                     "%s%s %llu",
                                     used == 0 ? "" : " ",
                                     noun,
                                     static_cast<unsigned long long>(index));
    used += length > 0 ? static_cast<std::size_t>(length) : 0;
    used = used < capacity ? used : capacity - 1;
  };
  if (spot.noun != nullptr) {
    append(spot.noun, spot.index);
  }
  if (spot.inner_noun != nullptr) {
    append(spot.inner_noun, spot.inner_index);
  }
  if (spot.part != nullptr) {
    const int length =
        std::snprintf(text + used, capacity - used, "%s%s", used == 0 ? "" : " ", spot.part);
    used += length > 0 ? static_cast<std::size_t>(length) : 0;
    used = used < capacity ? used : capacity - 1;
  }
  if (used != 0) {
    std::snprintf(text + used, capacity - used, ": ");
  }
}

/// printf's "%llu" wants exactly this type.
inline unsigned long long number(std::uint64_t value) noexcept {
  return value;
}

/// The multiple that rows of a type are laid out on: F32 4, the other types with f16 parts 2.
inline std::uint64_t element_alignment(kvspan_type_t type) noexcept {
  return type == KVSPAN_TYPE_F32 ? 4 : type < KVSPAN_TYPE_VENDOR ? 2 : 1;
}

}  // namespace detail

/// INVALID_ARG at a spot. The sentence is `format`'s, with the spot's name before it.
[[gnu::format(printf, 4, 5)]] inline kvspan_result_t refuse(
    const Spot& spot, kvspan_error_t* error, const char* where, const char* format, ...) noexcept {
  if (error == nullptr) {
    return KVSPAN_E_INVALID_ARG;
  }
  char name[96];
  char sentence[sizeof error->message];
  detail::write_spot(spot, name, sizeof name);
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  return fail_argument(error, spot.place, where, "%s%s", name, sentence);
}

namespace detail {

/// OK when [0, end) is inside `memory`.
template <class BytesOf>
kvspan_result_t check_end(const Extent& end,
                          kvspan_memory_t* memory,
                          const Context<BytesOf>& context,
                          kvspan_error_t* error,
                          const char* where) noexcept {
  if (memory == nullptr) {
    return refuse(context.spot, error, where, "memory is NULL: name the memory it lies in");
  }
  const std::uint64_t size = context.bytes_of(memory);
  if (size == kForeignMemory) {
    return refuse(context.spot, error, where, "memory of another device: use this device's own");
  }
  if (!end.fits()) {
    return refuse(context.spot,
                  error,
                  where,
                  "its extent does not fit 64 bits, its memory has %llu bytes: correct offset, "
                  "strides or counts",
                  number(size));
  }
  if (end.bytes() > size) {
    return refuse(
        context.spot,
        error,
        where,
        "it ends at byte %llu of a memory of %llu bytes: correct offset, strides or counts",
        number(end.bytes()),
        number(size));
  }
  return KVSPAN_OK;
}

template <class BytesOf>
kvspan_result_t check_multiple(const char* name,
                               std::uint64_t value,
                               std::uint64_t alignment,
                               const Context<BytesOf>& context,
                               kvspan_error_t* error,
                               const char* where) noexcept {
  if (alignment > 1 && value % alignment != 0) {
    return refuse(context.spot,
                  error,
                  where,
                  "%s %llu is no multiple of %llu: align it",
                  name,
                  number(value),
                  number(alignment));
  }
  return KVSPAN_OK;
}

template <class T, class BytesOf>
kvspan_result_t check_list(const List<T>& list,
                           std::uint64_t count_max,
                           const Context<BytesOf>& context,
                           kvspan_error_t* error,
                           const char* where) noexcept {
  if (list.count != 0 && list.data == nullptr) {
    return refuse(
        context.spot, error, where, "NULL with a count of %u: pass the array", list.count);
  }
  if (list.count > count_max) {
    return refuse(context.spot,
                  error,
                  where,
                  "%u of them, %llu allowed: use more calls",
                  list.count,
                  number(count_max));
  }
  return KVSPAN_OK;
}

}  // namespace detail

/// Inside its memory. A range of 0 bytes may have no memory.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_range(const kvspan_range_t& range,
                                          const Context<BytesOf>& context,
                                          kvspan_error_t* error,
                                          const char* where) noexcept {
  if (range.memory == nullptr && range.bytes == 0) {
    return KVSPAN_OK;
  }
  return detail::check_end(
      Extent(range.offset).add(range.bytes, 1), range.memory, context, error, where);
}

/// Inside its memory, at the alignment, and at least as large as needed.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_range_use(const RangeUse& use,
                                              const Context<BytesOf>& context,
                                              kvspan_error_t* error,
                                              const char* where) noexcept {
  if (use.bytes == 0) {
    return KVSPAN_OK;
  }
  if (const kvspan_result_t bad = check_range(*use.range, context, error, where)) {
    return bad;
  }
  if (use.range->bytes < use.bytes) {
    return refuse(context.spot,
                  error,
                  where,
                  "%llu bytes, %llu are used: give that many",
                  detail::number(use.range->bytes),
                  detail::number(use.bytes));
  }
  return detail::check_multiple("offset", use.range->offset, use.alignment, context, error, where);
}

/// Rows of F32, F16 or BF16 inside their memory; offset and strides are multiples of the element.
/// UNSUPPORTED with WHY_ROW_TYPE for another type. No rows touch nothing.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_rows(const RowsUse& use,
                                         const Context<BytesOf>& context,
                                         kvspan_error_t* error,
                                         const char* where) noexcept {
  const kvspan_rows_t& rows = *use.rows;
  if (rows.type != KVSPAN_TYPE_F32 && rows.type != KVSPAN_TYPE_F16 &&
      rows.type != KVSPAN_TYPE_BF16) {
    return fail_reasons(error,
                        where,
                        KVSPAN_WHY_ROW_TYPE,
                        "rows of type %u are not offered: use F32, F16 or BF16",
                        rows.type);
  }
  if (rows.reserved != 0) {
    return refuse(context.spot, error, where, "reserved is %u: set it to 0", rows.reserved);
  }
  if (use.row_count == 0 || use.head_count == 0 || use.head_size == 0) {
    return KVSPAN_OK;
  }
  const std::uint64_t element = detail::element_alignment(rows.type);
  kvspan_result_t bad =
      detail::check_multiple("offset", rows.offset, element, context, error, where);
  if (bad == KVSPAN_OK) {
    bad = detail::check_multiple("row_stride", rows.row_stride, element, context, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = detail::check_multiple("head_stride", rows.head_stride, element, context, error, where);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Extent end(rows.offset);
  end.add(use.row_count - 1, rows.row_stride)
      .add(use.head_count - 1, rows.head_stride)
      .add(use.head_size, element);
  return detail::check_end(end, rows.memory, context, error, where);
}

}  // namespace kvspan::sdk
