// SPDX-License-Identifier: Apache-2.0
// Layers as people write them, and everything that is none.
#include "layer_spec.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvspan::host {
namespace {

const LayerGeometry kDefaults{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24};

TEST(LayerSpec, WhatIsNotSaidIsAsInTheDefaults) {
  const auto layers = parse_layers("3:window=1024", kDefaults);
  ASSERT_TRUE(layers.has_value()) << layers.error().message;
  ASSERT_EQ(layers->size(), 3U);
  EXPECT_EQ(layers->back().window_tokens, 1024U);
  EXPECT_EQ(layers->back().k_type, KVSPAN_TYPE_Q8_0);
  EXPECT_EQ(layers->back().head_size_v, 256U);
  EXPECT_EQ(parse_layers("", kDefaults)->size(), 1U);
  EXPECT_EQ(parse_layers("7:", kDefaults)->size(), 7U);
}

TEST(LayerSpec, EveryKey) {
  const auto layers = parse_layers(
      "k=f16,v=bf16,q-heads=16,kv-heads=2,head-size=96,head-size-v=64,window=5,latent", {});
  ASSERT_TRUE(layers.has_value()) << layers.error().message;
  const LayerGeometry& layer = layers->front();
  EXPECT_EQ(layer.k_type, KVSPAN_TYPE_F16);
  EXPECT_EQ(layer.v_type, KVSPAN_TYPE_BF16);
  EXPECT_EQ(layer.q_heads, 16U);
  EXPECT_EQ(layer.kv_heads, 2U);
  EXPECT_EQ(layer.head_size_k, 96U);
  EXPECT_EQ(layer.head_size_v, 64U);
  EXPECT_EQ(layer.window_tokens, 5U);
  EXPECT_TRUE(layer.v_in_k);
  // V's heads follow K's unless they are said, in either order.
  EXPECT_EQ(parse_layers("head-size=64", kDefaults)->front().head_size_v, 64U);
  EXPECT_EQ(parse_layers("head-size-v=32,head-size=64", kDefaults)->front().head_size_v, 32U);
}

TEST(LayerSpec, WhatIsNoneIsQuotedAndTheKeysAreNamed) {
  for (const std::string text : {"0:",
                                 "4097:",
                                 "x:k=f16",
                                 ":k=f16",
                                 "k=q9_9",
                                 "k",
                                 "k=",
                                 "heads=4",
                                 "q-heads=0",
                                 "q-heads=-1",
                                 "head-size=99999999999999999999",
                                 "window=many",
                                 "latent=1",
                                 "k=f16,,v=f16",
                                 "2:3:k=f16"}) {
    const auto refused = parse_layers(text, kDefaults);
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, Errc::invalid_argument);
    EXPECT_NE(refused.error().message.find("'" + text + "'"), std::string::npos) << text;
    EXPECT_NE(refused.error().message.find("kv-heads"), std::string::npos) << text;
  }
  EXPECT_FALSE(parse_layers("k=f16", {}).has_value());
}

}  // namespace
}  // namespace kvspan::host
