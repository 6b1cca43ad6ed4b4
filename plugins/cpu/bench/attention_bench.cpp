// SPDX-License-Identifier: Apache-2.0
// How fast one core walks a history: prefill-like tiles in GFLOP/s, decode in GB/s of K and V read.
// Random data; every timed run also checks that its outputs are finite and not all alike. Absolute
// times depend on the machine: compare two builds in one sitting. Not here: threads, queues.
#include "kvspan/sdk/reference/quant.h"

#include "attention/kernel.hpp"

#include <hwy/targets.h>

#include <benchmark/benchmark.h>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

namespace kvspan::cpu {
namespace {

// Not a good generator, but a fast one: encoding 64 Ki tokens should not take longer than the
// benchmark.
class Noise {
 public:
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  uint64_t state_ = 1;
};

std::vector<uint8_t> rows_of(Noise& noise, kvspan_type_t type, uint32_t size, uint64_t tokens) {
  const uint64_t bytes = kvspan_ref_row_bytes(type, size);
  std::vector<uint8_t> rows(bytes * tokens);
  std::vector<float> row(size);
  for (uint64_t token = 0; token < tokens; ++token) {
    for (float& element : row) {
      element = 2.0f * noise.next();
    }
    kvspan_ref_encode_row(type, row.data(), size, rows.data() + token * bytes);
  }
  return rows;
}

struct Sizes {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  uint32_t head_size;
  uint32_t group;
  uint32_t rows;
  uint64_t tokens;
};

Sizes sizes_of(const benchmark::State& state) {
  return {static_cast<kvspan_type_t>(state.range(0)),
          static_cast<kvspan_type_t>(state.range(1)),
          static_cast<uint32_t>(state.range(2)),
          static_cast<uint32_t>(state.range(3)),
          static_cast<uint32_t>(state.range(4)),
          static_cast<uint64_t>(state.range(5))};
}

void clear(Scratch& scratch, const PairTile& tile) {
  const size_t stride = padded(tile.problem->head_size_v);
  std::memset(scratch.u, 0, sizeof(float) * stride * tile.pair_count);
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    scratch.m[p] = -std::numeric_limits<float>::infinity();
    scratch.l[p] = 0.0f;
  }
}

// Outputs are finite, and differ from pair to pair.
bool plausible(const Scratch& scratch, const PairTile& tile) {
  const size_t stride = padded(tile.problem->head_size_v);
  bool differ = tile.pair_count == 1;
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    const float value = scratch.u[p * stride] / scratch.l[p];
    if (!std::isfinite(value)) {
      return false;
    }
    differ = differ || value != scratch.u[0] / scratch.l[0];
  }
  return differ;
}

void walk_history(benchmark::State& state) {
  const Sizes sizes = sizes_of(state);
  Noise noise;
  const uint64_t k_bytes = kvspan_ref_row_bytes(sizes.k_type, sizes.head_size);
  const uint64_t v_bytes = kvspan_ref_row_bytes(sizes.v_type, sizes.head_size);
  const std::vector<uint8_t> k = rows_of(noise, sizes.k_type, sizes.head_size, sizes.tokens);
  const std::vector<uint8_t> v = rows_of(noise, sizes.v_type, sizes.head_size, sizes.tokens);
  const uint32_t pairs = sizes.rows * sizes.group;
  std::vector<float> q(size_t{pairs} * sizes.head_size);
  for (float& element : q) {
    element = noise.next();
  }
  const SpanView span{0,
                      sizes.tokens,
                      {k.data(), nullptr, 0, k_bytes, 0, 0},
                      {v.data(), nullptr, 0, v_bytes, 0, 0}};
  std::vector<uint64_t> visible_end(sizes.rows);
  for (uint32_t row = 0; row < sizes.rows; ++row) {
    visible_end[row] = sizes.tokens - sizes.rows + row + 1;
  }
  Problem problem{};
  problem.k_type = sizes.k_type;
  problem.v_type = sizes.v_type;
  problem.head_size_k = problem.head_size_v = sizes.head_size;
  problem.q_heads = problem.group = sizes.group;
  problem.kv_heads = 1;
  problem.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_size));
  EntryView entry{};
  entry.spans = &span;
  entry.span_count = 1;
  entry.visible_end = visible_end.data();
  entry.row_count = sizes.rows;
  entry.token_total = entry.split_tokens = sizes.tokens;
  entry.q = {reinterpret_cast<uint8_t*>(q.data()),
             uint64_t{sizes.group} * sizes.head_size * 4,
             uint64_t{sizes.head_size} * 4,
             KVSPAN_TYPE_F32};
  auto* const block = new (std::align_val_t{64}) uint8_t[Scratch::bytes()]();
  Scratch scratch = Scratch::bind(block);
  const Kernels& kernels = best_kernels();
  uint64_t tiles = 0;
  bool right = true;
  for (auto _ : state) {
    for (uint32_t first = 0; first < pairs; first += kPairsMax, ++tiles) {
      const PairTile tile{
          &problem, &entry, first, pairs - first < kPairsMax ? pairs - first : kPairsMax, 0};
      kernels.load_queries(tile, scratch);
      clear(scratch, tile);
      kernels.walk(tile, 0, sizes.tokens, scratch);
      right = right && plausible(scratch, tile);
    }
  }
  operator delete[](block, std::align_val_t{64});
  if (!right) {
    state.SkipWithError("the outputs are not numbers, or all alike");
  }
  const double flops = 4.0 * pairs * sizes.head_size * static_cast<double>(sizes.tokens);
  state.SetLabel(hwy::TargetName(kernels.target));
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["KV_GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(tiles * sizes.tokens * (k_bytes + v_bytes)),
                         benchmark::Counter::kIsRate);
}

// K type, V type, head size, group, rows, tokens
BENCHMARK(walk_history)
    ->ArgNames({"k", "v", "d", "group", "rows", "tokens"})
    ->Args({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64, 3, 64, 8192})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 64, 3, 64, 8192})
    ->Args({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 4, 64, 8192})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 6, 64, 8192})
    ->Args({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64, 3, 1, 65536})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 64, 3, 1, 65536})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0, 64, 8, 1, 65536})
    ->Args({KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0, 128, 4, 1, 65536})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 6, 1, 65536})
    ->Args({KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 6, 4, 65536})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvspan::cpu

BENCHMARK_MAIN();
