// SPDX-License-Identifier: Apache-2.0
// The GGUF parser, second part: tensor descriptions, and where in the file each tensor's data lies.
// Not here: what is inside a block (tensor.cpp).
// Source: the GGUF specification in the ggml project, docs/gguf.md; type numbers and block sizes
// from ggml.h.
// Read next: gguf_parser.cpp.
#include "model/gguf_cursor.hpp"
#include "model/gguf_parser.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace kvspan::model {

namespace {

// 2^48 elements: no such file exists, and below it no product of counts and element sizes can
// overflow 64 bits.
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

// A tensor type that is read here: elements and bytes of one block, as ggml packs it.
struct KnownType {
  TensorType type;
  std::string_view name;
  std::uint64_t block_elements;
  std::uint64_t block_bytes;
};

constexpr std::array<KnownType, 5> kKnownTypes = {{{TensorType::f32, "F32", 1, 4},
                                                   {TensorType::f16, "F16", 1, 2},
                                                   {TensorType::q4_0, "Q4_0", 32, 18},
                                                   {TensorType::q8_0, "Q8_0", 32, 34},
                                                   {TensorType::bf16, "BF16", 1, 2}}};

// Tensor types that exist but are not read here, so that the refusal can name them.
struct ForeignType {
  std::uint32_t number;
  std::string_view name;
};

constexpr std::array<ForeignType, 27> kForeignTypes = {
    {{3, "Q4_1"},     {6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},
     {12, "Q4_K"},    {13, "Q5_K"},  {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
     {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
     {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
     {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"}}};

// A tensor as described, before its data is found.
struct Description {
  GgufTensor tensor;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

void read_dimensions(GgufCursor& cursor, std::string_view what, GgufTensor& tensor) {
  tensor.dimension_count = cursor.number<std::uint32_t>(what);
  if (tensor.dimension_count < 1 || tensor.dimension_count > tensor.dimensions.size()) {
    cursor.refuse(Errc::bad_file,
                  "damaged: {} claims {} dimensions where 1 to 4 are possible",
                  what,
                  tensor.dimension_count);
    return;
  }
  tensor.elements = 1;
  for (std::uint32_t d = 0; d < tensor.dimension_count; ++d) {
    const auto dimension = cursor.number<std::uint64_t>(what);
    if (dimension == 0 || dimension > kMaxElements / tensor.elements) {
      cursor.refuse(Errc::bad_file, "damaged: {} has a dimension of {} elements", what, dimension);
      return;
    }
    tensor.dimensions[d] = dimension;
    tensor.elements *= dimension;
  }
}

const KnownType* read_tensor_type(GgufCursor& cursor, std::string_view what) {
  const auto number = cursor.number<std::uint32_t>(what);
  for (const KnownType& known : kKnownTypes) {
    if (static_cast<std::uint32_t>(known.type) == number) {
      return &known;
    }
  }
  std::string type_name = fmt::format("number {}", number);
  for (const ForeignType& foreign : kForeignTypes) {
    if (foreign.number == number) {
      type_name = foreign.name;
    }
  }
  cursor.refuse(
      Errc::unsupported,
      "{} is of type {}; this reader knows F32, F16, BF16, Q8_0 and Q4_0: convert the file "
      "to one of them",
      what,
      type_name);
  return nullptr;
}

Description read_description(GgufCursor& cursor,
                             std::uint64_t index,
                             std::uint64_t alignment_bytes) {
  Description described;
  described.tensor.name = std::string(cursor.text(fmt::format("the name of tensor {}", index)));
  const std::string what = fmt::format("tensor '{}'", printable(described.tensor.name));
  read_dimensions(cursor, what, described.tensor);
  const KnownType* const known = cursor.failed() ? nullptr : read_tensor_type(cursor, what);
  if (known == nullptr) {
    return described;
  }
  described.tensor.type = known->type;
  if (described.tensor.dimensions[0] % known->block_elements != 0) {
    cursor.refuse(Errc::bad_file,
                  "damaged: {} has rows of {} elements, which blocks of {} do not divide",
                  what,
                  described.tensor.dimensions[0],
                  known->block_elements);
  }
  described.size_bytes = described.tensor.elements / known->block_elements * known->block_bytes;
  described.offset_bytes = cursor.number<std::uint64_t>(what);
  if (described.offset_bytes % alignment_bytes != 0) {
    cursor.refuse(Errc::bad_file,
                  "damaged: {} begins at offset {}, not a multiple of the alignment {}",
                  what,
                  described.offset_bytes,
                  alignment_bytes);
  }
  return described;
}

// Every name once, every range inside `data_bytes`.
void check_each(GgufCursor& cursor,
                const std::vector<Description>& described,
                std::uint64_t data_bytes) {
  std::set<std::string_view> names;
  for (const Description& one : described) {
    const std::string shown = printable(one.tensor.name);
    if (!names.insert(one.tensor.name).second) {
      cursor.refuse(Errc::bad_file, "damaged: tensor '{}' occurs twice", shown);
    }
    if (one.offset_bytes > data_bytes || one.size_bytes > data_bytes - one.offset_bytes) {
      cursor.refuse(
          Errc::bad_file,
          "damaged or cut short: tensor '{}' needs {} bytes at offset {} of the {} bytes of "
          "tensor data",
          shown,
          one.size_bytes,
          one.offset_bytes,
          data_bytes);
    }
  }
}

// No two tensors share a byte.
// Pre: check_each() found every range inside the file.
void check_overlap(GgufCursor& cursor, const std::vector<Description>& described) {
  std::vector<const Description*> ordered;
  ordered.reserve(described.size());
  for (const Description& one : described) {
    ordered.push_back(&one);
  }
  std::sort(ordered.begin(), ordered.end(), [](const Description* a, const Description* b) {
    return a->offset_bytes < b->offset_bytes;
  });
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    if (ordered[i - 1]->offset_bytes + ordered[i - 1]->size_bytes > ordered[i]->offset_bytes) {
      cursor.refuse(Errc::bad_file,
                    "damaged: tensors '{}' and '{}' lie over each other",
                    printable(ordered[i - 1]->tensor.name),
                    printable(ordered[i]->tensor.name));
    }
  }
}

}  // namespace

std::string_view tensor_type_name(TensorType type) noexcept {
  for (const KnownType& known : kKnownTypes) {
    if (known.type == type) {
      return known.name;
    }
  }
  return "unknown";
}

void parse_gguf_tensors(GgufCursor& cursor,
                        std::uint64_t count,
                        std::span<const std::byte> bytes,
                        GgufContents& contents) {
  std::vector<Description> described;
  for (std::uint64_t i = 0; i < count && !cursor.failed(); ++i) {
    described.push_back(read_description(cursor, i, contents.alignment_bytes));
  }
  const std::uint64_t end = bytes.size() - cursor.rest().size();
  const std::uint64_t align = contents.alignment_bytes;
  const std::uint64_t start =
      std::min<std::uint64_t>((end + align - 1) / align * align, bytes.size());
  const auto data = bytes.subspan(static_cast<std::size_t>(start));
  if (!cursor.failed()) {
    check_each(cursor, described, data.size());
  }
  if (!cursor.failed()) {
    check_overlap(cursor, described);
  }
  if (cursor.failed()) {
    return;
  }
  for (Description& one : described) {
    one.tensor.data = data.subspan(static_cast<std::size_t>(one.offset_bytes),
                                   static_cast<std::size_t>(one.size_bytes));
    contents.tensors.push_back(std::move(one.tensor));
  }
}

}  // namespace kvspan::model
