// SPDX-License-Identifier: Apache-2.0
// The oracle. One vector per row, one loop per formula; slow on purpose.
// Read next: oracle_transformer.hpp.
#include "tests/oracle_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvspan::model::testing {

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row times(const std::vector<double>& matrix, const Row& x) {
  Row y(matrix.size() / x.size(), 0.0);
  for (std::size_t out = 0; out < y.size(); ++out) {
    for (std::size_t in = 0; in < x.size(); ++in) {
      y[out] += matrix[out * x.size() + in] * x[in];
    }
  }
  return y;
}

Row normed(const Row& x, const std::vector<double>& weight, double epsilon) {
  double squares = 0.0;
  for (const double value : x) {
    squares += value * value;
  }
  const double root = std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / root * weight[i];
  }
  return y;
}

void add(Row& x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += y[i];
  }
}

class Oracle {
 public:
  explicit Oracle(const TinyModel& model) : model_(model), options_(model.options) {}

  Rows run(const std::vector<std::uint32_t>& tokens) const {
    Rows residual;
    for (const std::uint32_t token : tokens) {
      const auto begin = weight("token_embd.weight").begin() + long{token} * options_.width;
      residual.emplace_back(begin, begin + options_.width);
    }
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      attention(prefix, residual);
      for (Row& x : residual) {
        add(x, feed_forward(prefix, normed(x, weight(prefix + "ffn_norm.weight"), epsilon())));
      }
    }
    Rows logits;
    const bool tied = model_.weights.count("output.weight") == 0;
    for (const Row& x : residual) {
      logits.push_back(times(weight(tied ? "token_embd.weight" : "output.weight"),
                             normed(x, weight("output_norm.weight"), epsilon())));
    }
    return logits;
  }

 private:
  const std::vector<double>& weight(const std::string& name) const {
    return model_.weights.at(name);
  }

  double epsilon() const { return static_cast<double>(options_.epsilon); }

  // Rotates one head at `position`: complex multiplication of pairs by e^(i angle).
  void rotate(double* head, std::size_t position) const {
    const std::size_t pairs = options_.rotated / 2;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle =
          static_cast<double>(position) / std::pow(static_cast<double>(options_.rope_base),
                                                   2.0 * static_cast<double>(i) / options_.rotated);
      double& real = options_.family == "llama" ? head[2 * i] : head[i];
      double& imaginary = options_.family == "llama" ? head[2 * i + 1] : head[i + pairs];
      const double before = real;
      real = before * std::cos(angle) - imaginary * std::sin(angle);
      imaginary = before * std::sin(angle) + imaginary * std::cos(angle);
    }
  }

  // Query or key rows of one token: product, bias, head norm, rotation.
  Row side(const std::string& prefix,
           const std::string& which,
           const Row& x,
           std::size_t at) const {
    Row y = times(weight(prefix + "attn_" + which + ".weight"), x);
    if (options_.biases == Biases::present) {
      add(y, weight(prefix + "attn_" + which + ".bias"));
    }
    if (which == "v") {
      return y;
    }
    const std::size_t size = options_.head_size_k;
    for (std::size_t begin = 0; begin < y.size(); begin += size) {
      if (options_.family == "qwen3") {
        const auto first = y.begin() + static_cast<long>(begin);
        const Row head(first, first + static_cast<long>(size));
        const Row after =
            normed(head, weight(prefix + "attn_" + which + "_norm.weight"), epsilon());
        std::copy(after.begin(), after.end(), first);
      }
      rotate(y.data() + begin, at);
    }
    return y;
  }

  Row attend(const Row& q, const Rows& k, const Rows& v, std::size_t row) const {
    const std::size_t size_k = options_.head_size_k;
    const std::size_t size_v = options_.head_size_v;
    Row out(std::size_t{options_.q_heads} * size_v, 0.0);
    for (std::size_t h = 0; h < options_.q_heads; ++h) {
      const std::size_t shared = h / (options_.q_heads / options_.kv_heads);
      Row scores(row + 1, 0.0);
      for (std::size_t j = 0; j <= row; ++j) {
        for (std::size_t i = 0; i < size_k; ++i) {
          scores[j] += q[h * size_k + i] * k[j][shared * size_k + i];
        }
        scores[j] /= std::sqrt(static_cast<double>(size_k));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0.0;
      for (double& score : scores) {
        score = std::exp(score - most);
        sum += score;
      }
      for (std::size_t j = 0; j <= row; ++j) {
        for (std::size_t i = 0; i < size_v; ++i) {
          out[h * size_v + i] += scores[j] / sum * v[j][shared * size_v + i];
        }
      }
    }
    return out;
  }

  void attention(const std::string& prefix, Rows& residual) const {
    Rows q, k, v;
    for (std::size_t row = 0; row < residual.size(); ++row) {
      const Row x = normed(residual[row], weight(prefix + "attn_norm.weight"), epsilon());
      q.push_back(side(prefix, "q", x, row));
      k.push_back(side(prefix, "k", x, row));
      v.push_back(side(prefix, "v", x, row));
    }
    for (std::size_t row = 0; row < residual.size(); ++row) {
      add(residual[row], times(weight(prefix + "attn_output.weight"), attend(q[row], k, v, row)));
    }
  }

  Row feed_forward(const std::string& prefix, const Row& x) const {
    Row gate = times(weight(prefix + "ffn_gate.weight"), x);
    const Row up = times(weight(prefix + "ffn_up.weight"), x);
    for (std::size_t i = 0; i < gate.size(); ++i) {
      gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
    }
    return times(weight(prefix + "ffn_down.weight"), gate);
  }

  const TinyModel& model_;
  const TinyOptions& options_;
};

}  // namespace

std::vector<std::vector<double>> oracle_logits(const TinyModel& model,
                                               const std::vector<std::uint32_t>& tokens) {
  return Oracle(model).run(tokens);
}

}  // namespace kvspan::model::testing
