// SPDX-License-Identifier: Apache-2.0
// Attention of one layer through the attention table's `run`, over several copies of its history,
// so that no cache serves them. Not here: what is made of the times.
#pragma once

#include "pages.hpp"
#include "rig.hpp"
#include "row.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

struct LayerCase {
  std::uint64_t tokens = 0;
  std::uint32_t row_class = KVSPAN_ROWS_DECODE;
  std::uint32_t memory_kind = KVSPAN_MEMORY_DEVICE;  // where the history lies
};

// The history of one layer, several times.
class LayerHistory {
 public:
  LayerHistory(const Rig& rig,
               const bench::RandomPages& pages,
               const Plug& plug,
               const LayerCase& asked);

  // K/V bytes that one call has to read.
  [[nodiscard]] std::uint64_t bytes() const;

  [[nodiscard]] kvspan_span_t span(std::uint64_t set) const;

  [[nodiscard]] std::uint64_t sets() const { return sets_; }

  [[nodiscard]] const LayerCase& asked() const { return case_; }

  [[nodiscard]] const bench::RandomPages& pages() const { return pages_; }

 private:
  void upload(const Rig& rig, const Plug& plug);
  void map();

  const bench::RandomPages& pages_;
  LayerCase case_;
  std::uint64_t set_pages_ = 0;
  std::uint64_t sets_ = 0;
  DeviceMemory device_;
  HostMemory host_;
};

class LayerCall {
 public:
  LayerCall(const Rig& rig, const LayerHistory& history, const Plug& plug, std::uint32_t rows);

  // Seconds a call on the device, a value a repetition: calls are queued behind a long copy, so
  // that the card never waits for the host.
  [[nodiscard]] std::vector<double> time(int repetitions);

  // Compares outputs with the host's arithmetic. Throws Failure where they differ too much.
  [[nodiscard]] std::string verify();

 private:
  void make_shape();
  void prepare() const;
  void make_rows();
  kvspan_point_t run(std::uint64_t set, std::span<const kvspan_point_t> waits);
  [[nodiscard]] double measured_seconds() const;
  [[nodiscard]] double time_once(std::uint64_t calls, std::uint64_t plug_bytes, bool& covered);
  [[nodiscard]] double worst_error(std::uint64_t set, std::uint32_t row, std::uint32_t head) const;

  const Rig& rig_;
  const LayerHistory& history_;
  const Plug& plug_;
  std::uint32_t row_count_;
  kvspan_attention_shape_t shape_{};
  kvspan_attention_caps_t caps_{};
  DeviceMemory workspace_;
  std::uint64_t out_sets_ = 0;
  std::uint64_t q_bytes_ = 0;
  std::uint64_t out_bytes_ = 0;
  DeviceMemory rows_;  // queries, then the outputs of out_sets_ sets
  HostMemory host_rows_;
  kvspan_queue_t* queue_ = nullptr;  // of compute_, once something was submitted
  std::vector<float> queries_;       // [row, q_head, head_size_k] as the f16 rows hold them
  std::vector<std::uint64_t> visible_end_;
  Line compute_;
  Line upload_;
};

}  // namespace kvspan::cuda_bench
