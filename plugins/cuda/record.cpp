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

cudaError_t trace(Graph& graph, const Region& region, Traced& traced) {
  cudaError_t bad = cudaStreamBeginCapture(graph.scratch, cudaStreamCaptureModeRelaxed);
  if (bad != cudaSuccess) {
    return bad;
  }
  bad = region.issue({graph.device, graph.scratch, {nullptr, nullptr}}, region.body);
  const cudaError_t ended = cudaStreamEndCapture(graph.scratch, &traced.graph);
  bad = bad != cudaSuccess ? bad : ended;
  bad = bad == cudaSuccess ? read_nodes(traced) : bad;
  // Counted as if they had been started.
  graph.device.counters.launches.fetch_sub(traced.count, std::memory_order_relaxed);
  return bad;
}

void pin(Region& region, uint64_t change) {
  for (uint64_t i = 0; i < region.memory_count; ++i) {
    region.memories[i]->pins.fetch_add(change, std::memory_order_relaxed);
  }
}

// On a lost device memories may be gone before the graph is.
void let_go(Graph& graph, Region& region) {
  const std::lock_guard lock(graph.device.mutex);
  if (!graph.device.lost) {
    pin(region, UINT64_MAX);  // minus 1
  }
  region.memory_count = 0;
}

// Remembers what the nodes were made of.
void remember(Graph& graph, Region& region) {
  if (region.made_of.bytes() != region.body_bytes) {
    region.made_of = Block::of(graph.device.host, region.body_bytes);
  }
  if (region.made_of.bytes() == region.body_bytes && region.body_bytes != 0) {
    std::memcpy(region.made_of.data(), region.body, region.body_bytes);
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

kvspan_result_t place_region(Graph& graph,
                             Region& region,
                             Task& task,
                             uint64_t reserve,
                             kvspan_error_t* error,
                             const char* where) {
  Device& device = graph.device;
  let_go(graph, region);
  Packet packet;
  const PacketCounts counts{0, 0, task.uses_max + 1};
  Cutter counter(nullptr);
  cut_packet(counter, packet, counts);
  task.lay_out(counter);
  const uint64_t bytes = counter.bytes() > reserve ? counter.bytes() : reserve;
  uint8_t* const before = region.slab.data;
  if (const cudaError_t bad = device.pinned.grow(region.slab, bytes)) {
    return bad == cudaErrorMemoryAllocation
               ? report_no_host_memory(bytes, error, where)
               : report_call(device, bad, "making room for arguments", error, where);
  }
  if (region.slab.data != before) {
    region.made_of = Block();
  }
  Cutter cutter(region.slab.data);
  cut_packet(cutter, packet, counts);
  task.lay_out(cutter);
  Uses uses(packet.memories);
  task.fill(packet, uses);
  region.memories = packet.memories;
  region.memory_count = uses.count();
  region.body = packet.body;
  region.body_bytes = packet.body_bytes;
  if (region.issue != packet.issue) {
    region.issue = packet.issue;
    region.made_of = Block();
  }
  const std::lock_guard lock(device.mutex);
  pin(region, 1);
  return KVSPAN_OK;
}

kvspan_result_t append_kernels(Graph& graph,
                               GraphInstance& instance,
                               Region& region,
                               kvspan_error_t* error,
                               const char* where) {
  Traced traced;
  cudaError_t bad = trace(graph, region, traced);
  for (uint32_t i = 0; bad == cudaSuccess && i < traced.count; ++i) {
    cudaGraphNode_t& node = region.nodes[i];
    const std::size_t before = instance.last == nullptr ? 0 : 1;
    bad = cudaGraphAddKernelNode(&node, instance.graph, &instance.last, before, &traced.params[i]);
    bad = bad == cudaSuccess ? cudaGraphKernelNodeCopyAttributes(node, traced.nodes[i]) : bad;
    instance.last = node;
  }
  if (bad != cudaSuccess) {
    return report_trace(graph.device, bad, error, where);
  }
  region.node_count = traced.count;
  remember(graph, region);
  return KVSPAN_OK;
}

kvspan_result_t renew_kernels(Graph& graph,
                              GraphInstance& instance,
                              Region& region,
                              kvspan_error_t* error,
                              const char* where) {
  const uint64_t bytes = region.made_of.bytes();
  if (bytes != 0 && bytes == region.body_bytes &&
      std::memcmp(region.made_of.data(), region.body, bytes) == 0) {
    return KVSPAN_OK;
  }
  region.made_of = Block();
  Traced traced;
  cudaError_t bad = trace(graph, region, traced);
  if (bad != cudaSuccess) {
    return report_trace(graph.device, bad, error, where);
  }
  for (uint32_t i = 0; bad == cudaSuccess && traced.count == region.node_count && i < traced.count;
       ++i) {
    bad = cudaGraphExecKernelNodeSetParams(instance.executable, region.nodes[i], &traced.params[i]);
  }
  if (is_sticky(bad)) {
    return report_call(graph.device, bad, "changing a graph", error, where);
  }
  if (bad != cudaSuccess || traced.count != region.node_count) {
    return sdk::fail_reasons(error,
                             where,
                             0,
                             "these arguments need other kernels than were recorded (%s): record "
                             "again",
                             cudaGetErrorName(bad));
  }
  remember(graph, region);
  return KVSPAN_OK;
}

void clear_region(Graph& graph, Region& region) {
  let_go(graph, region);
  graph.device.pinned.give_back(region.slab);
  region.made_of = Block();
}

}  // namespace kvspan::cuda
