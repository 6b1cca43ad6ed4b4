// SPDX-License-Identifier: Apache-2.0
// The GGUF parser, first part: header and metadata.
// Order of the file: magic, version, counts, metadata, tensor descriptions, padding, tensor data.
// The second part, tensors, is gguf_tensors.cpp.
// Source: the GGUF specification in the ggml project, docs/gguf.md.
// Read next: gguf_cursor.hpp (no read leaves the file), gguf.hpp (what comes out).
#include "model/gguf_parser.hpp"

#include "model/fail.hpp"
#include "model/gguf_cursor.hpp"

#include <algorithm>
#include <bit>

namespace kvspan::model {

namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF" read as a little-endian number
constexpr std::uint64_t kMaxAlignmentBytes =
    1u << 20;  // far above any writer's; the format's default is 32
constexpr std::uint32_t kLastType = static_cast<std::uint32_t>(GgufType::f64);

// Smallest possible encodings, for a first check of the counts: a key of no bytes with a one-byte
// value, and a tensor of no name with one dimension.
constexpr std::uint64_t kMinValueBytes = 8 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

GgufType read_type(GgufCursor& cursor, std::string_view what) {
  const auto number = cursor.number<std::uint32_t>(what);
  if (number > kLastType) {
    cursor.refuse(Errc::bad_file, "damaged: {} has the unknown value type {}", what, number);
    return GgufType::u8;
  }
  return static_cast<GgufType>(number);
}

void check_booleans(GgufCursor& cursor, std::span<const std::byte> bytes, std::string_view what) {
  const bool sound = std::all_of(
      bytes.begin(), bytes.end(), [](std::byte b) { return std::to_integer<int>(b) <= 1; });
  if (!sound) {
    cursor.refuse(Errc::bad_file, "damaged: {} holds a truth value that is not 0 or 1", what);
  }
}

GgufArray read_array(GgufCursor& cursor, std::string_view what) {
  const GgufType element = read_type(cursor, what);
  const auto count = cursor.number<std::uint64_t>(what);
  if (element == GgufType::array) {
    cursor.refuse(Errc::unsupported, "{} is an array of arrays, which no known model uses", what);
    return {};
  }
  const std::size_t element_bytes = gguf_type_bytes(element);
  const auto start = cursor.rest();
  if (count > start.size() / (element_bytes == 0 ? sizeof(std::uint64_t) : element_bytes)) {
    cursor.refuse(Errc::bad_file,
                  "damaged or cut short: {} claims {} elements where {} bytes are left",
                  what,
                  count,
                  start.size());
    return {};
  }
  if (element == GgufType::string) {
    for (std::uint64_t i = 0; i < count && !cursor.failed(); ++i) {
      static_cast<void>(cursor.text(what));
    }
    return {element, count, start.first(start.size() - cursor.rest().size())};
  }
  const auto bytes = cursor.take(count * element_bytes, what);
  if (element == GgufType::boolean) {
    check_booleans(cursor, bytes, what);
  }
  return {element, count, bytes};
}

// The value of a fixed-size type whose bytes are `bytes`.
GgufValue widen(GgufType type, std::span<const std::byte> bytes) {
  switch (type) {
    case GgufType::u8:
      return std::uint64_t{load_number<std::uint8_t>(bytes)};
    case GgufType::i8:
      return std::int64_t{load_number<std::int8_t>(bytes)};
    case GgufType::u16:
      return std::uint64_t{load_number<std::uint16_t>(bytes)};
    case GgufType::i16:
      return std::int64_t{load_number<std::int16_t>(bytes)};
    case GgufType::u32:
      return std::uint64_t{load_number<std::uint32_t>(bytes)};
    case GgufType::i32:
      return std::int64_t{load_number<std::int32_t>(bytes)};
    case GgufType::f32:
      return double{load_number<float>(bytes)};
    case GgufType::boolean:
      return bytes.front() == std::byte{1};
    case GgufType::u64:
      return load_number<std::uint64_t>(bytes);
    case GgufType::i64:
      return load_number<std::int64_t>(bytes);
    case GgufType::f64:
      return load_number<double>(bytes);
    case GgufType::string:
    case GgufType::array:
      break;
  }
  return std::uint64_t{0};
}

GgufValue read_value(GgufCursor& cursor, std::string_view what) {
  const GgufType type = read_type(cursor, what);
  if (type == GgufType::string) {
    return cursor.text(what);
  }
  if (type == GgufType::array) {
    return read_array(cursor, what);
  }
  const auto bytes = cursor.take(gguf_type_bytes(type), what);
  if (cursor.failed()) {
    return std::uint64_t{0};
  }
  if (type == GgufType::boolean) {
    check_booleans(cursor, bytes, what);
  }
  return widen(type, bytes);
}

void read_values(GgufCursor& cursor, std::uint64_t count, GgufContents& contents) {
  for (std::uint64_t i = 0; i < count && !cursor.failed(); ++i) {
    const auto key = cursor.text(fmt::format("the key of metadata entry {}", i));
    const std::string what = fmt::format("metadata '{}'", printable(key));
    const GgufValue value = read_value(cursor, what);
    if (!cursor.failed() && !contents.values.emplace(key, value).second) {
      cursor.refuse(Errc::bad_file, "damaged: {} occurs twice", what);
    }
  }
}

void read_alignment(GgufCursor& cursor, GgufContents& contents) {
  const auto found = contents.values.find("general.alignment");
  if (found == contents.values.end()) {
    return;
  }
  const auto* const value = std::get_if<std::uint64_t>(&found->second);
  if (value == nullptr || !std::has_single_bit(*value) || *value < 8 ||
      *value > kMaxAlignmentBytes) {
    cursor.refuse(Errc::bad_file,
                  "damaged: general.alignment is not a power of two between 8 and {}",
                  kMaxAlignmentBytes);
    return;
  }
  contents.alignment_bytes = *value;
}

}  // namespace

std::size_t gguf_type_bytes(GgufType type) noexcept {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return 0;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxShown = 80;
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (c < ' ' || c > '~') {
      c = '?';
    }
  }
  if (text.size() > kMaxShown) {
    shown += "...";
  }
  return shown;
}

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
  GgufCursor cursor(bytes, name);
  const auto magic = cursor.number<std::uint32_t>("the first word");
  if (magic != kMagic) {
    return fail(Errc::bad_file, "'{}' is not a GGUF file: it does not begin with GGUF", name);
  }
  GgufContents contents;
  contents.version = cursor.number<std::uint32_t>("the version");
  if (!cursor.failed() && contents.version != 2 && contents.version != 3) {
    cursor.refuse(Errc::unsupported,
                  "GGUF version {}{}; this reader knows versions 2 and 3",
                  contents.version,
                  (contents.version & 0xFFFFu) == 0 ? " (a big-endian file)" : "");
  }
  const auto tensor_count = cursor.number<std::uint64_t>("the number of tensors");
  const auto value_count = cursor.number<std::uint64_t>("the number of metadata entries");
  const std::uint64_t left_bytes = cursor.rest().size();
  if (value_count > left_bytes / kMinValueBytes || tensor_count > left_bytes / kMinTensorBytes) {
    cursor.refuse(Errc::bad_file,
                  "damaged or cut short: {} metadata entries and {} tensors claimed in {} bytes",
                  value_count,
                  tensor_count,
                  left_bytes);
  }
  if (!cursor.failed()) {
    read_values(cursor, value_count, contents);
  }
  read_alignment(cursor, contents);
  if (!cursor.failed()) {
    parse_gguf_tensors(cursor, tensor_count, bytes, contents);
  }
  if (cursor.failed()) {
    return cursor.error();
  }
  return contents;
}

}  // namespace kvspan::model
