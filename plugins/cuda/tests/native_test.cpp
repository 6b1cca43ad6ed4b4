// SPDX-License-Identifier: Apache-2.0
// On a card: an engine's context, memory, stream and events beside our queues. Kernels of both take
// turns without the host in between, which a gate proves: while it keeps the engine's stream busy,
// rounds are submitted and none is reached.
#include "engine.hpp"

namespace kvspan::cuda {
namespace {

constexpr double kErrorMax = 1e-5;  // class E0, values within (-1, 1)

class NativeTest : public EngineTest {
 protected:
  // Outputs of all rounds, as the engine's own kernel read them.
  void expect_outputs(const float* outputs, uint32_t rounds) {
    std::vector<float> read(uint64_t{rounds} * Layer::kQueryFloats);
    ASSERT_EQ(cudaMemcpy(read.data(), outputs, 4 * read.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    double worst = 0;
    for (uint32_t round = 0; round < rounds; ++round) {
      const double error = error_of(read.data() + uint64_t{round} * Layer::kQueryFloats, round);
      ASSERT_LE(error, kErrorMax) << "round " << round;
      worst = error > worst ? error : worst;
    }
    RecordProperty("largest_error", std::to_string(worst));
  }

  // One round in which the engine's event and our point order both sides.
  void take_turns(kvspan_queue_t* queue, cudaEvent_t event, uint32_t round, float* outputs) {
    RoundArgs made;
    fill_round(round, made);
    const kvspan_submit_t plain = no_points();
    const kvspan_point_t point{fence_, uint64_t{round} + 1};
    const kvspan_submit_t last = signalling(point);
    ASSERT_EQ(launch_produce(stream_, rows_, Layer::kRoundFloats, round), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    good(native()->import_point(queue, as_integer(event), 0, &plain, &error_),
         "native.import_point");
    good(plugin_.codec()->encode(queue, made.items, 2, &plain, &error_), "codec.encode");
    good(plugin_.attention()->run(queue, &made.args, &last, &error_), "attention.run");
    good(native()->export_point(device_, &point, as_integer(stream_), &error_),
         "native.export_point");
    const float* const out = rows_ + Layer::kOutOffset / 4;
    ASSERT_EQ(
        launch_consume(
            stream_, out, outputs + uint64_t{round} * Layer::kQueryFloats, Layer::kQueryFloats),
        cudaSuccess);
  }

  void alternate(bool cache_is_engines) {
    constexpr uint32_t kRounds = 1000;
    constexpr uint32_t kGated = 12;  // CUDA itself holds its caller up at about 18 such rounds
    open(kRounds, cache_is_engines);
    kvspan_queue_t* const queue = make_queue();
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    float* const outputs = engine_floats(uint64_t{kRounds} * Layer::kQueryFloats);
    close_gate();
    for (uint32_t round = 0; round < kRounds; ++round) {
      take_turns(queue, event, round, outputs);
      if (HasFatalFailure()) {
        return;
      }
      if (round + 1 == kGated) {
        uint64_t value = 1;
        good(plugin_.fence()->query(fence_, &value, &error_), "fence.query");
        EXPECT_EQ(value, 0u) << "reached before the engine's stream had come so far";
        EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady) << "somebody waited for the gate";
        open_gate();
      }
      if (round >= kGated) {  // room in the queue, far behind what runs
        wait_for(round + 1 - kGated);
      }
    }
    wait_for(kRounds);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    expect_outputs(outputs, kRounds);
    EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaFree(outputs), cudaSuccess);
  }

  // Everything on the engine's stream, without a point.
  void share_stream(cudaStream_t stream, uint64_t handle) {
    constexpr uint32_t kRounds = 200;
    open(kRounds, false);
    kvspan_queue_t* queue = nullptr;
    good(native()->import_queue(device_, handle, &queue, &error_), "native.import_queue");
    float* const outputs = engine_floats(uint64_t{kRounds} * Layer::kQueryFloats);
    for (uint32_t round = 0; round < kRounds; ++round) {
      RoundArgs made;
      fill_round(round, made);
      const kvspan_point_t point{fence_, uint64_t{round} + 1};
      const kvspan_submit_t plain = no_points();
      const kvspan_submit_t last = signalling(point);
      ASSERT_EQ(launch_produce(stream, rows_, Layer::kRoundFloats, round), cudaSuccess);
      good(plugin_.codec()->encode(queue, made.items, 2, &plain, &error_), "codec.encode");
      good(plugin_.attention()->run(queue, &made.args, &last, &error_), "attention.run");
      ASSERT_EQ(launch_consume(stream,
                               rows_ + Layer::kOutOffset / 4,
                               outputs + uint64_t{round} * Layer::kQueryFloats,
                               Layer::kQueryFloats),
                cudaSuccess);
      if (HasFatalFailure()) {
        return;
      }
      if (round >= 40) {
        wait_for(round - 39);
      }
    }
    wait_for(kRounds);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expect_outputs(outputs, kRounds);
    EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << "the stream is still the engine's";
    EXPECT_EQ(cudaFree(outputs), cudaSuccess);
  }
};

TEST_F(NativeTest, EngineAndQueueTakeTurnsWithoutTheHost) {
  alternate(false);
}

TEST_F(NativeTest, TheCacheMayBeTheEnginesToo) {
  alternate(true);
}

TEST_F(NativeTest, WorkLandsAmongTheEnginesOwn) {
  share_stream(stream_, as_integer(stream_));
}

TEST_F(NativeTest, TheLegacyStreamCanBeImported) {
  share_stream(cudaStreamLegacy, 0);
}

TEST_F(NativeTest, ImportedQueuesTakeNoCopiesAndWorkOn) {
  open(8, false);
  kvspan_queue_t* queue = nullptr;
  good(native()->import_queue(device_, as_integer(stream_), &queue, &error_),
       "native.import_queue");
  const kvspan_submit_t plain = no_points();
  const kvspan_segment_t segment{cache_memory_, cache_memory_, 0, 1024, 64, 1, 0, 0};
  EXPECT_EQ(plugin_.copy()->copy(queue, &segment, 1, &plain, &error_), KVSPAN_E_UNSUPPORTED);
  EXPECT_NE(std::string(error_.message).find("engine"), std::string::npos) << error_.message;
  const kvspan_point_t point{fence_, 1};
  const kvspan_submit_t last = signalling(point);
  const kvspan_range_t range{cache_memory_, 0, 64};
  good(plugin_.copy()->fill(queue, &range, 0, 4, &last, &error_), "copy.fill");
  wait_for(1);
  EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
}

// An engine records its stream into a graph: our submits say no at once and do not spoil it.
TEST_F(NativeTest, TheEnginesOwnRecordingGoesOn) {
  open(8, false);
  kvspan_queue_t* queue = nullptr;
  good(native()->import_queue(device_, as_integer(stream_), &queue, &error_),
       "native.import_queue");
  kvspan_queue_t* const own = make_queue();
  RoundArgs made;
  fill_round(0, made);
  const kvspan_submit_t plain = no_points();
  const kvspan_point_t point{fence_, 1};
  const kvspan_submit_t signals = signalling(point);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(launch_produce(stream_, rows_, Layer::kRoundFloats, 0), cudaSuccess);
  EXPECT_EQ(plugin_.codec()->encode(queue, made.items, 2, &plain, &error_), KVSPAN_E_UNSUPPORTED);
  EXPECT_EQ(native()->export_point(device_, &point, as_integer(stream_), &error_),
            KVSPAN_E_UNSUPPORTED);
  // What needs memory, and a settling thread, would spoil a recording if they did it plainly.
  good(plugin_.codec()->encode(own, made.items, 2, &signals, &error_), "codec.encode");
  wait_for(1);
  kvspan_memory_t* const memory = alloc(uint64_t{1} << 20);
  EXPECT_EQ(plugin_.memory()->release(memory, &error_), KVSPAN_OK);
  ASSERT_EQ(launch_produce(stream_, rows_, Layer::kRoundFloats, 1), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess) << "the recording was spoilt";
  std::size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2u) << "the engine's own kernels and nothing else";
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(plugin_.queue()->destroy(own, &error_), KVSPAN_OK);
  EXPECT_EQ(plugin_.queue()->destroy(queue, &error_), KVSPAN_OK);
}

// Neither memory nor queues nor fences wait for what the engine runs.
TEST_F(NativeTest, NothingWaitsForTheEnginesStream) {
  open(8, false);
  close_gate();
  kvspan_queue_t* const queue = make_queue();
  kvspan_memory_t* const memory = alloc(uint64_t{64} << 20);
  const kvspan_point_t point{fence_, 1};
  const kvspan_submit_t signals = signalling(point);
  const kvspan_range_t range{memory, 0, uint64_t{64} << 20};
  good(plugin_.copy()->fill(queue, &range, 7, 1, &signals, &error_), "copy.fill");
  wait_for(1);
  good(plugin_.memory()->release(memory, &error_), "memory.release");
  good(plugin_.queue()->destroy(queue, &error_), "queue.destroy");
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady) << "one of these waited for the engine";
  open_gate();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

// Opening and closing neither.
TEST_F(NativeTest, DevicesComeAndGoBesideTheEnginesWork) {
  open(8, false);
  close_gate();
  kvspan_device_t* second = nullptr;
  kvspan_queue_t* queue = nullptr;
  kvspan_memory_t* memory = nullptr;
  kvspan_fence_t* fence = nullptr;
  const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_COMPUTE, 0, 0};
  good(native()->open(plugin_.self(), 0, as_integer(context_), &second, &error_), "native.open");
  good(plugin_.queue()->create(second, &options, &queue, &error_), "queue.create");
  good(plugin_.fence()->create(second, 0, &fence, &error_), "fence.create");
  good(plugin_.memory()->alloc(second, KVSPAN_MEMORY_DEVICE, 4096, &memory, &error_), "alloc");
  const kvspan_point_t point{fence, 1};
  const kvspan_submit_t signals = signalling(point);
  const kvspan_range_t range{memory, 0, 4096};
  good(plugin_.copy()->fill(queue, &range, 7, 1, &signals, &error_), "copy.fill");
  good(plugin_.fence()->wait(second, &point, 1, KVSPAN_WAIT_ALL, kWaitNs, &error_), "fence.wait");
  good(plugin_.queue()->destroy(queue, &error_), "queue.destroy");
  good(plugin_.fence()->destroy(fence, &error_), "fence.destroy");
  good(plugin_.memory()->release(memory, &error_), "memory.release");
  good(plugin_.device()->close(second, &error_), "device.close");
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady) << "one of these waited for the engine";
  open_gate();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(NativeTest, APointThatFailedHoldsNobody) {
  open(8, false);
  good(plugin_.fence()->fail(fence_, KVSPAN_E_CANCELLED, &error_), "fence.fail");
  const kvspan_point_t point{fence_, 1};
  EXPECT_EQ(native()->export_point(device_, &point, as_integer(stream_), &error_),
            KVSPAN_E_CANCELLED);
  EXPECT_EQ(error_.flags, KVSPAN_ERROR_ASYNC);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(NativeTest, SaysNoToWhatIsNotTheEngines) {
  open(8, false);
  kvspan_queue_t* queue = nullptr;
  kvspan_memory_t* memory = nullptr;
  kvspan_device_t* other = nullptr;
  const kvspan_submit_t plain = no_points();
  kvspan_queue_t* const own = make_queue();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const auto no = [&](kvspan_result_t result, uint32_t argument) {
    EXPECT_EQ(result, KVSPAN_E_INVALID_ARG) << error_.message;
    EXPECT_EQ(error_.argument, argument) << error_.message;
    EXPECT_EQ(current(), context_);
  };
  no(native()->open(plugin_.self(), 0, 0, &other, &error_), 3);
  no(native()->import_memory(device_, as_integer(rows_) + 4, 64, &memory, &error_), 2);
  no(native()->import_memory(device_, as_integer(flag_), 64, &memory, &error_), 2);
  no(native()->import_memory(device_, as_integer(rows_), uint64_t{1} << 45, &memory, &error_), 2);
  no(native()->import_memory(device_, 0, 64, &memory, &error_), 2);
  no(native()->import_queue(device_, as_integer(cudaStreamPerThread), &queue, &error_), 2);
  no(native()->import_point(own, 0, 0, &plain, &error_), 2);
  no(native()->import_point(own, as_integer(event), 1, &plain, &error_), 3);
  no(native()->export_point(device_, nullptr, as_integer(stream_), &error_), 2);
  const kvspan_point_t nobodys{fence_, 5};
  EXPECT_EQ(native()->export_point(device_, &nobodys, as_integer(stream_), &error_),
            KVSPAN_E_UNSUPPORTED);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(queue, nullptr);
  EXPECT_EQ(other, nullptr);
  good(native()->import_memory(device_, 0, 0, &memory, &error_), "no bytes are a memory");
  EXPECT_EQ(plugin_.memory()->release(memory, &error_), KVSPAN_OK);
  // Never recorded counts as reached: CUDA's events say so.
  const kvspan_point_t point{fence_, 1};
  const kvspan_submit_t signals = signalling(point);
  good(native()->import_point(own, as_integer(event), 0, &signals, &error_), "import_point");
  wait_for(1);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(plugin_.queue()->destroy(own, &error_), KVSPAN_OK);
}

// A context that is not the card's primary one: used as it is, and the engine's afterwards.
TEST_F(NativeTest, AnyContextOfTheDeviceWillDo) {
  auto* const create = driver<CUresult(CUcontext*, unsigned int, CUdevice)>("cuCtxCreate", 3020);
  auto* const destroy = driver<CUresult(CUcontext)>("cuCtxDestroy", 4000);
  auto* const set_current = driver<CUresult(CUcontext)>("cuCtxSetCurrent", 12000);
  ASSERT_NE(create, nullptr);
  auto* const primary = context_;
  CUcontext made = nullptr;
  ASSERT_EQ(create(&made, 0, 0), CUDA_SUCCESS);
  context_ = made;
  ASSERT_EQ(current(), made);
  kvspan_queue_t* queue = nullptr;
  open(8, false);
  if (!HasFatalFailure()) {
    // The stream that the fixture made is of the primary context.
    EXPECT_EQ(native()->import_queue(device_, as_integer(stream_), &queue, &error_),
              KVSPAN_E_INVALID_ARG);
    kvspan_queue_t* const own = make_queue();
    ASSERT_EQ(launch_produce(nullptr, rows_, Layer::kRoundFloats, 0), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    RoundArgs round;
    fill_round(0, round);
    const kvspan_submit_t plain = no_points();
    const kvspan_point_t point{fence_, 1};
    const kvspan_submit_t signals = signalling(point);
    good(plugin_.codec()->encode(own, round.items, 2, &plain, &error_), "codec.encode");
    good(plugin_.attention()->run(own, &round.args, &signals, &error_), "attention.run");
    wait_for(1);
    float out[Layer::kQueryFloats] = {};
    ASSERT_EQ(cudaMemcpy(out, rows_ + Layer::kOutOffset / 4, sizeof out, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_LE(error_of(out, 0), kErrorMax);
    EXPECT_EQ(plugin_.queue()->destroy(own, &error_), KVSPAN_OK);
    close();
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "the context works on";
  EXPECT_EQ(set_current(primary), CUDA_SUCCESS);
  EXPECT_EQ(destroy(made), CUDA_SUCCESS);
  context_ = primary;
}

}  // namespace
}  // namespace kvspan::cuda
