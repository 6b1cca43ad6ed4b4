// SPDX-License-Identifier: Apache-2.0
// Times of others for the same attention, measured once on an H200 (PCIe 5 x16, driver 580.159.04,
// CUDA 13.0; docs/measuring/peers.md says how): microseconds a layer. They are a table, not a run
// in this process, so they mean something on such a card only.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvspan::cuda_bench {

struct Peer {
  std::string_view geometry;
  std::uint64_t context;
  std::uint32_t width;
  double ggml_quantised_us;  // ggml CUDA flash attention, q8_0 K, q4_0 V; 0 = not measured
  double ggml_f16_us;        // ggml CUDA flash attention, f16
  double torch_f16_us;       // the faster of torch's flash and cuDNN with enable_gqa, f16
};

// 0 in all fields where nothing was measured.
[[nodiscard]] Peer peer_of(std::string_view geometry, std::uint64_t context, std::uint32_t width);

// torch's flash attention, f16, lower-right causal mask, grouped heads: `rows` rows over `context`
// tokens. 0 where nothing was measured.
[[nodiscard]] double prefill_peer_us(std::string_view geometry,
                                     std::uint64_t context,
                                     std::uint32_t rows);

}  // namespace kvspan::cuda_bench
