// SPDX-License-Identifier: Apache-2.0
// GgufFile: opening, and typed access to the metadata. The parsing itself is gguf_parser.cpp.
// Read next: gguf.hpp for the contract.
#include "model/gguf.hpp"

#include "model/fail.hpp"
#include "model/gguf_parser.hpp"

#include <limits>
#include <new>
#include <utility>

namespace kvspan::model {

namespace {

// "a string" and so on, for messages about a value of the wrong kind.
std::string_view kind_name(const GgufValue& value) {
  struct Namer {
    std::string_view operator()(std::uint64_t) const { return "a whole number"; }

    std::string_view operator()(std::int64_t) const { return "a whole number"; }

    std::string_view operator()(double) const { return "a fraction"; }

    std::string_view operator()(bool) const { return "a truth value"; }

    std::string_view operator()(std::string_view) const { return "a text"; }

    std::string_view operator()(const GgufArray&) const { return "an array"; }
  };

  return std::visit(Namer{}, value);
}

// One whole number of an array as int64.
// Pre: `bytes` holds one element of the whole-number type `type`. nullopt: above the int64 range,
// or not a whole-number type.
std::optional<std::int64_t> integer_element(GgufType type, std::span<const std::byte> bytes) {
  switch (type) {
    case GgufType::u8:
      return load_number<std::uint8_t>(bytes);
    case GgufType::i8:
      return load_number<std::int8_t>(bytes);
    case GgufType::u16:
      return load_number<std::uint16_t>(bytes);
    case GgufType::i16:
      return load_number<std::int16_t>(bytes);
    case GgufType::u32:
      return load_number<std::uint32_t>(bytes);
    case GgufType::i32:
      return load_number<std::int32_t>(bytes);
    case GgufType::i64:
      return load_number<std::int64_t>(bytes);
    case GgufType::u64: {
      const auto value = load_number<std::uint64_t>(bytes);
      if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return static_cast<std::int64_t>(value);
      }
      return std::nullopt;
    }
    case GgufType::f32:
    case GgufType::f64:
    case GgufType::boolean:
    case GgufType::string:
    case GgufType::array:
      break;
  }
  return std::nullopt;
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped) {
    return pass_on(mapped);
  }
  auto file = from_bytes(mapped->bytes(), path);
  if (file) {
    file->file_ = std::move(*mapped);  // the mapping's address stays, so the views stay valid
  }
  return file;
}

Result<GgufFile> GgufFile::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  try {
    auto contents = parse_gguf(bytes, name);
    if (!contents) {
      return pass_on(contents);
    }
    GgufFile file;
    file.name_ = name;
    file.contents_ = std::move(*contents);
    for (std::size_t i = 0; i < file.contents_.tensors.size(); ++i) {
      file.tensor_index_.emplace(file.contents_.tensors[i].name, i);
    }
    return file;
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory, "not enough memory to read the index of '{}'", name);
  }
}

const GgufTensor* GgufFile::find_tensor(std::string_view tensor_name) const noexcept {
  const auto found = tensor_index_.find(tensor_name);
  return found == tensor_index_.end() ? nullptr : &contents_.tensors[found->second];
}

bool GgufFile::has_value(std::string_view key) const noexcept {
  return contents_.values.find(key) != contents_.values.end();
}

Result<const GgufValue*> GgufFile::need(std::string_view key) const {
  const auto found = contents_.values.find(key);
  if (found == contents_.values.end()) {
    return fail(Errc::not_found, "'{}' has no metadata '{}'", name_, key);
  }
  return &found->second;
}

Result<std::uint64_t> GgufFile::count_value(std::string_view key) const {
  auto value = need(key);
  if (!value) {
    return pass_on(value);
  }
  if (const auto* const whole = std::get_if<std::uint64_t>(*value)) {
    return *whole;
  }
  const auto* const whole = std::get_if<std::int64_t>(*value);
  if (whole != nullptr && *whole >= 0) {
    return static_cast<std::uint64_t>(*whole);
  }
  return fail(Errc::bad_file,
              "'{}': metadata '{}' is {}{} where a count is needed",
              name_,
              key,
              whole != nullptr ? "negative, " : "",
              kind_name(**value));
}

Result<double> GgufFile::number_value(std::string_view key) const {
  auto value = need(key);
  if (!value) {
    return pass_on(value);
  }
  if (const auto* const fraction = std::get_if<double>(*value)) {
    return *fraction;
  }
  if (const auto* const whole = std::get_if<std::uint64_t>(*value)) {
    return static_cast<double>(*whole);
  }
  if (const auto* const whole = std::get_if<std::int64_t>(*value)) {
    return static_cast<double>(*whole);
  }
  return fail(Errc::bad_file,
              "'{}': metadata '{}' is {} where a number is needed",
              name_,
              key,
              kind_name(**value));
}

Result<bool> GgufFile::flag_value(std::string_view key) const {
  auto value = need(key);
  if (!value) {
    return pass_on(value);
  }
  if (const auto* const flag = std::get_if<bool>(*value)) {
    return *flag;
  }
  return fail(Errc::bad_file,
              "'{}': metadata '{}' is {} where a truth value is needed",
              name_,
              key,
              kind_name(**value));
}

Result<std::string_view> GgufFile::text_value(std::string_view key) const {
  auto value = need(key);
  if (!value) {
    return pass_on(value);
  }
  if (const auto* const text = std::get_if<std::string_view>(*value)) {
    return *text;
  }
  return fail(Errc::bad_file,
              "'{}': metadata '{}' is {} where a text is needed",
              name_,
              key,
              kind_name(**value));
}

Result<const GgufArray*> GgufFile::need_array(std::string_view key) const {
  auto value = need(key);
  if (!value) {
    return pass_on(value);
  }
  if (const auto* const array = std::get_if<GgufArray>(*value)) {
    return array;
  }
  return fail(Errc::bad_file,
              "'{}': metadata '{}' is {} where an array is needed",
              name_,
              key,
              kind_name(**value));
}

Result<std::vector<std::string_view>> GgufFile::text_array(std::string_view key) const {
  auto array = need_array(key);
  if (!array) {
    return pass_on(array);
  }
  if ((*array)->element != GgufType::string) {
    return fail(Errc::bad_file, "'{}': metadata '{}' is not an array of texts", name_, key);
  }
  std::vector<std::string_view> texts;
  texts.reserve((*array)->count);
  auto rest = (*array)->bytes;
  for (std::uint64_t i = 0; i < (*array)->count;
       ++i) {  // walked before, so no read can leave `rest`
    const auto length = static_cast<std::size_t>(load_number<std::uint64_t>(rest));
    rest = rest.subspan(sizeof(std::uint64_t));
    texts.emplace_back(reinterpret_cast<const char*>(rest.data()), length);
    rest = rest.subspan(length);
  }
  return texts;
}

Result<std::vector<std::int64_t>> GgufFile::integer_array(std::string_view key) const {
  auto array = need_array(key);
  if (!array) {
    return pass_on(array);
  }
  const std::size_t element_bytes = gguf_type_bytes((*array)->element);
  std::vector<std::int64_t> numbers;
  numbers.reserve((*array)->count);
  for (std::uint64_t i = 0; i < (*array)->count; ++i) {
    const auto element =
        element_bytes == 0
            ? std::nullopt
            : integer_element((*array)->element, (*array)->bytes.subspan(i * element_bytes));
    if (!element) {
      return fail(Errc::bad_file, "'{}': metadata '{}' is no array of whole numbers", name_, key);
    }
    numbers.push_back(*element);
  }
  return numbers;
}

}  // namespace kvspan::model
