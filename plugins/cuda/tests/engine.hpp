// SPDX-License-Identifier: Apache-2.0
// One layer of a model, as tests of sharing play it: the engine owns rows, queries and outputs, the
// cache is ours. A round is a token: its K and V rows are encoded, its query sees all tokens so
// far. Everything is f32, so that a host can say what must come out.
#pragma once

#include "kvspan/graph.h"

#include "engine_kernel.hpp"
#include "loaded.hpp"

#include <cmath>
#include <cuda.h>
#include <vector>

namespace kvspan::cuda {

// Sizes of the layer, and where a round's rows lie in the engine's memory, in floats.
struct Layer {
  static constexpr uint32_t kQueryHeads = 4;
  static constexpr uint32_t kKvHeads = 2;
  static constexpr uint32_t kHeadSize = 64;
  static constexpr uint32_t kRowFloats = kKvHeads * kHeadSize;       // of K, and of V
  static constexpr uint32_t kQueryFloats = kQueryHeads * kHeadSize;  // of Q, and of the output
  static constexpr uint32_t kRoundFloats = 2 * kRowFloats + kQueryFloats;
  static constexpr uint64_t kKOffset = 0;
  static constexpr uint64_t kVOffset = uint64_t{4} * kRowFloats;
  static constexpr uint64_t kQOffset = uint64_t{8} * kRowFloats;
  static constexpr uint64_t kOutOffset = kQOffset + uint64_t{4} * kQueryFloats;
  static constexpr uint64_t kRowsBytes = kOutOffset + uint64_t{4} * kQueryFloats;
};

// What attention gives for the query of `round` over tokens 0..round, in double precision.
inline std::vector<double> expected_output(uint32_t round) {
  std::vector<double> out(Layer::kQueryFloats);
  const uint32_t group = Layer::kQueryHeads / Layer::kKvHeads;
  for (uint32_t head = 0; head < Layer::kQueryHeads; ++head) {
    const uint32_t from = head / group * Layer::kHeadSize;
    const uint32_t at = head * Layer::kHeadSize;
    double sum = 0;
    for (uint32_t token = 0; token <= round; ++token) {
      double score = 0;
      for (uint32_t i = 0; i < Layer::kHeadSize; ++i) {
        score += double{row_value(round, 2 * Layer::kRowFloats + at + i)} *
                 double{row_value(token, from + i)};
      }
      const double weight = std::exp(score / 8);  // scores are small: no maximum is needed
      sum += weight;
      for (uint32_t i = 0; i < Layer::kHeadSize; ++i) {
        out[at + i] += weight * double{row_value(token, Layer::kRowFloats + from + i)};
      }
    }
    for (uint32_t i = 0; i < Layer::kHeadSize; ++i) {
      out[at + i] /= sum;
    }
  }
  return out;
}

// The largest difference to what must come out.
inline double error_of(const float* out, uint32_t round) {
  const std::vector<double> wanted = expected_output(round);
  double worst = 0;
  for (uint32_t i = 0; i < Layer::kQueryFloats; ++i) {
    const double error = std::abs(double{out[i]} - wanted[i]);
    worst = error > worst || std::isnan(error) ? error : worst;
  }
  return worst;
}

// Arguments of one round; args point into it, so it stays in place until the call returned.
struct RoundArgs {
  RoundArgs() = default;
  RoundArgs(const RoundArgs&) = delete;
  RoundArgs& operator=(const RoundArgs&) = delete;
  RoundArgs(RoundArgs&&) = delete;
  RoundArgs& operator=(RoundArgs&&) = delete;
  ~RoundArgs() = default;

  kvspan_codec_item_t items[2] = {};
  uint64_t visible_end = 0;
  kvspan_span_t span = {};
  kvspan_entry_t entry = {};
  kvspan_attention_args_t args = {};
};

class EngineTest : public LoadedTest {
 protected:
  void SetUp() override {
    LoadedTest::SetUp();
    if (HasFatalFailure()) {
      return;
    }
    if (!has_device()) {
      GTEST_SKIP() << count_error_.message;
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
    get_current_ = driver<CUresult(CUcontext*)>("cuCtxGetCurrent", 12000);
    ASSERT_NE(get_current_, nullptr);
    context_ = current();
    void* flag = nullptr;
    ASSERT_EQ(cudaHostAlloc(&flag, sizeof *flag_, cudaHostAllocMapped), cudaSuccess);
    flag_ = static_cast<uint32_t*>(flag);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    load_kernels();
  }

  void TearDown() override {
    if (flag_ != nullptr) {
      *flag_ = 1;
    }
    if (device_ != nullptr) {
      close();
    }
    if (stream_ != nullptr) {
      EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    }
    if (flag_ != nullptr) {
      EXPECT_EQ(cudaFreeHost(flag_), cudaSuccess);
    }
    LoadedTest::TearDown();
  }

  // The engine's own: CUDA loads a kernel at its first launch, which may wait for the context.
  void load_kernels() {
    float* const floats = engine_floats(2);
    *flag_ = 1;
    ASSERT_EQ(launch_produce(stream_, floats, 1, 0), cudaSuccess);
    ASSERT_EQ(launch_consume(stream_, floats, floats + 1, 1), cudaSuccess);
    ASSERT_EQ(launch_gate(stream_, flag_, 1), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    ASSERT_EQ(cudaFree(floats), cudaSuccess);
  }

  // The driver's function of that name and version.
  template <class Function>
  static Function* driver(const char* name, unsigned int version) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status{};
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status),
              cudaSuccess);
    return reinterpret_cast<Function*>(found);
  }

  CUcontext current() const {
    CUcontext context = nullptr;
    EXPECT_EQ(get_current_(&context), CUDA_SUCCESS);
    return context;
  }

  // After a call: its result, and that the thread's context is still the engine's.
  void good(kvspan_result_t result, const char* what) {
    ASSERT_EQ(result, KVSPAN_OK) << what << ": " << error_.message;
    ASSERT_EQ(current(), context_) << what;
  }

  // Opens the engine's context, makes cache and workspace for `tokens`, and a fence.
  void open(uint32_t tokens, bool cache_is_engines) {
    good(native()->open(plugin_.self(), 0, as_integer(context_), &device_, &error_), "native.open");
    shape_ = {};
    shape_.struct_size = sizeof shape_;
    shape_.head_size_k = Layer::kHeadSize;
    shape_.head_size_v = Layer::kHeadSize;
    shape_.q_heads = Layer::kQueryHeads;
    shape_.kv_heads = Layer::kKvHeads;
    shape_.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
    shape_.rows_max = 1;
    shape_.entries_max = 1;
    shape_.items_max = 1024;
    shape_.spans_max = 4;
    shape_.tokens_max = tokens;
    caps_.struct_size = sizeof caps_;
    good(plugin_.attention()->query(device_, &shape_, &caps_, &error_), "attention.query");
    ASSERT_EQ(caps_.level, KVSPAN_LEVEL_NATIVE);
    rows_ = engine_floats(Layer::kRowsBytes / 4);
    good(native()->import_memory(
             device_, as_integer(rows_), Layer::kRowsBytes, &rows_memory_, &error_),
         "native.import_memory");
    cache_bytes_ = uint64_t{8} * Layer::kRowFloats * tokens;
    if (cache_is_engines) {
      cache_ = engine_floats(cache_bytes_ / 4);
      good(native()->import_memory(
               device_, as_integer(cache_), cache_bytes_, &cache_memory_, &error_),
           "native.import_memory");
    } else {
      cache_memory_ = alloc(cache_bytes_);
    }
    workspace_memory_ = alloc(caps_.run_workspace_bytes);
    good(plugin_.fence()->create(device_, 0, &fence_, &error_), "fence.create");
  }

  void close() {
    EXPECT_EQ(plugin_.fence()->destroy(fence_, &error_), KVSPAN_OK) << error_.message;
    for (kvspan_memory_t* memory : {rows_memory_, cache_memory_, workspace_memory_}) {
      EXPECT_EQ(plugin_.memory()->release(memory, &error_), KVSPAN_OK) << error_.message;
    }
    EXPECT_EQ(plugin_.device()->close(device_, &error_), KVSPAN_OK) << error_.message;
    EXPECT_EQ(current(), context_) << "the ends of all of them";
    device_ = nullptr;
    EXPECT_EQ(cudaFree(rows_), cudaSuccess) << "what was imported is still the engine's";
    EXPECT_EQ(cudaFree(cache_), cudaSuccess);
    cache_ = nullptr;
  }

  // The engine's own memory of the card.
  static float* engine_floats(uint64_t count) {
    void* made = nullptr;
    EXPECT_EQ(cudaMalloc(&made, 4 * count), cudaSuccess);
    return static_cast<float*>(made);
  }

  kvspan_memory_t* alloc(uint64_t bytes) {
    kvspan_memory_t* memory = nullptr;
    EXPECT_EQ(plugin_.memory()->alloc(device_, KVSPAN_MEMORY_DEVICE, bytes, &memory, &error_),
              KVSPAN_OK)
        << error_.message;
    return memory;
  }

  kvspan_queue_t* make_queue() {
    const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_COMPUTE, 0, 0};
    kvspan_queue_t* queue = nullptr;
    EXPECT_EQ(plugin_.queue()->create(device_, &options, &queue, &error_), KVSPAN_OK)
        << error_.message;
    return queue;
  }

  kvspan_rows_t rows_at(uint64_t offset, uint32_t heads) const {
    return {rows_memory_,
            offset,
            uint64_t{4} * heads * Layer::kHeadSize,
            uint64_t{4} * Layer::kHeadSize,
            KVSPAN_TYPE_F32,
            0};
  }

  kvspan_plane_t plane(bool is_v) const {
    const uint64_t row = uint64_t{4} * Layer::kRowFloats;
    return {cache_memory_,
            is_v ? cache_bytes_ / 2 : 0,
            0,
            row,
            uint64_t{4} * Layer::kHeadSize,
            nullptr,
            0,
            0};
  }

  void fill_round(uint32_t round, RoundArgs& made) const {
    for (const bool is_v : {false, true}) {
      made.items[is_v ? 1 : 0] = {
          rows_at(is_v ? Layer::kVOffset : Layer::kKOffset, Layer::kKvHeads),
          plane(is_v),
          round,
          KVSPAN_TYPE_F32,
          1,
          Layer::kKvHeads,
          Layer::kHeadSize};
    }
    const uint64_t tokens = uint64_t{round} + 1;
    const uint64_t granule = caps_.span_granule;
    const uint64_t each = (tokens + caps_.split_count - 1) / caps_.split_count;
    made.visible_end = tokens;
    made.span = {0, tokens, plane(false), plane(true)};
    made.entry = {};
    made.entry.spans = &made.span;
    made.entry.visible_end = &made.visible_end;
    made.entry.span_count = 1;
    made.entry.row_count = 1;
    made.entry.token_total = tokens;
    made.entry.split_tokens = (each + granule - 1) / granule * granule;
    made.entry.q = rows_at(Layer::kQOffset, Layer::kQueryHeads);
    made.entry.out = rows_at(Layer::kOutOffset, Layer::kQueryHeads);
    made.args = {};
    made.args.struct_size = sizeof made.args;
    made.args.entry_count = 1;
    made.args.shape = &shape_;
    made.args.entries = &made.entry;
    made.args.scale = 0.125f;
    made.args.workspace = {workspace_memory_, 0, caps_.run_workspace_bytes};
  }

  static kvspan_submit_t no_points() {
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    return submit;
  }

  static kvspan_submit_t signalling(const kvspan_point_t& point) {
    kvspan_submit_t submit = no_points();
    submit.signal_count = 1;
    submit.signals = &point;
    return submit;
  }

  void wait_for(uint64_t value) {
    const kvspan_point_t point{fence_, value};
    good(plugin_.fence()->wait(device_, &point, 1, KVSPAN_WAIT_ALL, kWaitNs, &error_),
         "fence.wait");
  }

  // The engine's stream is busy until open_gate().
  void close_gate() {
    *flag_ = 0;
    ASSERT_EQ(launch_gate(stream_, flag_, kGateNs), cudaSuccess);
  }

  void open_gate() { *static_cast<volatile uint32_t*>(flag_) = 1; }

  template <class Handle>
  static uint64_t as_integer(Handle handle) {
    return reinterpret_cast<uint64_t>(handle);
  }

  const kvspan_native_table_t* native() const { return plugin_.native(); }

  static constexpr uint64_t kWaitNs = 60'000'000'000;
  static constexpr uint64_t kGateNs = 20'000'000'000;

  CUresult (*get_current_)(CUcontext*) = nullptr;
  CUcontext context_ = nullptr;
  cudaStream_t stream_ = nullptr;
  uint32_t* flag_ = nullptr;
  kvspan_device_t* device_ = nullptr;
  kvspan_fence_t* fence_ = nullptr;
  kvspan_memory_t* rows_memory_ = nullptr;
  kvspan_memory_t* cache_memory_ = nullptr;
  kvspan_memory_t* workspace_memory_ = nullptr;
  float* rows_ = nullptr;
  float* cache_ = nullptr;
  uint64_t cache_bytes_ = 0;
  kvspan_attention_shape_t shape_ = {};
  kvspan_attention_caps_t caps_ = {};
  kvspan_error_t error_ = no_error();
};

}  // namespace kvspan::cuda
