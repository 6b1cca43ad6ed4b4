// SPDX-License-Identifier: Apache-2.0
// GGUF files: what is written comes back, and whatever is damaged is refused with a sentence, never
// with a crash.
// Read next: gguf_writer.hpp.
#include "model/gguf.hpp"
#include "tests/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

using testing::ByteSink;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::pack_tensor;

Result<GgufFile> read(const std::vector<std::byte>& bytes) {
  return GgufFile::from_bytes(bytes, "test.gguf");
}

// Expects a refusal with `code` whose sentence holds `part`.
void expect_refused(const std::vector<std::byte>& bytes, Errc code, const std::string& part) {
  auto file = read(bytes);
  ASSERT_FALSE(file) << "accepted, expected: " << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr(part));
  EXPECT_THAT(file.error().message, HasSubstr("test.gguf"));
}

std::vector<std::byte> packed(TensorType type, std::size_t elements) {
  return pack_tensor(type, std::vector<double>(elements, 0.5)).bytes;
}

// One value of every kind, and tensors of every type.
GgufWriter full_writer() {
  GgufWriter writer;
  writer.add_u32("a.count", 7);
  writer.add_f32("a.fraction", 0.25f);
  writer.add_flag("a.flag", 1);
  writer.add_text("a.text", "hello");
  writer.add_texts("a.texts", {"x", "", "long one"});
  writer.add_i32s("a.integers", {3, -4, 5});
  writer.add_tensor("f32", {3, 2}, TensorType::f32, packed(TensorType::f32, 6));
  writer.add_tensor("f16", {5}, TensorType::f16, packed(TensorType::f16, 5));
  writer.add_tensor("bf16", {2, 2, 2}, TensorType::bf16, packed(TensorType::bf16, 8));
  writer.add_tensor("q8_0", {32, 3}, TensorType::q8_0, packed(TensorType::q8_0, 96));
  writer.add_tensor("q4_0", {64}, TensorType::q4_0, packed(TensorType::q4_0, 64));
  return writer;
}

// The header and metadata of a file that claims `tensors` tensors, to be continued by hand.
ByteSink header(std::uint64_t tensors, std::uint64_t values) {
  ByteSink sink;
  sink.number(std::uint32_t{0x46554747});
  sink.number(std::uint32_t{3});
  sink.number(tensors);
  sink.number(values);
  return sink;
}

// A file with one described tensor, 4,096 bytes of data behind it.
std::vector<std::byte> one_tensor(const std::vector<std::uint64_t>& dimensions,
                                  std::uint32_t type,
                                  std::uint64_t offset) {
  ByteSink sink = header(1, 0);
  sink.text("weird");
  sink.number(static_cast<std::uint32_t>(dimensions.size()));
  for (const std::uint64_t dimension : dimensions) {
    sink.number(dimension);
  }
  sink.number(type);
  sink.number(offset);
  sink.pad_to(32);
  sink.raw(std::vector<std::byte>(4096));
  return sink.bytes();
}

TEST(Gguf, ReturnsEveryKindOfValue) {
  for (const std::uint32_t version : {2u, 3u}) {
    const auto bytes = full_writer().file(version);
    auto file = read(bytes);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->count_value("a.count").value(), 7u);
    EXPECT_EQ(file->number_value("a.fraction").value(), 0.25);
    EXPECT_EQ(file->number_value("a.count").value(), 7.0);
    EXPECT_TRUE(file->flag_value("a.flag").value());
    EXPECT_EQ(file->text_value("a.text").value(), "hello");
    EXPECT_THAT(file->text_array("a.texts").value(), ElementsAre("x", "", "long one"));
    EXPECT_THAT(file->integer_array("a.integers").value(), ElementsAre(3, -4, 5));
  }
}

TEST(Gguf, WidensEveryScalarType) {
  GgufWriter writer;
  const std::vector<std::byte> ones(8, std::byte{0xFF});
  const std::vector<std::size_t> sizes = {1, 1, 2, 2, 4, 4, 4, 0, 0, 0, 8, 8, 8};
  for (std::uint32_t type = 0; type <= 12; ++type) {
    if (sizes[type] != 0) {
      writer.add_raw("t" + std::to_string(type),
                     type,
                     {ones.begin(), ones.begin() + static_cast<long>(sizes[type])});
    }
  }
  const auto bytes = writer.file();
  auto file = read(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->count_value("t0").value(), 0xFFu);
  EXPECT_EQ(file->count_value("t2").value(), 0xFFFFu);
  EXPECT_EQ(file->count_value("t4").value(), 0xFFFFFFFFu);
  EXPECT_EQ(file->count_value("t10").value(), ~std::uint64_t{0});
  for (const char* const negative : {"t1", "t3", "t5", "t11"}) {
    EXPECT_EQ(file->number_value(negative).value(), -1.0) << negative;
    EXPECT_EQ(file->count_value(negative).error().code, Errc::bad_file) << negative;
  }
}

TEST(Gguf, FindsEveryTensorInsideTheFile) {
  const auto bytes = full_writer().file();
  auto file = read(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 5u);
  for (const auto& [name, size_bytes] : std::vector<std::pair<std::string, std::size_t>>{
           {"f32", 24}, {"f16", 10}, {"bf16", 16}, {"q8_0", 102}, {"q4_0", 36}}) {
    const GgufTensor* const tensor = file->find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->data.size(), size_bytes);
    EXPECT_EQ((tensor->data.data() - bytes.data()) % 32, 0);
  }
  EXPECT_EQ(file->find_tensor("q8_0")->dimensions, (std::array<std::uint64_t, 4>{32, 3, 1, 1}));
  EXPECT_EQ(file->find_tensor("none"), nullptr);
}

TEST(Gguf, HonoursTheAlignmentOfTheFile) {
  GgufWriter writer = full_writer();
  writer.add_u32("general.alignment", 64);
  const auto bytes = writer.file(3, 64);
  auto file = read(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((file->find_tensor("q4_0")->data.data() - bytes.data()) % 64, 0);
  for (const std::uint32_t wrong : {0u, 1u, 24u, 0x80000000u}) {
    GgufWriter bad;
    bad.add_u32("general.alignment", wrong);
    expect_refused(bad.file(), Errc::bad_file, "general.alignment");
  }
}

TEST(Gguf, NamesTheKeyThatIsMissingOrOfAnotherKind) {
  const auto bytes = full_writer().file();
  auto file = read(bytes);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->count_value("b").error().code, Errc::not_found);
  EXPECT_THAT(file->count_value("b").error().message, HasSubstr("'b'"));
  EXPECT_THAT(file->count_value("a.text").error().message, HasSubstr("'a.text' is a text"));
  EXPECT_THAT(file->text_value("a.count").error().message, HasSubstr("whole number"));
  EXPECT_THAT(file->flag_value("a.count").error().message, HasSubstr("truth value"));
  EXPECT_THAT(file->number_value("a.flag").error().message, HasSubstr("a truth value"));
  EXPECT_THAT(file->text_array("a.integers").error().message, HasSubstr("array of texts"));
  EXPECT_THAT(file->integer_array("a.texts").error().message, HasSubstr("whole numbers"));
  EXPECT_THAT(file->integer_array("a.text").error().message, HasSubstr("an array is needed"));
}

TEST(Gguf, RefusesEveryPrefix) {
  const auto bytes = full_writer().file();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    // A copy of its own, so that the address sanitizer sees any step over the end.
    const std::vector<std::byte> prefix(bytes.begin(), bytes.begin() + static_cast<long>(length));
    auto file = read(prefix);
    ASSERT_FALSE(file) << "prefix of " << length << " bytes was accepted";
    EXPECT_EQ(file.error().code, Errc::bad_file);
    EXPECT_FALSE(file.error().message.empty());
  }
}

// Whatever the damage, the answer is an error or a file all of whose parts can be read.
TEST(Gguf, SurvivesRandomDamage) {
  const auto bytes = full_writer().file();
  std::size_t refused = 0;
  for (std::uint32_t seed = 1; seed <= 20000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<std::byte> damaged = bytes;
    const std::size_t flips = 1 + random() % 4;
    for (std::size_t i = 0; i < flips; ++i) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random() % 256);
    }
    auto file = read(damaged);
    if (!file) {
      refused += 1;
      EXPECT_FALSE(file.error().message.empty());
      continue;
    }
    for (const auto& [key, value] : file->values()) {
      static_cast<void>(file->text_array(key));
      static_cast<void>(file->integer_array(key));
      static_cast<void>(file->count_value(key));
    }
    unsigned sum = 0;
    for (const GgufTensor& tensor : file->tensors()) {
      for (const std::byte byte : tensor.data) {
        sum += std::to_integer<unsigned>(byte);
      }
    }
    EXPECT_GE(sum, 0u);
  }
  EXPECT_GT(refused, 1000u);
}

TEST(Gguf, RefusesWhatIsNoGguf) {
  expect_refused({}, Errc::bad_file, "not a GGUF file");
  expect_refused(std::vector<std::byte>(4096, std::byte{'x'}), Errc::bad_file, "not a GGUF file");
  expect_refused(full_writer().file(1), Errc::unsupported, "version 1");
  expect_refused(full_writer().file(4), Errc::unsupported, "version 4");
  expect_refused(full_writer().file(0x03000000), Errc::unsupported, "big-endian");
}

TEST(Gguf, RefusesAbsurdCounts) {
  const std::uint64_t most = ~std::uint64_t{0};
  expect_refused(header(most, 0).bytes(), Errc::bad_file, "tensors claimed");
  expect_refused(header(0, most).bytes(), Errc::bad_file, "metadata entries");
  for (const std::uint32_t element : {0u, 4u, 8u, 10u}) {
    ByteSink sink = header(0, 1);
    sink.text("list");
    sink.number(std::uint32_t{9});
    sink.number(element);
    sink.number(most);
    sink.number(most);
    expect_refused(sink.bytes(), Errc::bad_file, "metadata 'list' claims");
  }
  ByteSink sink = header(0, 1);
  sink.number(most - 4);  // a key's length whose end would wrap around
  sink.number(most);
  expect_refused(sink.bytes(), Errc::bad_file, "key of metadata entry 0");
}

TEST(Gguf, RefusesUnknownValueTypes) {
  GgufWriter unknown;
  unknown.add_raw("odd", 13, {std::byte{0}});
  expect_refused(unknown.file(), Errc::bad_file, "metadata 'odd' has the unknown value type 13");
  ByteSink nested;
  nested.number(std::uint32_t{9});
  nested.number(std::uint64_t{0});
  GgufWriter arrays;
  arrays.add_raw("odd", 9, nested.bytes());
  expect_refused(arrays.file(), Errc::unsupported, "array of arrays");
  GgufWriter flag;
  flag.add_flag("odd", 2);
  expect_refused(flag.file(), Errc::bad_file, "truth value");
}

TEST(Gguf, RefusesWrongTensorDescriptions) {
  const std::uint64_t huge = std::uint64_t{1} << 63;
  expect_refused(one_tensor({4, 4}, 0, 4096), Errc::bad_file, "tensor 'weird' needs 64 bytes");
  expect_refused(one_tensor({4, 4}, 0, huge), Errc::bad_file, "tensor 'weird' needs");
  expect_refused(one_tensor({2048, 2}, 0, 0), Errc::bad_file, "tensor 'weird' needs");
  expect_refused(one_tensor({4}, 0, 8), Errc::bad_file, "not a multiple of the alignment 32");
  expect_refused(one_tensor({}, 0, 0), Errc::bad_file, "0 dimensions");
  expect_refused(one_tensor({1, 1, 1, 1, 1}, 0, 0), Errc::bad_file, "5 dimensions");
  expect_refused(one_tensor({0}, 0, 0), Errc::bad_file, "a dimension of 0");
  expect_refused(one_tensor({huge, huge}, 0, 0), Errc::bad_file, "a dimension of");
  expect_refused(one_tensor({33}, 8, 0), Errc::bad_file, "blocks of 32");
  expect_refused(one_tensor({256}, 12, 0), Errc::unsupported, "'weird' is of type Q4_K");
  expect_refused(one_tensor({256}, 77, 0), Errc::unsupported, "type number 77");
}

TEST(Gguf, RefusesDuplicatesAndOverlaps) {
  GgufWriter keys;
  keys.add_u32("twice", 1);
  keys.add_u32("twice", 2);
  expect_refused(keys.file(), Errc::bad_file, "metadata 'twice' occurs twice");
  GgufWriter names;
  names.add_tensor("twin", {4}, TensorType::f32, packed(TensorType::f32, 4));
  names.add_tensor("twin", {4}, TensorType::f32, packed(TensorType::f32, 4));
  expect_refused(names.file(), Errc::bad_file, "tensor 'twin' occurs twice");
  ByteSink over = header(2, 0);
  for (const char* const name : {"one", "two"}) {
    over.text(name);
    over.number(std::uint32_t{1});
    over.number(std::uint64_t{16});
    over.number(std::uint32_t{0});
    over.number(std::uint64_t{name[0] == 'o' ? 0u : 32u});
  }
  over.pad_to(32);
  over.raw(std::vector<std::byte>(256));
  expect_refused(over.bytes(), Errc::bad_file, "lie over each other");
}

TEST(Gguf, KeepsControlCharactersOutOfMessages) {
  ByteSink sink = header(0, 1);
  sink.text("\x1b[31m\n");
  sink.number(std::uint32_t{99});
  sink.number(std::uint64_t{0});
  auto file = read(sink.bytes());
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("'?[31m?'"));
}

TEST(MappedFile, ReadsAFileAndNamesWhatItCannotRead) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const std::string path = (folder / "kvspan_gguf_test.gguf").string();
  const auto bytes = full_writer().file();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  {
    auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    GgufFile moved = std::move(*file);
    EXPECT_EQ(moved.text_value("a.text").value(), "hello");
    EXPECT_EQ(moved.find_tensor("f32")->data.size(), 24u);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc).close();
  EXPECT_EQ(GgufFile::open(path).error().code, Errc::bad_file);
  std::filesystem::remove(path);
  EXPECT_EQ(GgufFile::open(path).error().code, Errc::not_found);
  EXPECT_THAT(GgufFile::open(path).error().message, HasSubstr(path));
  EXPECT_EQ(GgufFile::open(folder.string()).error().code, Errc::io);
}

}  // namespace

}  // namespace kvspan::model
