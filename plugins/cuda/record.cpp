// SPDX-License-Identifier: Apache-2.0
// What a graph keeps of a submit: its arguments in a slab, its kernels as nodes. CUDA records a
// submit's kernels on a stream that runs nothing; their parameters then go to the instance's own
// graph. Read first: graph.hpp.
#include "kvspan/sdk/error.hpp"

#include "graph.hpp"
#include "layout.hpp"

#include <cstring>

namespace kvspan::cuda {

namespace {

// Kernels in the order in which they were started; `graph` owns the parameters.
struct Traced {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t nodes[kGraphNodesMax] = {};
  cudaKernelNodeParams params[kGraphNodesMax] = {};
  uint32_t count = 0;

  Traced() = default;
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;
  Traced(Traced&&) = delete;
  Traced& operator=(Traced&&) = delete;

  ~Traced() {
    if (graph != nullptr) {
      cudaGraphDestroy(graph);
    }
  }
};

// The node behind `node`, or the first one where that is nullptr; nullptr: there is none.
cudaError_t next_node(const Traced& traced, cudaGraphNode_t node, cudaGraphNode_t& found) {
  cudaGraphNode_t after[kGraphNodesMax] = {};
  cudaGraphEdgeData edges[kGraphNodesMax] = {};
  std::size_t count = kGraphNodesMax;
  const cudaError_t bad = node == nullptr
                              ? cudaGraphGetRootNodes(traced.graph, after, &count)
                              : cudaGraphNodeGetDependentNodes(node, after, edges, &count);
  found = bad == cudaSuccess && count != 0 ? after[0] : nullptr;
  return bad == cudaSuccess && count > 1 ? cudaErrorNotSupported : bad;
}

cudaError_t read_nodes(Traced& traced) {
  cudaGraphNode_t node = nullptr;
  cudaError_t bad = next_node(traced, nullptr, node);
  while (bad == cudaSuccess && node != nullptr) {
    cudaGraphNodeType type = cudaGraphNodeTypeCount;
    bad = cudaGraphNodeGetType(node, &type);
    if (bad == cudaSuccess && (type != cudaGraphNodeTypeKernel || traced.count == kGraphNodesMax)) {
      return cudaErrorNotSupported;
    }
    if (bad == cudaSuccess) {
      bad = cudaGraphKernelNodeGetParams(node, &traced.params[traced.count]);
      traced.nodes[traced.count++] = node;
    }
    bad = bad == cudaSuccess ? next_node(traced, node, node) : bad;
  }
  return bad;
}

cudaError_t trace(Graph& graph, const Placed& placed, Traced& traced) {
  cudaError_t bad = cudaStreamBeginCapture(graph.scratch, cudaStreamCaptureModeRelaxed);
  if (bad != cudaSuccess) {
    return bad;
  }
  bad = placed.issue({graph.device, graph.scratch, {}, nullptr}, placed.body);
  const cudaError_t ended = cudaStreamEndCapture(graph.scratch, &traced.graph);
  bad = bad != cudaSuccess ? bad : ended;
  bad = bad == cudaSuccess ? read_nodes(traced) : bad;
  // Counted as if they had been started.
  graph.device.counters.launches.fetch_sub(traced.count, std::memory_order_relaxed);
  return bad;
}

void pin(Placed& placed, uint64_t change) {
  for (uint64_t i = 0; i < placed.memory_count; ++i) {
    placed.memories[i]->pins.fetch_add(change, std::memory_order_relaxed);
  }
}

// On a lost device memories may be gone before the graph is.
void let_go(Graph& graph, Placed& placed) {
  const std::lock_guard lock(graph.device.mutex);
  if (!graph.device.lost) {
    pin(placed, UINT64_MAX);  // minus 1
  }
  placed.memory_count = 0;
}

// Remembers what the nodes were made of.
void remember(Graph& graph, Placed& placed) {
  if (placed.made_of.bytes() != placed.body_bytes) {
    placed.made_of = Block::of(graph.device.host, placed.body_bytes);
  }
  if (placed.made_of.bytes() == placed.body_bytes && placed.body_bytes != 0) {
    std::memcpy(placed.made_of.data(), placed.body, placed.body_bytes);
  }
}

kvspan_result_t report_trace(Device& device,
                             cudaError_t bad,
                             kvspan_error_t* error,
                             const char* where) {
  return bad == cudaErrorNotSupported
             ? sdk::fail_reasons(error,
                                 where,
                                 0,
                                 "this work is more than kernels in a row, which a "
                                 "graph does not record: submit it directly")
             : report_call(device, bad, "recording kernels", error, where);
}

}  // namespace

kvspan_result_t place_submit(Graph& graph,
                             Placed& placed,
                             Task& task,
                             uint64_t reserve,
                             kvspan_error_t* error,
                             const char* where) {
  Device& device = graph.device;
  let_go(graph, placed);
  Packet packet;
  const PacketCounts counts{0, 0, task.uses_max + 1};
  Cutter counter(nullptr);
  cut_packet(counter, packet, counts);
  task.lay_out(counter);
  const uint64_t bytes = counter.bytes() > reserve ? counter.bytes() : reserve;
  uint8_t* const before = placed.slab.data;
  if (const cudaError_t bad = device.pinned.grow(placed.slab, bytes)) {
    return bad == cudaErrorMemoryAllocation
               ? report_no_host_memory(bytes, error, where)
               : report_call(device, bad, "making room for arguments", error, where);
  }
  if (placed.slab.data != before) {
    placed.made_of = Block();
  }
  Cutter cutter(placed.slab.data);
  cut_packet(cutter, packet, counts);
  task.lay_out(cutter);
  Uses uses(packet.memories);
  task.fill(packet, uses);
  placed.memories = packet.memories;
  placed.memory_count = uses.count();
  placed.body = packet.body;
  placed.body_bytes = packet.body_bytes;
  if (placed.issue != packet.issue) {
    placed.issue = packet.issue;
    placed.made_of = Block();
  }
  const std::lock_guard lock(device.mutex);
  pin(placed, 1);
  return KVSPAN_OK;
}

kvspan_result_t append_kernels(Graph& graph,
                               GraphInstance& instance,
                               Placed& placed,
                               kvspan_error_t* error,
                               const char* where) {
  Traced traced;
  cudaError_t bad = trace(graph, placed, traced);
  for (uint32_t i = 0; bad == cudaSuccess && i < traced.count; ++i) {
    cudaGraphNode_t& node = placed.nodes[i];
    const std::size_t before = instance.last == nullptr ? 0 : 1;
    bad = cudaGraphAddKernelNode(&node, instance.graph, &instance.last, before, &traced.params[i]);
    bad = bad == cudaSuccess ? cudaGraphKernelNodeCopyAttributes(node, traced.nodes[i]) : bad;
    instance.last = node;
  }
  if (bad != cudaSuccess) {
    return report_trace(graph.device, bad, error, where);
  }
  placed.node_count = traced.count;
  remember(graph, placed);
  return KVSPAN_OK;
}

kvspan_result_t renew_kernels(Graph& graph,
                              GraphInstance& instance,
                              Placed& placed,
                              kvspan_error_t* error,
                              const char* where) {
  const uint64_t bytes = placed.made_of.bytes();
  if (bytes != 0 && bytes == placed.body_bytes &&
      std::memcmp(placed.made_of.data(), placed.body, bytes) == 0) {
    return KVSPAN_OK;
  }
  placed.made_of = Block();
  Traced traced;
  cudaError_t bad = trace(graph, placed, traced);
  if (bad != cudaSuccess) {
    return report_trace(graph.device, bad, error, where);
  }
  for (uint32_t i = 0; bad == cudaSuccess && traced.count == placed.node_count && i < traced.count;
       ++i) {
    bad = cudaGraphExecKernelNodeSetParams(instance.executable, placed.nodes[i], &traced.params[i]);
  }
  if (is_sticky(bad)) {
    return report_call(graph.device, bad, "changing a graph", error, where);
  }
  if (bad != cudaSuccess || traced.count != placed.node_count) {
    return sdk::fail_reasons(error,
                             where,
                             0,
                             "these arguments need other kernels than were recorded (%s): record "
                             "again",
                             cudaGetErrorName(bad));
  }
  remember(graph, placed);
  return KVSPAN_OK;
}

void clear_placed(Graph& graph, Placed& placed) {
  let_go(graph, placed);
  graph.device.pinned.give_back(placed.slab);
  placed.made_of = Block();
}

}  // namespace kvspan::cuda
