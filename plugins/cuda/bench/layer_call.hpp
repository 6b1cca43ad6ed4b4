// SPDX-License-Identifier: Apache-2.0
// Attention of one layer over resident pages through the attention table's `run`, over several
// copies of the history, so that no cache serves them. Not here: what is made of the times.
#pragma once

#include "pages.hpp"
#include "rig.hpp"
#include "row.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

struct LayerCase {
  std::string geometry = "A";
  std::uint64_t tokens = 0;
  std::uint32_t rows = 1;
  std::uint32_t row_class = KVSPAN_ROWS_DECODE;
};

class LayerCall {
 public:
  LayerCall(const Rig& rig, const RandomPages& pages, const LayerCase& asked);

  // K/V bytes that one call has to read.
  [[nodiscard]] std::uint64_t bytes() const;

  // Seconds a call on the device: many are queued behind a long copy, so that the card never waits
  // for the host. One value a repetition.
  [[nodiscard]] std::vector<double> time(int repetitions);

  // Compares outputs with the host's arithmetic. Throws Failure where they differ too much.
  [[nodiscard]] std::string verify();

 private:
  void upload();
  void make_rows();
  kvspan_point_t run(std::uint64_t set, std::span<const kvspan_point_t> waits);
  [[nodiscard]] double time_once(std::uint64_t calls, std::uint64_t plug_bytes, bool& covered);
  [[nodiscard]] double worst_error(std::uint64_t set, std::uint32_t row, std::uint32_t head) const;

  const Rig& rig_;
  const RandomPages& pages_;
  LayerCase case_;
  kvspan_attention_shape_t shape_{};
  kvspan_attention_caps_t caps_{};
  std::uint64_t set_pages_ = 0;
  std::uint64_t sets_ = 0;
  DeviceMemory history_;
  DeviceMemory workspace_;
  DeviceMemory rows_;  // queries, then the outputs of every set
  HostMemory host_rows_;
  std::uint64_t q_bytes_ = 0;
  std::uint64_t out_bytes_ = 0;
  std::vector<std::uint64_t> visible_end_;
  Line compute_;
  Line upload_;
  HostMemory plug_source_;
  DeviceMemory plug_target_;
};

}  // namespace kvspan::cuda_bench
