// SPDX-License-Identifier: Apache-2.0
// The graph table (draft). Read first: graph.hpp.
#include "graph.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"

#include "layout.hpp"

#include <cstddef>

namespace kvspan::cuda {
namespace {

constexpr uint32_t kGraphInstancesDefault = 2;

// Ends a graph, finished or not; nothing of it runs.
void discard(Graph& graph) {
  Device& device = graph.device;
  {
    const Current current(device.driver, device.context);
    while (graph.first != nullptr) {
      Recorded* const recorded = graph.first;
      graph.first = recorded->next;
      for (Placed& placed : recorded->placed) {
        clear_placed(graph, placed);
      }
      device.host.unmake(recorded);
    }
    for (const GraphInstance& instance : graph.instances) {
      if (instance.executable != nullptr) {
        cudaGraphExecDestroy(instance.executable);
      }
      if (instance.graph != nullptr) {
        cudaGraphDestroy(instance.graph);
      }
    }
    if (graph.scratch != nullptr) {
      cudaStreamDestroy(graph.scratch);
    }
  }
  {
    const std::lock_guard lock(device.mutex);
    --device.object_count;
  }
  device.host.unmake(&graph);
}

// Between begin and end.
class Recording final : public Recorder {
 public:
  explicit Recording(Graph& its_graph) : graph(its_graph) {}

  kvspan_result_t take(Task& task,
                       const kvspan_submit_t& submit,
                       uint32_t argument,
                       kvspan_error_t* error,
                       const char* where) override {
    if (submit.wait_count != 0 || submit.signal_count != 0 || submit.cancel_memory != nullptr ||
        submit.flags != 0) {
      return sdk::fail_argument(error,
                                {argument},
                                where,
                                "a recorded submit carries no points, cancel word or flags: give "
                                "them to the launch");
    }
    if (failure != KVSPAN_OK) {
      return sdk::fail(
          error, failure, where, "this recording has failed before: end it and begin another");
    }
    const Current current(graph.device.driver, graph.device.context);
    Recorded* const recorded = graph.device.host.make<Recorded>();
    if (recorded == nullptr) {
      return report_no_host_memory(sizeof(Recorded), error, where);
    }
    const kvspan_result_t bad = place(*recorded, task, error, where);
    if (bad != KVSPAN_OK) {
      for (Placed& placed : recorded->placed) {
        clear_placed(graph, placed);
      }
      graph.device.host.unmake(recorded);
      return bad;
    }
    recorded->where = where;
    (last_ == nullptr ? graph.first : last_->next) = recorded;
    last_ = recorded;
    ++graph.submit_count;
    for (uint32_t i = 0; i < graph.instance_count && failure == KVSPAN_OK; ++i) {
      failure = append_kernels(graph, graph.instances[i], recorded->placed[i], error, where);
    }
    graph.kernel_count += recorded->placed[0].node_count;
    return failure;
  }

  Graph& graph;
  kvspan_result_t failure = KVSPAN_OK;  // of a submit of which some instances have kernels

 private:
  kvspan_result_t place(Recorded& recorded, Task& task, kvspan_error_t* error, const char* where) {
    uint64_t reserve = 0;
    {
      const std::lock_guard lock(graph.device.mutex);
      reserve = graph.device.prepared.has_value() ? prepared_slab_bytes(*graph.device.prepared) : 0;
    }
    kvspan_result_t bad = KVSPAN_OK;
    for (uint32_t i = 0; i < graph.instance_count && bad == KVSPAN_OK; ++i) {
      bad = place_submit(graph, recorded.placed[i], task, reserve, error, where);
    }
    return bad;
  }

  Recorded* last_ = nullptr;
};

kvspan_result_t start_instances(Graph& graph, kvspan_error_t* error, const char* where) {
  const Device& device = graph.device;
  const Current current(device.driver, device.context);
  cudaError_t bad = cudaStreamCreateWithFlags(&graph.scratch, cudaStreamNonBlocking);
  for (uint32_t i = 0; bad == cudaSuccess && i < graph.instance_count; ++i) {
    bad = cudaGraphCreate(&graph.instances[i].graph, 0);
  }
  return bad == cudaSuccess ? kvspan_result_t{KVSPAN_OK}
                            : report_call(graph.device, bad, "making a graph", error, where);
}

kvspan_result_t KVSPAN_CALL graph_begin(kvspan_queue_t* handle,
                                        const kvspan_graph_options_t* options,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "graph.begin";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the queue is NULL: pass one");
    }
    if (const kvspan_result_t bad = sdk::take(options, error, kWhere, 2)) {
      return bad;
    }
    const uint32_t instances =
        options->launches_max == 0 ? kGraphInstancesDefault : options->launches_max;
    if (instances < 2 || instances > kGraphInstancesMax) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_graph_options_t, launches_max)},
                                kWhere,
                                "%u instances: use 2 to %u",
                                instances,
                                kGraphInstancesMax);
    }
    Queue& queue = *queue_of(handle);
    Device& device = queue.device();
    if (queue.recorder != nullptr) {
      return sdk::fail(
          error, KVSPAN_E_BUSY, kWhere, "the queue is recording already: end that first");
    }
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    Graph* const graph = device.host.make<Graph>(device);
    if (graph == nullptr) {
      return report_no_host_memory(sizeof(Graph), error, kWhere);
    }
    {
      const std::lock_guard lock(device.mutex);
      ++device.object_count;
    }
    graph->instance_count = instances;
    kvspan_result_t bad = start_instances(*graph, error, kWhere);
    Recording* const recording = bad == KVSPAN_OK ? device.host.make<Recording>(*graph) : nullptr;
    if (recording == nullptr) {
      bad = bad == KVSPAN_OK ? report_no_host_memory(sizeof(Recording), error, kWhere) : bad;
      discard(*graph);
      return bad;
    }
    queue.recorder = recording;
    return KVSPAN_OK;
  });
}

kvspan_result_t make_executables(Graph& graph, kvspan_error_t* error, const char* where) {
  const Device& device = graph.device;
  const Current current(device.driver, device.context);
  cudaError_t bad = cudaSuccess;
  for (uint32_t i = 0; bad == cudaSuccess && i < graph.instance_count; ++i) {
    GraphInstance& instance = graph.instances[i];
    bad = cudaGraphInstantiate(&instance.executable, instance.graph, 0);
    bad = bad == cudaSuccess ? cudaGraphUpload(instance.executable, graph.scratch) : bad;
  }
  if (bad == cudaErrorMemoryAllocation) {
    sdk::fail_amount(error,
                     KVSPAN_E_DEVICE_MEMORY,
                     where,
                     {KVSPAN_RESOURCE_DEVICE_MEMORY, KVSPAN_UNKNOWN_AMOUNT, KVSPAN_UNKNOWN_AMOUNT},
                     "the card has no room for the graph: free some of its memory, record again");
    return KVSPAN_E_DEVICE_MEMORY;
  }
  return bad == cudaSuccess ? kvspan_result_t{KVSPAN_OK}
                            : report_call(graph.device, bad, "making a graph", error, where);
}

kvspan_result_t KVSPAN_CALL graph_end(kvspan_queue_t* handle,
                                      kvspan_graph_t** out_graph,
                                      kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "graph.end";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_graph == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    if (queue.recorder == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "nothing is being recorded: begin first");
    }
    auto* const recording = static_cast<Recording*>(queue.recorder);
    Graph* const graph = &recording->graph;
    kvspan_result_t bad = recording->failure;
    if (bad != KVSPAN_OK) {
      sdk::fail(error, bad, kWhere, "a submit of this recording failed: record again");
    } else {
      bad = make_executables(*graph, error, kWhere);
    }
    end_recording(queue, bad == KVSPAN_OK);
    if (bad == KVSPAN_OK) {
      *out_graph = handle_of(graph);
    }
    return bad;
  });
}

kvspan_result_t check_launch(const Queue& queue,
                             const Graph& graph,
                             uint32_t count,
                             kvspan_error_t* error,
                             const char* where) {
  if (&graph.device != &queue.device()) {
    return sdk::fail_argument(error, {2}, where, "the graph is of another device than the queue");
  }
  if (count != 0 && count != graph.submit_count) {
    return sdk::fail_argument(error,
                              {4},
                              where,
                              "arguments of %u submits, %u were recorded: give all or none",
                              count,
                              graph.submit_count);
  }
  if (queue.recorder != nullptr) {
    return sdk::fail_reasons(
        error, where, 0, "the queue is recording: a launch is not recorded, end that first");
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL graph_launch(kvspan_queue_t* handle,
                                         kvspan_graph_t* graph_handle,
                                         const kvspan_graph_arguments_t* arguments,
                                         uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "graph.launch";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || graph_handle == nullptr || (arguments == nullptr && count != 0)) {
      const uint32_t argument = handle == nullptr ? 1u : graph_handle == nullptr ? 2u : 3u;
      return sdk::fail_argument(error, {argument}, kWhere, "an argument is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    Graph& graph = *graph_of(graph_handle);
    if (const kvspan_result_t bad = check_launch(queue, graph, count, error, kWhere)) {
      return bad;
    }
    return launch_graph(queue, graph, arguments, count, submit, error);
  });
}

kvspan_result_t KVSPAN_CALL graph_destroy(kvspan_graph_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "graph.destroy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the graph is NULL: pass one");
    }
    Graph& graph = *graph_of(handle);
    Device& device = graph.device;
    {
      std::unique_lock lock(device.mutex);
      uint64_t pending = 0;
      const auto is_idle = [&] {
        pending = 0;
        for (const GraphInstance& instance : graph.instances) {
          pending += instance.launches;
        }
        return pending == 0;
      };
      if (device.lost) {  // what is pending settles by itself and soon
        device.settled.wait(lock, is_idle);
      }
      if (!is_idle()) {
        return sdk::fail_amount(error,
                                KVSPAN_E_BUSY,
                                kWhere,
                                {KVSPAN_RESOURCE_NONE, 0, pending},
                                "%llu launches are in flight: wait for their points, then destroy",
                                static_cast<unsigned long long>(pending));
      }
    }
    discard(graph);
    return KVSPAN_OK;
  });
}

}  // namespace

void end_recording(Queue& queue, bool keep_graph) {
  auto* const recording = static_cast<Recording*>(queue.recorder);
  queue.recorder = nullptr;
  Graph& graph = recording->graph;
  graph.device.host.unmake(recording);
  if (!keep_graph) {
    discard(graph);
  }
}

const kvspan_graph_table_t kGraphTable = {
    sizeof(kvspan_graph_table_t), 0, graph_begin, graph_end, graph_launch, graph_destroy};

}  // namespace kvspan::cuda
