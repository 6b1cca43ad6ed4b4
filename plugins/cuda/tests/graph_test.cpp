// SPDX-License-Identifier: Apache-2.0
// On a card: the graph table. A launch has the bits of the submits it recorded, with new arguments
// those of the submits that carry these; recordings take no copies and no points; launches in
// flight keep theirs; memories of a graph stay.
#include "engine.hpp"

#include <cstring>
#include <string>

namespace kvspan::cuda {
namespace {

class GraphTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    if (!HasFatalFailure() && !IsSkipped()) {
      graph_ = static_cast<const kvspan_graph_table_t*>(plugin_.draft(KVSPAN_TABLE_GRAPH));
      ASSERT_NE(graph_, nullptr);
    }
  }

  void start(uint32_t tokens) {
    open(tokens, false);
    queue_ = make_queue();
  }

  void finish() { EXPECT_EQ(plugin_.queue()->destroy(queue_, &error_), KVSPAN_OK); }

  void begin(uint32_t launches_max) {
    const kvspan_graph_options_t options{sizeof options, launches_max};
    good(graph_->begin(queue_, &options, &error_), "graph.begin");
  }

  // Encode and run of a round, recorded.
  kvspan_graph_t* record(uint32_t round, uint32_t launches_max) {
    RoundArgs made;
    fill_round(round, made);
    const kvspan_submit_t plain = no_points();
    begin(launches_max);
    good(plugin_.codec()->encode(queue_, made.items, 2, &plain, &error_), "codec.encode");
    good(plugin_.attention()->run(queue_, &made.args, &plain, &error_), "attention.run");
    kvspan_graph_t* graph = nullptr;
    EXPECT_EQ(graph_->end(queue_, &graph, &error_), KVSPAN_OK) << error_.message;
    return graph;
  }

  void destroy(kvspan_graph_t* graph) {
    EXPECT_EQ(graph_->destroy(graph, &error_), KVSPAN_OK) << error_.message;
  }

  static void arguments_of(const RoundArgs& made, kvspan_graph_arguments_t (&arguments)[2]) {
    arguments[0] = {KVSPAN_GRAPH_ENCODE, 2, nullptr, made.items};
    arguments[1] = {KVSPAN_GRAPH_RUN, 0, &made.args, nullptr};
  }

  kvspan_result_t launch(kvspan_graph_t* graph, const RoundArgs& made, uint64_t value) {
    kvspan_graph_arguments_t arguments[2];
    arguments_of(made, arguments);
    const kvspan_point_t point{fence_, value};
    const kvspan_submit_t submit = signalling(point);
    return graph_->launch(queue_, graph, arguments, 2, &submit, &error_);
  }

  kvspan_result_t launch_again(kvspan_graph_t* graph, uint64_t value) {
    const kvspan_point_t point{fence_, value};
    const kvspan_submit_t submit = signalling(point);
    return graph_->launch(queue_, graph, nullptr, 0, &submit, &error_);
  }

  void produce(uint32_t round) {
    ASSERT_EQ(launch_produce(stream_, rows_, Layer::kRoundFloats, round), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  std::vector<float> output() const {
    std::vector<float> out(Layer::kQueryFloats);
    EXPECT_EQ(
        cudaMemcpy(
            out.data(), rows_ + Layer::kOutOffset / 4, 4 * out.size(), cudaMemcpyDeviceToHost),
        cudaSuccess);
    return out;
  }

  void poison_output() {
    ASSERT_EQ(cudaMemset(rows_ + Layer::kOutOffset / 4, 0xff, 4 * Layer::kQueryFloats),
              cudaSuccess);
  }

  // What direct submits give in the rounds 0..rounds - 1.
  std::vector<std::vector<float>> direct(uint32_t rounds) {
    std::vector<std::vector<float>> outputs;
    for (uint32_t round = 0; round < rounds; ++round) {
      produce(round);
      RoundArgs made;
      fill_round(round, made);
      const kvspan_submit_t plain = no_points();
      const kvspan_point_t point{fence_, ++value_};
      const kvspan_submit_t last = signalling(point);
      good(plugin_.codec()->encode(queue_, made.items, 2, &plain, &error_), "codec.encode");
      good(plugin_.attention()->run(queue_, &made.args, &last, &error_), "attention.run");
      wait_for(value_);
      outputs.push_back(output());
    }
    return outputs;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
  }

  const kvspan_graph_table_t* graph_ = nullptr;
  kvspan_queue_t* queue_ = nullptr;
  uint64_t value_ = 0;
};

TEST_F(GraphTest, LaunchesHaveTheBitsOfDirectSubmits) {
  constexpr uint32_t kRounds = 600;
  start(kRounds);
  const std::vector<std::vector<float>> wanted = direct(kRounds);
  ASSERT_LE(error_of(wanted[kRounds - 1].data(), kRounds - 1), 1e-5);
  kvspan_memory_t* const cache = cache_memory_;
  const kvspan_point_t cleared{fence_, ++value_};
  const kvspan_submit_t submit = signalling(cleared);
  const kvspan_range_t range{cache, 0, cache_bytes_};
  good(plugin_.copy()->fill(queue_, &range, 0xff, 1, &submit, &error_), "copy.fill");
  wait_for(value_);
  kvspan_graph_t* const graph = record(0, 0);
  ASSERT_NE(graph, nullptr);
  for (uint32_t round = 0; round < kRounds; ++round) {
    produce(round);
    poison_output();
    RoundArgs made;
    fill_round(round, made);
    good(launch(graph, made, ++value_), "graph.launch");
    wait_for(value_);
    ASSERT_TRUE(same_bits(output(), wanted[round])) << "round " << round;
  }
  poison_output();
  good(launch_again(graph, ++value_), "graph.launch");
  wait_for(value_);
  EXPECT_TRUE(same_bits(output(), wanted[kRounds - 1])) << "without arguments: the last ones";
  destroy(graph);
  finish();
}

TEST_F(GraphTest, TheFirstLaunchIsWhatWasRecorded) {
  start(4);
  const std::vector<std::vector<float>> wanted = direct(2);
  poison_output();
  kvspan_graph_t* const graph = record(1, 0);
  EXPECT_FALSE(same_bits(output(), wanted[1])) << "recording runs nothing";
  good(launch_again(graph, ++value_), "graph.launch");
  good(launch_again(graph, ++value_), "graph.launch");
  wait_for(value_);
  EXPECT_TRUE(same_bits(output(), wanted[1]));
  destroy(graph);
  finish();
}

// Launches behind the gate: their arguments wait with them, and nothing of them is used twice.
TEST_F(GraphTest, LaunchesInFlightKeepTheirArguments) {
  constexpr uint32_t kLaunches = 3;
  start(8);
  const std::vector<std::vector<float>> wanted = direct(kLaunches);
  kvspan_graph_t* const graph = record(0, kLaunches);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  float* const outputs = engine_floats(uint64_t{kLaunches} * Layer::kQueryFloats);
  close_gate();
  const kvspan_submit_t plain = no_points();
  RoundArgs made;
  for (uint32_t round = 0; round < kLaunches; ++round) {
    ASSERT_EQ(launch_produce(stream_, rows_, Layer::kRoundFloats, round), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    good(native()->import_point(queue_, as_integer(event), 0, &plain, &error_), "import_point");
    fill_round(round, made);
    good(launch(graph, made, ++value_), "graph.launch");
    const kvspan_point_t point{fence_, value_};
    good(native()->export_point(device_, &point, as_integer(stream_), &error_), "export_point");
    ASSERT_EQ(launch_consume(stream_,
                             rows_ + Layer::kOutOffset / 4,
                             outputs + uint64_t{round} * Layer::kQueryFloats,
                             Layer::kQueryFloats),
              cudaSuccess);
  }
  EXPECT_EQ(launch(graph, made, value_ + 1), KVSPAN_E_QUEUE_FULL) << "no more fit";
  EXPECT_EQ(error_.required, kLaunches + 1);
  EXPECT_EQ(graph_->destroy(graph, &error_), KVSPAN_E_BUSY);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady) << "somebody waited";
  open_gate();
  wait_for(value_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  std::vector<float> read(kLaunches * Layer::kQueryFloats);
  ASSERT_EQ(cudaMemcpy(read.data(), outputs, 4 * read.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  for (uint32_t round = 0; round < kLaunches; ++round) {
    const auto from = read.begin() + round * Layer::kQueryFloats;
    EXPECT_TRUE(same_bits({from, from + Layer::kQueryFloats}, wanted[round])) << round;
  }
  EXPECT_EQ(cudaFree(outputs), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  destroy(graph);
  finish();
}

TEST_F(GraphTest, RecordingTakesNoCopyAndNoPointAndGoesOn) {
  start(4);
  const std::vector<std::vector<float>> wanted = direct(1);
  RoundArgs made;
  fill_round(0, made);
  const kvspan_submit_t plain = no_points();
  const kvspan_point_t point{fence_, value_ + 1};
  const kvspan_submit_t signals = signalling(point);
  begin(0);
  const kvspan_graph_options_t options{sizeof options, 0};
  EXPECT_EQ(graph_->begin(queue_, &options, &error_), KVSPAN_E_BUSY);
  const kvspan_segment_t segment{cache_memory_, rows_memory_, 0, 0, 64, 1, 0, 0};
  EXPECT_EQ(plugin_.copy()->copy(queue_, &segment, 1, &plain, &error_), KVSPAN_E_UNSUPPORTED);
  EXPECT_NE(std::string(error_.message).find("recording"), std::string::npos) << error_.message;
  EXPECT_EQ(plugin_.codec()->encode(queue_, made.items, 2, &signals, &error_),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(plugin_.queue()->destroy(queue_, &error_), KVSPAN_E_BUSY);
  good(plugin_.codec()->encode(queue_, made.items, 2, &plain, &error_), "codec.encode");
  good(plugin_.attention()->run(queue_, &made.args, &plain, &error_), "attention.run");
  kvspan_graph_t* graph = nullptr;
  good(graph_->end(queue_, &graph, &error_), "graph.end");
  kvspan_graph_t* none = nullptr;
  EXPECT_EQ(graph_->end(queue_, &none, &error_), KVSPAN_E_INVALID_ARG);
  poison_output();
  good(launch_again(graph, ++value_), "graph.launch");
  wait_for(value_);
  EXPECT_TRUE(same_bits(output(), wanted[0]));
  destroy(graph);
  finish();
}

TEST_F(GraphTest, RefusedArgumentsChangeNothing) {
  start(64);
  const std::vector<std::vector<float>> wanted = direct(40);
  kvspan_graph_t* const graph = record(39, 0);
  RoundArgs made;
  fill_round(20, made);
  kvspan_graph_arguments_t arguments[2];
  arguments_of(made, arguments);
  const kvspan_point_t point{fence_, value_ + 1};
  const kvspan_submit_t submit = signalling(point);
  const auto refused = [&](kvspan_result_t wanted_code) {
    poison_output();
    EXPECT_EQ(graph_->launch(queue_, graph, arguments, 2, &submit, &error_), wanted_code)
        << error_.message;
    good(launch_again(graph, ++value_), "graph.launch");
    wait_for(value_);
    EXPECT_TRUE(same_bits(output(), wanted[39]));
    arguments_of(made, arguments);
  };
  made.visible_end = 65;  // more than there is
  refused(KVSPAN_E_INVALID_ARG);
  made.visible_end = 21;
  arguments[1].kind = KVSPAN_GRAPH_DECODE;
  refused(KVSPAN_E_INVALID_ARG);
  arguments[0].kind = KVSPAN_GRAPH_DECODE;
  refused(KVSPAN_E_INVALID_ARG);
  arguments[0].kind = 77;
  refused(KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(graph_->launch(queue_, graph, arguments, 1, &submit, &error_), KVSPAN_E_INVALID_ARG);
  destroy(graph);
  finish();
}

TEST_F(GraphTest, MemoriesOfAGraphStay) {
  start(4);
  kvspan_graph_t* const graph = record(0, 0);
  EXPECT_EQ(plugin_.memory()->release(workspace_memory_, &error_), KVSPAN_E_BUSY);
  EXPECT_EQ(plugin_.device()->close(device_, &error_), KVSPAN_E_BUSY);
  destroy(graph);
  kvspan_memory_t* const more = alloc(64);
  EXPECT_EQ(plugin_.memory()->release(workspace_memory_, &error_), KVSPAN_OK) << error_.message;
  workspace_memory_ = more;
  finish();
}

TEST_F(GraphTest, CountersCountWhatRanNotWhatWasRecorded) {
  start(4);
  const auto launches = [&] {
    kvspan_debug_counters_t counters{};
    counters.struct_size = sizeof counters;
    EXPECT_EQ(plugin_.debug()->counters(device_, &counters, &error_), KVSPAN_OK);
    return counters.launches;
  };
  const uint64_t before = launches();
  kvspan_graph_t* const graph = record(0, 0);
  EXPECT_EQ(launches(), before);
  good(launch_again(graph, ++value_), "graph.launch");
  wait_for(value_);
  EXPECT_GE(launches(), before + 2) << "encode and run are a kernel each at least";
  destroy(graph);
  finish();
}

}  // namespace
}  // namespace kvspan::cuda
