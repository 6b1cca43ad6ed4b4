// SPDX-License-Identifier: Apache-2.0
// A tiny engine: K, V and Q of a token are a pure function of (sequence tag, layer, token), so that
// any two runs can be compared row by row. Buffers lie in the backend's host memory.
#pragma once

#include "kvspan/core/session/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace kvspan::test {

// Seeds of a loop over schedules: a sanitizer makes each ten times as long, and sees in a tenth of
// them what it can see.
constexpr int seeds(int full) {
  return KVSPAN_TEST_SANITIZED != 0 ? full / 10 : full;
}

// A number in [-1, 1) from five integers. Source: the splitmix64 finaliser.
inline float noise(
    std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d, std::uint64_t e) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL +
                    c * 0x94d049bb133111ebULL + d * 0x2545f4914f6cdd1dULL + e + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<float>(static_cast<double>(x >> 11) / 4503599627370496.0 - 1.0);
}

struct Buffer {
  DeviceMemory memory;
  float* data = nullptr;
  std::uint32_t heads = 0;
  std::uint32_t head_size = 0;

  [[nodiscard]] float* row(std::uint64_t index) const { return data + index * heads * head_size; }

  [[nodiscard]] kvspan_rows_t rows() const {
    kvspan_rows_t out{};
    out.memory = memory.get();
    out.row_stride = static_cast<std::uint64_t>(heads) * head_size * sizeof(float);
    out.head_stride = head_size * sizeof(float);
    out.type = KVSPAN_TYPE_F32;
    return out;
  }
};

inline Buffer make_buffer(const Backend& backend,
                          std::uint32_t rows,
                          std::uint32_t heads,
                          std::uint32_t head_size) {
  Buffer buffer{{}, nullptr, heads, head_size};
  const std::uint64_t bytes = static_cast<std::uint64_t>(rows) * heads * head_size * sizeof(float);
  auto memory = backend.allocate(KVSPAN_MEMORY_HOST, bytes);
  EXPECT_TRUE(memory.has_value());
  buffer.memory = std::move(*memory);
  const auto address = backend.map(buffer.memory);
  EXPECT_TRUE(address.has_value());
  buffer.data = static_cast<float*>(*address);
  return buffer;
}

// What an engine says about one sequence's part of a step.
struct EngineRows {
  SequenceId sequence = 0;
  std::uint64_t tag = 0;          // whose content: equal tags have equal K, V, Q
  std::uint64_t first_token = 0;  // as the engine counts
  std::uint32_t rows = 0;
};

using Outputs = std::vector<std::vector<float>>;  // [layer][row, q_head, head_size_v]

class Engine {
 public:
  Engine(const Backend& backend,
         Session& session,
         const SessionOptions& options,
         std::uint32_t rows_max)
      : session_(session), options_(options) {
    const LayerGeometry& first = options.geometry.layers.front();
    std::uint32_t size_k = 0;
    std::uint32_t size_v = 0;
    std::uint32_t kv_heads = 0;
    for (const LayerGeometry& layer : options.geometry.layers) {
      size_k = std::max(size_k, layer.head_size_k);
      size_v = std::max(size_v, layer.head_size_v);
      kv_heads = std::max(kv_heads, layer.kv_heads);
    }
    q_ = make_buffer(backend, rows_max, first.q_heads, size_k);
    k_ = make_buffer(backend, rows_max, kv_heads, size_k);
    v_ = make_buffer(backend, rows_max, kv_heads, size_v);
    out_ = make_buffer(backend, rows_max, first.q_heads, size_v);
  }

  // What rows hold, instead of noise: (what, tag, layer, token, element), what = 1 for Q, 2 for K,
  // 3 for V.
  using Content = std::function<float(
      std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t)>;

  void set_content(Content content) { content_ = std::move(content); }

  // From now on no call waits: every layer of every step gets buffers of its own, which settle()
  // reads at the end.
  void never_wait(const Backend& backend, std::uint32_t rows_max) {
    backend_ = &backend;
    rows_max_ = rows_max;
  }

  // Waits for everything that never_wait() left open and appends its outputs in order.
  Result<void> settle(Outputs* outputs) {
    for (Open& open : open_) {
      if (auto waited = session_.wait(open.point); !waited) {
        return waited;
      }
      outputs->emplace_back(open.out.data, open.out.row(open.rows));
    }
    open_.clear();
    return {};
  }

  // Called in every step from now on, when all layers are attended.
  void before_commit(std::function<void()> what) { before_commit_ = std::move(what); }

  // Called before every call of the session in a step from now on.
  void before_call(std::function<void()> what) { before_call_ = std::move(what); }

  // Whether the last step had begun, however it ended.
  [[nodiscard]] bool began() const { return began_; }

  // One whole step, of whose rows the last `rejected` of each sequence are not accepted. Fills
  // `outputs`. On failure the step is given up.
  Result<void> step(const std::vector<EngineRows>& parts,
                    Phase phase,
                    Outputs* outputs,
                    std::uint32_t rejected = 0) {
    std::vector<StepRows> rows;
    std::vector<std::uint32_t> accepted;
    for (const EngineRows& part : parts) {
      rows.push_back({part.sequence, part.rows});
      accepted.push_back(part.rows - std::min(part.rows, rejected));
    }
    began_ = false;
    calling();
    if (auto begun = session_.begin_step(rows, phase); !begun) {
      return begun;
    }
    began_ = true;
    for (std::uint32_t layer = 0; layer < options_.geometry.layers.size(); ++layer) {
      auto done = one_layer(parts, layer, outputs);
      if (!done) {
        session_.cancel_step();
        return done;
      }
    }
    if (before_commit_) {
      before_commit_();
    }
    calling();
    return session_.commit(accepted);
  }

  // Tokens [from, to) of one sequence in prefill steps of `chunk` rows, the last one shorter.
  Result<void> prefill(SequenceId sequence,
                       std::uint64_t tag,
                       std::uint64_t from,
                       std::uint64_t to,
                       std::uint32_t chunk,
                       Outputs* outputs) {
    while (from < to) {
      const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, to - from));
      if (auto done = step({{sequence, tag, from, rows}}, Phase::prefill, outputs); !done) {
        return done;
      }
      from += rows;
    }
    return {};
  }

  // Tokens [from, to) of one sequence, a decode step each.
  Result<void> decode(SequenceId sequence,
                      std::uint64_t tag,
                      std::uint64_t from,
                      std::uint64_t to,
                      Outputs* outputs) {
    for (; from < to; ++from) {
      if (auto done = step({{sequence, tag, from, 1}}, Phase::decode, outputs); !done) {
        return done;
      }
    }
    return {};
  }

 private:
  void calling() const {
    if (before_call_) {
      before_call_();
    }
  }

  void shape_buffers(const LayerGeometry& layer) {
    q_.heads = out_.heads = layer.q_heads;
    k_.heads = v_.heads = layer.kv_heads;
    q_.head_size = k_.head_size = layer.head_size_k;
    v_.head_size = out_.head_size = layer.head_size_v;
  }

  void fill(const Buffer& buffer,
            std::uint64_t row,
            std::uint64_t what,
            std::uint64_t tag,
            std::uint64_t layer,
            std::uint64_t token) const {
    float* const target = buffer.row(row);
    for (std::uint32_t index = 0; index < buffer.heads * buffer.head_size; ++index) {
      target[index] = content_(what, tag, layer, token, index);
    }
  }

  Result<void> one_layer(const std::vector<EngineRows>& parts,
                         std::uint32_t layer,
                         Outputs* outputs) {
    if (backend_ != nullptr) {
      q_ = make_buffer(*backend_, rows_max_, q_.heads, 64);
      k_ = make_buffer(*backend_, rows_max_, q_.heads, 64);
      v_ = make_buffer(*backend_, rows_max_, q_.heads, 64);
      out_ = make_buffer(*backend_, rows_max_, q_.heads, 64);
    }
    shape_buffers(options_.geometry.layers[layer]);
    std::uint64_t row = 0;
    for (const EngineRows& part : parts) {
      for (std::uint32_t index = 0; index < part.rows; ++index, ++row) {
        fill(q_, row, 1, part.tag, layer, part.first_token + index);
        fill(k_, row, 2, part.tag, layer, part.first_token + index);
        fill(v_, row, 3, part.tag, layer, part.first_token + index);
      }
    }
    WriteRows write;
    write.k = k_.rows();
    write.v = v_.rows();
    calling();
    if (auto written = session_.write(layer, write); !written) {
      return written;
    }
    AttendRows attend;
    attend.q = q_.rows();
    attend.out = out_.rows();
    attend.scale = 1.0F / std::sqrt(static_cast<float>(q_.head_size));
    calling();
    auto point = session_.attend(layer, attend);
    if (!point) {
      return tl::unexpected(point.error());
    }
    if (backend_ != nullptr) {
      open_.push_back({std::move(q_), std::move(k_), std::move(v_), std::move(out_), row, *point});
      return {};
    }
    calling();
    if (auto waited = session_.wait(*point); !waited) {
      return waited;
    }
    if (outputs != nullptr) {
      outputs->emplace_back(out_.data, out_.row(row));
    }
    return {};
  }

  // A layer whose output nobody waited for yet.
  struct Open {
    Buffer q;
    Buffer k;
    Buffer v;
    Buffer out;
    std::uint64_t rows;
    kvspan_point_t point;
  };

  Session& session_;
  SessionOptions options_;
  Content content_ = noise;
  std::function<void()> before_commit_;
  std::function<void()> before_call_;
  bool began_ = false;
  const Backend* backend_ = nullptr;
  std::uint32_t rows_max_ = 0;
  std::vector<Open> open_;
  Buffer q_;
  Buffer k_;
  Buffer v_;
  Buffer out_;
};

// Two layers of unlike types and head sizes, pages of 8 tokens.
inline SessionOptions small_options() {
  SessionOptions options;
  options.geometry.layers = {
      {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4},
      {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4},
  };
  options.geometry.page_tokens = 8;
  options.context_tokens = 200;
  options.prefill_rows_max = 16;
  return options;
}

inline constexpr std::uint64_t kResidentArena = 1ULL << 30;

// Bytes that a run compares: memcmp is what "same bits" means.
inline ::testing::AssertionResult same_bits(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " outputs";
  }
  for (std::size_t index = 0; index < a.size(); ++index) {
    if (a[index].size() != b[index].size() ||
        std::memcmp(a[index].data(), b[index].data(), a[index].size() * sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "output " << index << " differs";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace kvspan::test
