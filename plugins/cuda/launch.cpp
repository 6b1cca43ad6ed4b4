// SPDX-License-Identifier: Apache-2.0
// Launching a graph: an instance that is not running gets the new arguments, then runs as the work
// of an ordinary submit. Read first: graph.hpp.
#include "kvspan/sdk/error.hpp"

#include "graph.hpp"

#include <cstddef>
#include <cstring>

namespace kvspan::cuda {
namespace {

constexpr const char* kWhere = "graph.launch";

// Gives one recorded submit of an instance its arguments for a launch.
class Renewal final : public Recorder {
 public:
  Renewal(Graph& graph, uint32_t instance) : graph_(graph), instance_(instance) {}

  kvspan_result_t take(Task& task,
                       const kvspan_submit_t&,
                       uint32_t,
                       kvspan_error_t* error,
                       const char* where) override {
    Placed& placed = recorded->placed[instance_];
    if (std::strcmp(where, recorded->where) != 0) {
      return sdk::fail_argument(error,
                                {3, offsetof(kvspan_graph_arguments_t, kind)},
                                kWhere,
                                "arguments of %s, recorded was %s: give that one's",
                                where,
                                recorded->where);
    }
    const Current current(graph_.device.driver, graph_.device.context);
    kvspan_result_t bad = place_submit(graph_, placed, task, 0, error, where);
    if (bad == KVSPAN_OK) {
      recorded->changed = true;
      bad = renew_kernels(graph_, graph_.instances[instance_], placed, error, where);
    }
    return bad;
  }

  Recorded* recorded = nullptr;

 private:
  Graph& graph_;
  uint32_t instance_;
};

// The slot that was recorded, asked again.
kvspan_result_t ask_slot(kvspan_queue_t* queue,
                         const kvspan_graph_arguments_t& given,
                         kvspan_error_t* error) {
  kvspan_submit_t submit{};
  submit.struct_size = sizeof submit;
  const auto* const attention = given.attention;
  switch (given.kind) {
    case KVSPAN_GRAPH_ENCODE:
    case KVSPAN_GRAPH_DECODE: {
      const auto* const items = static_cast<const kvspan_codec_item_t*>(given.items);
      return (given.kind == KVSPAN_GRAPH_ENCODE ? kCodecTable.encode : kCodecTable.decode)(
          queue, items, given.count, &submit, error);
    }
    case KVSPAN_GRAPH_RUN:
      return kAttentionTable.run(queue, attention, &submit, error);
    case KVSPAN_GRAPH_ADVANCE:
      return kAttentionTable.advance(queue,
                                     attention,
                                     static_cast<const kvspan_advance_item_t*>(given.items),
                                     given.count,
                                     &submit,
                                     error);
    case KVSPAN_GRAPH_FOLD:
      return kAttentionTable.fold(queue,
                                  attention,
                                  static_cast<const kvspan_fold_item_t*>(given.items),
                                  given.count,
                                  &submit,
                                  error);
    case KVSPAN_GRAPH_FINISH:
      return kAttentionTable.finish(
          queue, attention, static_cast<const kvspan_state_t*>(given.items), &submit, error);
    default:
      return sdk::fail_argument(error,
                                {3, offsetof(kvspan_graph_arguments_t, kind)},
                                kWhere,
                                "kind %u: use one of KVSPAN_GRAPH_*",
                                given.kind);
  }
}

kvspan_result_t renew(Queue& queue,
                      Graph& graph,
                      uint32_t instance,
                      const kvspan_graph_arguments_t* arguments,
                      kvspan_error_t* error) {
  Renewal renewal(graph, instance);
  kvspan_result_t bad = KVSPAN_OK;
  uint32_t index = 0;
  for (Recorded* at = graph.first; at != nullptr && bad == KVSPAN_OK; at = at->next, ++index) {
    const kvspan_graph_arguments_t& given = arguments[index];
    if (given.kind != KVSPAN_GRAPH_SAME) {
      renewal.recorded = at;
      queue.recorder = &renewal;
      bad = ask_slot(handle_of(&queue), given, error);
      queue.recorder = nullptr;
    } else if (at->changed) {
      bad = sdk::fail_argument(error,
                               {3, offsetof(kvspan_graph_arguments_t, kind)},
                               kWhere,
                               "recorded submit %u had other arguments since: give it some",
                               index);
    }
  }
  return bad;
}

// A instance that is not running and does not hold the last launch's arguments; instance_count:
// none.
uint32_t find_instance(Graph& graph) {
  const std::lock_guard lock(graph.device.mutex);
  uint32_t found = 0;
  while (found < graph.instance_count &&
         (found == graph.last_instance || graph.instances[found].launches != 0)) {
    ++found;
  }
  return found;
}

struct LaunchBody {
  cudaGraphExec_t executable;
  uint64_t kernel_count;
};

cudaError_t issue_launch(const Issue& issue, const void* body) {
  const LaunchBody& launch = *static_cast<const LaunchBody*>(body);
  issue.device.counters.launches.fetch_add(launch.kernel_count, std::memory_order_relaxed);
  return cudaGraphLaunch(launch.executable, issue.stream);
}

class LaunchTask final : public Task {
 public:
  LaunchTask(Graph& graph, uint32_t instance)
      : Task(Kind::orders),
        instance_(graph.instances[instance]),
        kernel_count_(graph.kernel_count) {}

  void lay_out(Cutter& cutter) override { cutter.cut(body_, 1); }

  void fill(Packet& packet, Uses&) override {
    *body_ = {instance_.executable, kernel_count_};
    packet.body = body_;
    packet.bytes = 0;
    packet.issue = issue_launch;
    packet.launches = &instance_.launches;
  }

 private:
  GraphInstance& instance_;
  uint64_t kernel_count_;
  LaunchBody* body_ = nullptr;
};

}  // namespace

kvspan_result_t launch_graph(Queue& queue,
                             Graph& graph,
                             const kvspan_graph_arguments_t* arguments,
                             uint32_t count,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) {
  uint32_t instance = graph.last_instance;
  if (count != 0) {
    instance = find_instance(graph);
    if (instance == graph.instance_count) {
      return sdk::fail_amount(
          error,
          KVSPAN_E_QUEUE_FULL,
          kWhere,
          {KVSPAN_RESOURCE_QUEUE_DEPTH, uint64_t{graph.instance_count} + 1, graph.instance_count},
          "all %u instances of this graph are in flight: wait for a launch, or record with more",
          graph.instance_count);
    }
    if (const kvspan_result_t bad = renew(queue, graph, instance, arguments, error)) {
      return bad;
    }
  }
  LaunchTask task(graph, instance);
  const kvspan_result_t result = queue.submit(task, submit, 5, error, kWhere);
  graph.last_instance = result == KVSPAN_OK ? instance : graph.last_instance;
  return result;
}

}  // namespace kvspan::cuda
