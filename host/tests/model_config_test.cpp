// SPDX-License-Identifier: Apache-2.0
// What a model's metadata may say, and that everything which is not computed is refused by name.
// Read next: model/model_config.hpp, model/weights.hpp.
#include "model/transformer.hpp"
#include "tests/tiny_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::make_tiny_model;
using testing::pack_tensor;
using testing::TinyOptions;

Result<Model> load(const GgufWriter& writer) {
  const auto bytes = writer.file();
  auto file = GgufFile::from_bytes(bytes, "tiny.gguf");
  if (!file) {
    return tl::unexpected<Error>(file.error());
  }
  return Model::load(*file);
}

// The refusal of a sound tiny model to which `change` was done.
Error refusal(const TinyOptions& options, const std::function<void(GgufWriter&)>& change) {
  auto tiny = make_tiny_model(options);
  change(tiny.writer);
  auto model = load(tiny.writer);
  return model ? Error{Errc::internal, "accepted", 0, 0, 0, ""} : model.error();
}

TEST(ModelConfig, ReadsTheGeometry) {
  TinyOptions options;
  options.head_size_k = 32;
  options.head_size_v = 24;
  auto model = load(make_tiny_model(options).writer);
  ASSERT_TRUE(model) << model.error().message;
  const ModelGeometry& geometry = model->geometry();
  EXPECT_EQ(geometry.layers, 2u);
  EXPECT_EQ(geometry.q_heads, 4u);
  EXPECT_EQ(geometry.kv_heads, 2u);
  EXPECT_EQ(geometry.head_size_k, 32u);
  EXPECT_EQ(geometry.head_size_v, 24u);
  EXPECT_EQ(geometry.context_tokens, 128u);
  EXPECT_EQ(geometry.vocabulary, 50u);
  EXPECT_FLOAT_EQ(geometry.scale, 0.17677669f);  // 1 / sqrt(32)
  EXPECT_EQ(model->config().rope.style, RopeStyle::interleaved);
  options.family = "qwen3";
  EXPECT_EQ(load(make_tiny_model(options).writer)->config().rope.style, RopeStyle::halves);
}

TEST(ModelConfig, RefusesByNameWhatIsNotComputed) {
  struct Case {
    const char* key;
    std::function<void(GgufWriter&)> add;
  };

  const std::vector<Case> cases = {
      {"llama.rope.scaling.type",
       [](GgufWriter& w) { w.add_text("llama.rope.scaling.type", "yarn"); }},
      {"llama.rope.scaling.factor",
       [](GgufWriter& w) { w.add_f32("llama.rope.scaling.factor", 4.0f); }},
      {"llama.expert_count", [](GgufWriter& w) { w.add_u32("llama.expert_count", 8); }},
      {"llama.attention.sliding_window",
       [](GgufWriter& w) { w.add_u32("llama.attention.sliding_window", 4096); }},
      {"llama.attention.causal", [](GgufWriter& w) { w.add_flag("llama.attention.causal", 0); }},
      {"llama.attention.max_alibi_bias",
       [](GgufWriter& w) { w.add_f32("llama.attention.max_alibi_bias", 8.0f); }},
      {"llama.some_new_option", [](GgufWriter& w) { w.add_u32("llama.some_new_option", 0); }}};
  for (const Case& one : cases) {
    const Error error = refusal({}, one.add);
    EXPECT_EQ(error.code, Errc::unsupported) << error.message;
    EXPECT_THAT(error.message, HasSubstr(one.key));
  }
  EXPECT_EQ(refusal({},
                    [](GgufWriter& writer) {
                      writer.add_text("llama.rope.scaling.type", "none");
                      writer.add_u32("llama.expert_count", 0);
                      writer.add_flag("llama.attention.causal", 1);
                      writer.add_text("qwen3.rope.scaling.type", "yarn");  // another family's key
                    })
                .message,
            "accepted");
}

TEST(ModelConfig, RefusesOtherArchitectures) {
  GgufWriter writer;
  writer.add_text("general.architecture", "mamba");
  auto model = load(writer);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, Errc::unsupported);
  EXPECT_THAT(model.error().message, HasSubstr("'mamba'"));
  EXPECT_EQ(load(GgufWriter()).error().code, Errc::not_found);
}

TEST(ModelConfig, RefusesTensorsThatNobodyUses) {
  const auto add = [](const char* name) {
    return [name](GgufWriter& writer) {
      writer.add_tensor(name,
                        {8},
                        TensorType::f32,
                        pack_tensor(TensorType::f32, std::vector<double>(8, 1.0)).bytes);
    };
  };
  for (const char* const name :
       {"rope_freqs.weight", "blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "extra"}) {
    const Error error = refusal({}, add(name));
    EXPECT_EQ(error.code, Errc::unsupported) << error.message;
    EXPECT_THAT(error.message, HasSubstr(name));
  }
}

TEST(ModelConfig, NamesTheTensorThatIsMissingOrOfAnotherSize) {
  const TinyOptions options;
  auto tiny = make_tiny_model(options);
  const auto claim = [&](const char* key, std::uint32_t value) {
    // A second file whose metadata contradicts its tensors: written afresh, since keys may not
    // repeat.
    TinyOptions other = options;
    if (std::string(key) == "layers") {
      other.layers = value;
    } else if (std::string(key) == "inner") {
      other.inner = value;
    } else {
      other.head_size_v = value;
    }
    auto donor = make_tiny_model(other);
    GgufWriter metadata_of_other = donor.writer;
    metadata_of_other.take_tensors_of(tiny.writer);
    auto model = load(metadata_of_other);
    return model ? Error{Errc::internal, "accepted", 0, 0, 0, ""} : model.error();
  };
  EXPECT_THAT(claim("layers", 3).message, HasSubstr("no tensor 'blk.2.attn_norm.weight'"));
  EXPECT_THAT(claim("layers", 1).message, HasSubstr("'blk.1.attn_norm.weight'"));
  EXPECT_THAT(claim("inner", 128).message, HasSubstr("tensor 'blk.0.ffn_gate.weight' is 64 x 96"));
  EXPECT_THAT(claim("head_size_v", 24).message, HasSubstr("tensor 'blk.0.attn_v.weight'"));
}

TEST(ModelConfig, RefusesSizesThatContradictEachOther) {
  struct Case {
    const char* part;
    std::function<void(TinyOptions&)> change;
  };

  const std::vector<Case> cases = {
      {"cannot share", [](TinyOptions& o) { o.kv_heads = 3; }},
      {"rotated elements", [](TinyOptions& o) { o.rotated = 18; }},
      {"rotated elements", [](TinyOptions& o) { o.rotated = 7; }},
      {"context_length is 0", [](TinyOptions& o) { o.context = 0; }},
      {"rope.freq_base is 0", [](TinyOptions& o) { o.rope_base = 0.0f; }},
      {"epsilon is -1", [](TinyOptions& o) { o.epsilon = -1.0f; }}};
  for (const Case& one : cases) {
    TinyOptions options;
    one.change(options);
    const Error error = refusal(options, [](GgufWriter&) {});
    EXPECT_EQ(error.code, Errc::bad_file) << one.part;
    EXPECT_THAT(error.message, HasSubstr(one.part));
  }
}

}  // namespace

}  // namespace kvspan::model
