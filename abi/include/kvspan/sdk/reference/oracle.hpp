// SPDX-License-Identifier: Apache-2.0
// Attention in double precision on dequantised K and V: what every error class is measured against.
// Exact two-pass softmax over the visible tokens; plain vectors in, plain vectors out; shares no
// code with the C reference or any plugin. Slow on purpose, C++20, any thread.
// Not here: dequantisation (quant.h), spans, splits. Read next: kvspan_entry_t in attention.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvspan::oracle {

// One sequence and its rows. Vectors that are optional are empty when absent.
struct Problem {
  std::size_t rows = 0;
  std::size_t q_heads = 0;
  std::size_t kv_heads = 0;  // divides q_heads; query head h reads KV head h / (q_heads / kv_heads)
  std::size_t head_size_k = 0;  // elements
  std::size_t head_size_v = 0;
  std::vector<double> q;  // [row, q_head, head_size_k]
  std::vector<double> k;  // [token, kv_head, head_size_k]
  std::vector<double> v;  // [token, kv_head, head_size_v]; empty: prefix of K's row
  std::vector<std::uint64_t> visible_end;   // [row] tokens
  std::vector<std::uint64_t> window_begin;  // [row] tokens; empty: 0
  std::vector<std::uint64_t> suffix_mask;   // [row]; empty: none
  std::uint64_t suffix_count = 0;           // <= 64; bit j is token (tokens - suffix_count + j)
  std::vector<std::int64_t> positions;      // [row] for slopes; empty: visible_end - 1
  double scale = 1.0;                       // of q . k
  double soft_cap = 0.0;                    // 0: none
  std::vector<double> sinks;                // [q_head]; empty: none
  std::vector<double> slopes;               // [q_head]; empty: none
};

struct Result {
  std::vector<double> out;  // [row, q_head, head_size_v]
  std::vector<double> lse;  // [row, q_head]
};

// Distance of an answer from the oracle's, as the error classes count it.
struct Distance {
  double nmse = 0.0;        // sum of squared errors / sum of squared values; 0 / 0 is 0
  double max_over_v = 0.0;  // largest |error| / largest visible |V|; 0 / 0 is 0
  double lse_max = 0.0;     // largest |error| of an LSE; 0 where both are -inf, inf where one is
  bool ordinary = true;     // no NaN and no Inf in the answer's outputs
};

// Tokens of the history: what k holds.
[[nodiscard]] inline std::size_t token_count(const Problem& problem) {
  return problem.k.size() / (problem.kv_heads * problem.head_size_k);
}

// Whether row `row` sees `token`.
[[nodiscard]] inline bool sees(const Problem& problem, std::size_t row, std::size_t token) {
  const std::uint64_t begin = problem.window_begin.empty() ? 0 : problem.window_begin[row];
  if (token < begin || token >= problem.visible_end[row]) {
    return false;
  }
  if (problem.suffix_mask.empty()) {
    return true;
  }
  for (std::uint64_t bit = 0; bit < problem.suffix_count; ++bit) {
    if (token_count(problem) + bit == token + problem.suffix_count) {
      return ((problem.suffix_mask[row] >> bit) & 1u) != 0;
    }
  }
  return true;
}

// The score of `token` for one row and query head: scaled, capped, then biased by ALiBi.
[[nodiscard]] inline double score(const Problem& problem,
                                  std::size_t row,
                                  std::size_t q_head,
                                  std::size_t token) {
  const std::size_t kv_head = q_head / (problem.q_heads / problem.kv_heads);
  const double* q = &problem.q[(row * problem.q_heads + q_head) * problem.head_size_k];
  const double* k = &problem.k[(token * problem.kv_heads + kv_head) * problem.head_size_k];
  double dot = 0.0;
  for (std::size_t d = 0; d < problem.head_size_k; ++d) {
    dot += q[d] * k[d];
  }
  double value = problem.scale * dot;
  if (problem.soft_cap > 0.0) {
    value = problem.soft_cap * std::tanh(value / problem.soft_cap);
  }
  if (!problem.slopes.empty()) {
    const std::int64_t position = problem.positions.empty()
                                      ? static_cast<std::int64_t>(problem.visible_end[row]) - 1
                                      : problem.positions[row];
    value +=
        problem.slopes[q_head] * static_cast<double>(static_cast<std::int64_t>(token) - position);
  }
  return value;
}

// The V row of `token` for one query head.
[[nodiscard]] inline const double* value_row(const Problem& problem,
                                             std::size_t q_head,
                                             std::size_t token) {
  const std::size_t kv_head = q_head / (problem.q_heads / problem.kv_heads);
  const std::size_t index = token * problem.kv_heads + kv_head;
  return problem.v.empty() ? &problem.k[index * problem.head_size_k]
                           : &problem.v[index * problem.head_size_v];
}

// One row and query head to out [head_size_v]; returns the LSE. Invisible tokens are never read.
// Nothing visible: 0 and -inf, with a sink too.
inline double attend_row(const Problem& problem, std::size_t row, std::size_t q_head, double* out) {
  std::fill_n(out, problem.head_size_v, 0.0);
  std::vector<std::size_t> tokens;
  std::vector<double> scores;
  for (std::size_t token = 0; token < token_count(problem); ++token) {
    if (sees(problem, row, token)) {
      tokens.push_back(token);
      scores.push_back(score(problem, row, q_head, token));
    }
  }
  if (tokens.empty()) {
    return -std::numeric_limits<double>::infinity();
  }
  double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  if (!problem.sinks.empty()) {
    largest = std::max(largest, problem.sinks[q_head]);
    sum = std::exp(problem.sinks[q_head] - largest);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    const double* v = value_row(problem, q_head, tokens[i]);
    sum += weight;
    for (std::size_t d = 0; d < problem.head_size_v; ++d) {
      out[d] += weight * v[d];
    }
  }
  for (std::size_t d = 0; d < problem.head_size_v; ++d) {
    out[d] /= sum;
  }
  return largest + std::log(sum);
}

// All rows and heads. The caller has made the vectors' sizes agree.
[[nodiscard]] inline Result attend(const Problem& problem) {
  Result result;
  result.out.resize(problem.rows * problem.q_heads * problem.head_size_v);
  result.lse.resize(problem.rows * problem.q_heads);
  for (std::size_t row = 0; row < problem.rows; ++row) {
    for (std::size_t head = 0; head < problem.q_heads; ++head) {
      const std::size_t index = row * problem.q_heads + head;
      result.lse[index] = attend_row(problem, row, head, &result.out[index * problem.head_size_v]);
    }
  }
  return result;
}

// The largest |V| that any row sees; 0 where nothing is seen.
[[nodiscard]] inline double largest_value(const Problem& problem) {
  double largest = 0.0;
  for (std::size_t token = 0; token < token_count(problem); ++token) {
    bool seen = false;
    for (std::size_t row = 0; row < problem.rows && !seen; ++row) {
      seen = sees(problem, row, token);
    }
    for (std::size_t head = 0; seen && head < problem.q_heads; ++head) {
      const double* v = value_row(problem, head, token);
      for (std::size_t d = 0; d < problem.head_size_v; ++d) {
        largest = std::max(largest, std::fabs(v[d]));
      }
    }
  }
  return largest;
}

// How far out [row, q_head, head_size_v] and lse [row, q_head] (empty: not asked) are from `exact`.
[[nodiscard]] inline Distance distance(const Problem& problem,
                                       const Result& exact,
                                       const std::vector<float>& out,
                                       const std::vector<float>& lse) {
  Distance distance;
  double errors = 0.0;
  double values = 0.0;
  double largest_error = 0.0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    const double error = std::fabs(static_cast<double>(out[i]) - exact.out[i]);
    distance.ordinary = distance.ordinary && std::isfinite(out[i]);
    errors += error * error;
    values += exact.out[i] * exact.out[i];
    largest_error = std::max(largest_error, error);
  }
  const double largest = largest_value(problem);
  distance.nmse = errors == 0.0 ? 0.0 : errors / values;
  distance.max_over_v = largest_error == 0.0 ? 0.0 : largest_error / largest;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double error = std::fabs(static_cast<double>(lse[i]) - exact.lse[i]);
    const bool equal = static_cast<double>(lse[i]) == exact.lse[i];  // -inf beside -inf
    const double counted = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    distance.lse_max = equal ? distance.lse_max : std::max(distance.lse_max, counted);
  }
  return distance;
}

}  // namespace kvspan::oracle
