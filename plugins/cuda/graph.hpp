// SPDX-License-Identifier: Apache-2.0
// A graph: submits recorded once and launched often. It is kept several times over, an *instance*
// for each launch that may be in flight: slabs with the arguments of every submit, which kernels
// read in place, and an executable of CUDA whose kernels know these slabs. A launch with new
// arguments takes an instance that is not running and fills its slabs anew, by the slots
// themselves: the queue hands their tasks to a Recorder. What the kernels were started with stays,
// unless the bytes that it depends on have changed (Packet::body_bytes). Read next: graph.cpp (the
// table), record.cpp (what is kept of a submit), launch.cpp.
#pragma once

#include "kvspan/graph.h"

#include "queue.hpp"

#include <cstdint>

namespace kvspan::cuda {

inline constexpr uint32_t kGraphInstancesMax = 8;
inline constexpr uint32_t kGraphNodesMax = 4;  // kernels of one submit

// Takes the tasks that are submitted to a queue instead of its stream.
class Recorder {
 public:
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  Recorder(Recorder&&) = delete;
  Recorder& operator=(Recorder&&) = delete;
  virtual ~Recorder() = default;

  virtual kvspan_result_t take(Task& task,
                               const kvspan_submit_t& submit,
                               uint32_t argument,
                               kvspan_error_t* error,
                               const char* where) = 0;
};

// One submit in one instance.
struct Placed {
  Slab slab;
  Memory** memories = nullptr;  // [memory_count] in the slab, each pinned
  uint64_t memory_count = 0;
  cudaError_t (*issue)(const Issue& issue, const void* body) = nullptr;
  const void* body = nullptr;  // in the slab
  uint64_t body_bytes = 0;     // 0 = what the nodes were made of is not known
  Block made_of;               // the body's bytes when the nodes were made
  cudaGraphNode_t nodes[kGraphNodesMax] = {};
  uint32_t node_count = 0;
};

// One submit in all instances.
struct Recorded {
  const char* where = "";  // the slot's name
  bool changed = false;    // some instance holds other arguments than the recorded ones
  Placed placed[kGraphInstancesMax];
  Recorded* next = nullptr;
};

struct GraphInstance {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t last = nullptr;  // of its chain
  cudaGraphExec_t executable = nullptr;
  uint64_t launches = 0;  // pending; guarded by the device's mutex
};

struct Graph {
  explicit Graph(Device& owner) : device(owner) {}

  Device& device;
  GraphInstance instances[kGraphInstancesMax];
  uint32_t instance_count = 0;
  uint32_t last_instance = 0;  // of the last launch, at first as recorded
  uint32_t submit_count = 0;
  uint64_t kernel_count = 0;
  Recorded* first = nullptr;       // in the order of recording
  cudaStream_t scratch = nullptr;  // kernels are recorded on it, never run
};

// record.cpp. Fills a slab with the task's arguments, which kernels then read, and pins
// their memories; what it held before is let go. `reserve` bytes of slab at least.
kvspan_result_t place_submit(Graph& graph,
                             Placed& placed,
                             Task& task,
                             uint64_t reserve,
                             kvspan_error_t* error,
                             const char* where);

// Appends the submit's kernels to an instance that has no executable yet.
kvspan_result_t append_kernels(Graph& graph,
                               GraphInstance& instance,
                               Placed& placed,
                               kvspan_error_t* error,
                               const char* where);

// Gives an instance's executable what the submit's kernels need now, where that changed.
kvspan_result_t renew_kernels(Graph& graph,
                              GraphInstance& instance,
                              Placed& placed,
                              kvspan_error_t* error,
                              const char* where);

// launch.cpp. A checked launch: `count` is 0, or as many as were recorded.
kvspan_result_t launch_graph(Queue& queue,
                             Graph& graph,
                             const kvspan_graph_arguments_t* arguments,
                             uint32_t count,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error);

// Lets memories and slab go. The context is current.
void clear_placed(Graph& graph, Placed& placed);

// Ends what a queue records; without `keep_graph` nothing is left of it. graph.cpp.
void end_recording(Queue& queue, bool keep_graph);

inline Graph* graph_of(kvspan_graph_t* handle) {
  return reinterpret_cast<Graph*>(handle);
}

inline kvspan_graph_t* handle_of(Graph* graph) {
  return reinterpret_cast<kvspan_graph_t*>(graph);
}

}  // namespace kvspan::cuda
