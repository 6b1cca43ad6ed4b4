// SPDX-License-Identifier: Apache-2.0
// A random attention case for the C reference: typed K and V in scattered pages with poison between
// the rows, the same as a Problem of the oracle, and a run by splits over them.
// Not here: expectations (reference_advance_test.cpp).
#pragma once

#include "kvspan/sdk/reference/advance.h"
#include "kvspan/sdk/reference/fold.h"
#include "kvspan/sdk/reference/oracle.hpp"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace kvspan::test {

// Typed rows [token, head] of one plane in host memory; every byte that is no row's is poison:
// NaN in f32, f16 and bf16, and NaN scales in quantised blocks.
class TypedPlane {
 public:
  TypedPlane(kvspan_type_t type, std::uint32_t heads, std::uint32_t elements)
      : type_(type), heads_(heads), elements_(elements) {}

  // rows [token, head, element] in pages of `page_tokens`, in the order of `slots`.
  void fill(const std::vector<float>& rows,
            std::uint32_t page_tokens,
            const std::vector<std::uint32_t>& slots) {
    slots_ = slots;
    const std::uint64_t row_bytes = kvspan_ref_row_bytes(type_, elements_);
    plane_.offset = 40;
    plane_.head_stride = row_bytes + 6;
    plane_.row_stride = heads_ * plane_.head_stride + 10;
    plane_.page_stride = page_tokens * plane_.row_stride + 14;
    plane_.page_tokens = page_tokens;
    plane_.page_list = slots_.data();
    plane_.page_count = static_cast<std::uint32_t>(slots_.size());
    bytes_.assign(plane_.offset + (slots_.size() + 1) * plane_.page_stride, 0xFF);
    for (std::uint64_t token = 0; token * heads_ * elements_ < rows.size(); ++token) {
      for (std::uint32_t head = 0; head < heads_; ++head) {
        kvspan_ref_encode_row(type_,
                              &rows[(token * heads_ + head) * elements_],
                              elements_,
                              &bytes_[kvspan_ref_plane_offset(&plane_, token, head)]);
      }
    }
  }

  void poison(std::uint64_t token) {
    std::memset(&bytes_[kvspan_ref_plane_offset(&plane_, token, 0)], 0xFF, plane_.row_stride - 10);
  }

  const float* row(std::uint64_t token, std::uint32_t head, float* scratch) const {
    const std::uint8_t* source = &bytes_[kvspan_ref_plane_offset(&plane_, token, head)];
    kvspan_ref_decode_row(type_, source, elements_, scratch);
    return scratch;
  }

 private:
  kvspan_type_t type_;
  std::uint32_t heads_;
  std::uint32_t elements_;
  kvspan_plane_t plane_ = {};
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint8_t> bytes_;
};

using AdvanceFunction =
    int (*)(const kvspan_ref_advance_t*, std::uint64_t, std::uint64_t, float*, float*);

inline int ordinary_advance(
    const kvspan_ref_advance_t* args, std::uint64_t first, std::uint64_t end, float* ml, float* u) {
  return kvspan_ref_advance(args, first, end, ml, u);
}

struct Answer {
  std::vector<float> out;  // [row, q_head, head_size_v]
  std::vector<float> lse;  // [row, q_head]
};

// How one run is cut: `split_tokens` is S, a multiple of `granule`; `piece` gives the granules of
// the next advance, at least 1.
struct Cut {
  std::uint64_t split_tokens = 0;
  std::uint32_t granule = 64;
  std::function<std::uint64_t()> piece = [] { return std::uint64_t{1} << 40; };
  AdvanceFunction advance = ordinary_advance;
};

// A Problem together with the typed bytes that it is the dequantised form of.
struct Case {
  oracle::Problem problem;
  TypedPlane k = {KVSPAN_TYPE_F32, 1, 1};
  TypedPlane v = {KVSPAN_TYPE_F32, 1, 1};
  std::uint32_t kv_head = 0;  // the head that the callbacks read
  std::uint32_t row = 0;
  bool strayed = false;  // a callback was asked for a token that the row does not see
};

inline const float* k_row(void* context, std::uint64_t token, float* scratch) {
  auto* self = static_cast<Case*>(context);
  self->strayed = self->strayed || !oracle::sees(self->problem, self->row, token);
  return self->k.row(token, self->kv_head, scratch);
}

inline const float* v_row(void* context, std::uint64_t token, float* scratch) {
  auto* self = static_cast<Case*>(context);
  self->strayed = self->strayed || !oracle::sees(self->problem, self->row, token);
  return self->v.row(token, self->kv_head, scratch);
}

// Rows of one KV side as the plane will give them, [token, head, element].
inline std::vector<double> dequantised(const TypedPlane& plane,
                                       std::size_t tokens,
                                       std::size_t heads,
                                       std::size_t elements) {
  std::vector<double> rows;
  std::vector<float> scratch(elements);
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t head = 0; head < heads; ++head) {
      plane.row(token, static_cast<std::uint32_t>(head), scratch.data());
      rows.insert(rows.end(), scratch.begin(), scratch.end());
    }
  }
  return rows;
}

// Everything the C reference is told about one row and query head of a case.
inline kvspan_ref_advance_t arguments_of(Case& self,
                                         std::uint32_t row,
                                         std::uint32_t head,
                                         std::vector<float>& floats,
                                         std::vector<double>& sums) {
  const oracle::Problem& problem = self.problem;
  self.row = row;
  self.kv_head = static_cast<std::uint32_t>(head / (problem.q_heads / problem.kv_heads));
  floats.assign(3 * problem.head_size_k + problem.head_size_v, 0.0f);
  sums.assign(problem.head_size_v, 0.0);
  for (std::size_t d = 0; d < problem.head_size_k; ++d) {
    floats[d] =
        static_cast<float>(problem.q[(row * problem.q_heads + head) * problem.head_size_k + d]);
  }
  kvspan_ref_advance_t args = {};
  args.q = floats.data();
  args.k = k_row;
  args.v = problem.v.empty() ? k_row : v_row;
  args.context = &self;
  args.k_scratch = floats.data() + problem.head_size_k;
  args.v_scratch = floats.data() + 2 * problem.head_size_k;
  args.sums = sums.data();
  args.visibility.window_begin = problem.window_begin.empty() ? 0 : problem.window_begin[row];
  args.visibility.visible_end = problem.visible_end[row];
  args.visibility.token_total = oracle::token_count(problem);
  args.visibility.suffix_mask = problem.suffix_mask.empty() ? 0 : problem.suffix_mask[row];
  args.visibility.suffix_count =
      problem.suffix_mask.empty() ? 0 : static_cast<std::uint32_t>(problem.suffix_count);
  args.position = problem.positions.empty()
                      ? static_cast<std::int64_t>(problem.visible_end[row]) - 1
                      : problem.positions[row];
  args.head_size_k = static_cast<std::uint32_t>(problem.head_size_k);
  args.head_size_v = static_cast<std::uint32_t>(problem.head_size_v);
  args.scale = static_cast<float>(problem.scale);
  args.soft_cap = static_cast<float>(problem.soft_cap);
  args.slope = problem.slopes.empty() ? 0.0f : static_cast<float>(problem.slopes[head]);
  return args;
}

// Splits, advances in pieces, folds in ascending order, finishes; for every row and head.
inline Answer answer(Case& self, const Cut& cut) {
  const oracle::Problem& problem = self.problem;
  const std::uint64_t total = oracle::token_count(problem);
  const auto head_size_v = static_cast<std::uint32_t>(problem.head_size_v);
  Answer result;
  std::vector<float> floats;
  std::vector<double> sums;
  std::vector<float> u(head_size_v);
  std::vector<float> split_u(head_size_v);
  for (std::uint32_t row = 0; row < problem.rows; ++row) {
    for (std::uint32_t head = 0; head < problem.q_heads; ++head) {
      kvspan_ref_advance_t args = arguments_of(self, row, head, floats, sums);
      args.granule = cut.granule;
      float ml[2];
      kvspan_ref_state_clear(ml, u.data(), head_size_v);
      for (std::uint64_t split = 0; split < total; split += cut.split_tokens) {
        const std::uint64_t end = std::min(total, split + cut.split_tokens);
        float split_ml[2];
        kvspan_ref_state_clear(split_ml, split_u.data(), head_size_v);
        for (std::uint64_t at = split; at < end;) {
          const std::uint64_t next = at + std::min(end - at, cut.piece() * cut.granule);
          cut.advance(&args, at, next, split_ml, split_u.data());
          at = next;
        }
        kvspan_ref_state_fold(ml, u.data(), split_ml, split_u.data(), head_size_v);
      }
      const auto sink = problem.sinks.empty() ? 0.0f : static_cast<float>(problem.sinks[head]);
      result.lse.push_back(kvspan_ref_state_finish(
          ml, u.data(), head_size_v, problem.sinks.empty() ? nullptr : &sink, u.data()));
      result.out.insert(result.out.end(), u.begin(), u.end());
    }
  }
  return result;
}

}  // namespace kvspan::test
