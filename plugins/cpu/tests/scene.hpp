// SPDX-License-Identifier: Apache-2.0
// One random attention problem in memory of a rig: scattered pages, rows, outputs, states, and the
// calls that take its arguments. Everything around the live bytes is NaN. Not here: what must come
// out.
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/reference/quant.h"

#include "rig.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace kvspan::cpu {

struct SceneOptions {
  uint64_t seed = 1;
  uint32_t rows = 1;
  uint64_t tokens = 300;
  uint32_t row_class = KVSPAN_ROWS_DECODE;
};

class Scene {
 public:
  Scene(Rig& rig, const SceneOptions& options) : rig_(rig), random_(options.seed) {
    constexpr kvspan_type_t kTypes[] = {KVSPAN_TYPE_F16, KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0};
    shape_ = {};
    shape_.struct_size = sizeof shape_;
    shape_.k_type = kTypes[up_to(2)];
    shape_.v_type = kTypes[up_to(2)];
    shape_.head_size_k = 32 * static_cast<uint32_t>(1 + up_to(3));
    shape_.head_size_v = 32 * static_cast<uint32_t>(1 + up_to(3));
    shape_.kv_heads = static_cast<uint32_t>(1 + up_to(2));
    shape_.q_heads = shape_.kv_heads * static_cast<uint32_t>(1 + up_to(4));
    shape_.row_class = options.row_class;
    shape_.options = KVSPAN_OPTION_LSE | KVSPAN_OPTION_WINDOW;
    shape_.memory_kinds = 1u << KVSPAN_MEMORY_HOST;
    shape_.rows_max = options.rows;
    shape_.entries_max = 1;
    shape_.items_max = 64;
    shape_.spans_max = 64;
    shape_.tokens_max = options.tokens;
    caps_.struct_size = sizeof caps_;
    rig_.expect_ok(kAttentionTable.query(rig_.device, &shape_, &caps_, &rig_.error), "query");
    make_history(options.tokens);
    make_rows(options);
    make_args(options);
  }

  // Output rows, then LSEs.
  std::vector<float> run(Line& line) {
    clear_outputs();
    rig_.settle(line,
                [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                  return kAttentionTable.run(queue, &args, submit, error);
                });
    return outputs();
  }

  // The same by advance over random granule cuts, fold and finish.
  std::vector<float> run_in_parts(Line& line) {
    clear_outputs();
    const uint64_t split_tokens = entry.split_tokens;
    const uint64_t first_split = seen_begin_ / split_tokens;
    const uint64_t last_split = (entry.token_total - 1) / split_tokens;
    const uint64_t state_bytes = stride(caps_.state_u_bytes) + stride(caps_.state_ml_bytes);
    kvspan_memory_t* const states = rig_.memory(state_bytes * (last_split - first_split + 2));
    const auto state = [&](uint64_t index) {
      return kvspan_state_t{
          states, index * state_bytes, index * state_bytes + stride(caps_.state_u_bytes)};
    };
    for (uint64_t split = first_split; split <= last_split; ++split) {
      const uint64_t end = std::min((split + 1) * split_tokens, entry.token_total);
      uint64_t at = split * split_tokens;
      for (bool fresh = true; at < end; fresh = false) {
        const uint64_t next = std::min(end, at + 32 * (1 + up_to(3)));
        const kvspan_advance_item_t item{
            0, fresh ? KVSPAN_ITEM_FRESH : 0, split, at, next - at, state(split - first_split)};
        rig_.settle(line, [&](auto* queue, const auto* submit, auto* error) {
          return kAttentionTable.advance(queue, &args, &item, 1, submit, error);
        });
        at = next;
      }
    }
    const kvspan_state_t accumulator = state(last_split - first_split + 1);
    for (uint64_t split = first_split; split <= last_split; ++split) {
      const kvspan_fold_item_t item{
          0, split == first_split ? KVSPAN_ITEM_FRESH : 0, state(split - first_split), accumulator};
      rig_.settle(line, [&](auto* queue, const auto* submit, auto* error) {
        return kAttentionTable.fold(queue, &args, &item, 1, submit, error);
      });
    }
    rig_.settle(line, [&](auto* queue, const auto* submit, auto* error) {
      return kAttentionTable.finish(queue, &args, &accumulator, submit, error);
    });
    return outputs();
  }

  [[nodiscard]] const kvspan_attention_shape_t& shape() const { return shape_; }

  [[nodiscard]] const kvspan_attention_caps_t& caps() const { return caps_; }

  kvspan_attention_args_t args{};
  kvspan_entry_t entry{};

 private:
  static uint64_t stride(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  uint64_t up_to(uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(0, most)(random_);
  }

  float normal() { return std::normal_distribution<float>(0.0f, 1.0f)(random_); }

  // Pages of 16 or 48 tokens in shuffled slots: a page is no multiple of the granule, nor the other
  // way.
  void make_history(uint64_t tokens) {
    const uint32_t page_tokens = up_to(1) == 0 ? 16 : 48;
    const uint64_t pages = (tokens + page_tokens - 1) / page_tokens;
    slots_.resize(pages);
    std::iota(slots_.begin(), slots_.end(), 0u);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    span_.first_token = 0;
    span_.token_count = tokens;
    span_.k = make_plane(shape_.k_type, shape_.head_size_k, page_tokens, tokens);
    span_.v = make_plane(shape_.v_type, shape_.head_size_v, page_tokens, tokens);
  }

  kvspan_plane_t make_plane(kvspan_type_t type,
                            uint32_t size,
                            uint32_t page_tokens,
                            uint64_t tokens) {
    const uint64_t row_bytes = kvspan_ref_row_bytes(type, size);
    const uint64_t row_stride = (row_bytes + 6) * shape_.kv_heads;
    const uint64_t page_stride = stride(row_stride * page_tokens);
    void* address = nullptr;
    kvspan_memory_t* const memory = rig_.memory(page_stride * slots_.size(), &address);
    std::vector<float> row(size);
    for (uint64_t token = 0; token < tokens; ++token) {
      for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
        std::generate(row.begin(), row.end(), [&] { return normal(); });
        uint8_t* const at = static_cast<uint8_t*>(address) +
                            slots_[token / page_tokens] * page_stride +
                            token % page_tokens * row_stride + head * (row_bytes + 6);
        kvspan_ref_encode_row(type, row.data(), size, at);
      }
    }
    return {memory,
            0,
            page_stride,
            row_stride,
            row_bytes + 6,
            slots_.data(),
            page_tokens,
            static_cast<uint32_t>(slots_.size())};
  }

  void make_rows(const SceneOptions& options) {
    void* address = nullptr;
    const uint64_t elements = uint64_t{options.rows} * shape_.q_heads * shape_.head_size_k;
    entry.q = {rig_.memory(elements * 4, &address),
               0,
               uint64_t{shape_.q_heads} * shape_.head_size_k * 4,
               uint64_t{shape_.head_size_k} * 4,
               KVSPAN_TYPE_F32,
               0};
    std::generate_n(static_cast<float*>(address), elements, [&] { return normal(); });
    out_count_ = uint64_t{options.rows} * shape_.q_heads * shape_.head_size_v;
    entry.out = {rig_.memory(out_count_ * 4, &address),
                 0,
                 uint64_t{shape_.q_heads} * shape_.head_size_v * 4,
                 uint64_t{shape_.head_size_v} * 4,
                 KVSPAN_TYPE_F32,
                 0};
    out_ = static_cast<float*>(address);
    lse_count_ = uint64_t{options.rows} * shape_.q_heads;
    entry.lse = {rig_.memory(lse_count_ * 4, &address), 0, lse_count_ * 4};
    lse_ = static_cast<float*>(address);
    for (uint32_t row = 0; row < options.rows; ++row) {
      const uint64_t hidden = options.rows - row - 1;
      visible_end_.push_back(options.tokens > hidden ? options.tokens - hidden : 0);
      window_begin_.push_back(up_to(2) == 0 ? up_to(visible_end_.back()) : 0);
    }
    seen_begin_ = *std::min_element(window_begin_.begin(), window_begin_.end());
  }

  void make_args(const SceneOptions& options) {
    entry.spans = &span_;
    entry.span_count = 1;
    entry.visible_end = visible_end_.data();
    entry.window_begin = window_begin_.data();
    entry.row_count = options.rows;
    entry.token_total = options.tokens;
    const uint64_t part =
        (options.tokens - seen_begin_ + caps_.split_count - 1) / caps_.split_count;
    entry.split_tokens = std::max<uint64_t>(32, (part + 31) / 32 * 32);
    args.struct_size = sizeof args;
    args.entry_count = 1;
    args.shape = &shape_;
    args.entries = &entry;
    args.scale = 0.2f;
    if (caps_.run_workspace_bytes != 0) {
      args.workspace = {rig_.memory(caps_.run_workspace_bytes), 0, caps_.run_workspace_bytes};
    }
  }

  void clear_outputs() {
    std::memset(out_, 0xFF, out_count_ * 4);
    std::memset(lse_, 0xFF, lse_count_ * 4);
  }

  [[nodiscard]] std::vector<float> outputs() const {
    std::vector<float> all(out_, out_ + out_count_);
    all.insert(all.end(), lse_, lse_ + lse_count_);
    return all;
  }

  Rig& rig_;
  std::mt19937_64 random_;
  kvspan_attention_shape_t shape_{};
  kvspan_attention_caps_t caps_{};
  kvspan_span_t span_{};
  std::vector<uint32_t> slots_;
  std::vector<uint64_t> visible_end_;
  std::vector<uint64_t> window_begin_;
  uint64_t seen_begin_ = 0;
  float* out_ = nullptr;
  float* lse_ = nullptr;
  uint64_t out_count_ = 0;
  uint64_t lse_count_ = 0;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

}  // namespace kvspan::cpu
