// SPDX-License-Identifier: Apache-2.0
// The native table: a context, memory, streams and events that an engine owns, each a CUDA handle
// as an integer (CUcontext, CUdeviceptr, CUstream, CUevent; cudaStream_t and cudaEvent_t are the
// same ones). Streams wait for events, on the device: no call here blocks. An event has no value.
// Read first: queue.hpp.
#include "kvspan/native.h"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include "queue.hpp"

namespace kvspan::cuda {
namespace {

unsigned long long number(uint64_t value) {
  return value;
}

kvspan_result_t KVSPAN_CALL native_open(void* self,
                                        uint32_t index,
                                        uint64_t context,
                                        kvspan_device_t** out_device,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "native.open";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = check_index(self, index, error, kWhere)) {
      return bad;
    }
    if (context == 0 || out_device == nullptr) {
      return sdk::fail_argument(
          error, {context == 0 ? 3u : 4u}, kWhere, "an argument is NULL: pass one");
    }
    const Opened opened{index, reinterpret_cast<CUcontext>(context)};
    return open_device(*static_cast<Plugin*>(self), opened, out_device, error, kWhere);
  });
}

// The allocation that holds an address.
struct Allocation {
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  int ordinal = -1;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  unsigned int managed = 1;
};

// False: no allocation of CUDA holds it.
bool find_allocation(const Driver& driver, uint64_t address, Allocation& found) {
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* into[] = {&found.start, &found.bytes, &found.ordinal, &found.type, &found.managed};
  static_assert(sizeof wanted / sizeof wanted[0] == sizeof into / sizeof into[0]);
  const CUresult bad = driver.pointer_attributes(
      sizeof into / sizeof into[0], wanted, into, static_cast<CUdeviceptr>(address));
  return bad == CUDA_SUCCESS && found.type == CU_MEMORYTYPE_DEVICE && found.managed == 0;
}

// Every byte is memory of this card. An engine may have put a range together from several
// allocations.
bool is_ours(const Device& device, uint64_t address, uint64_t bytes) {
  const Current current(device.driver, device.context);
  int index = -1;
  if (cudaGetDevice(&index) != cudaSuccess) {
    return false;
  }
  for (uint64_t at = address; at < address + bytes;) {
    Allocation found;
    if (!find_allocation(device.driver, at, found) || found.ordinal != index) {
      return false;
    }
    const uint64_t end = found.start + found.bytes;
    if (end <= at) {
      return false;
    }
    at = end;
  }
  return true;
}

kvspan_result_t KVSPAN_CALL native_import_memory(kvspan_device_t* handle,
                                                 uint64_t address,
                                                 uint64_t bytes,
                                                 kvspan_memory_t** out_memory,
                                                 kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "native.import_memory";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr || (address == 0 && bytes != 0)) {
      const uint32_t argument = handle == nullptr ? 1u : out_memory == nullptr ? 4u : 2u;
      return sdk::fail_argument(error, {argument}, kWhere, "an argument is NULL: pass one");
    }
    if (address % kMemoryAlignment != 0) {
      return sdk::fail_argument(error,
                                {2},
                                kWhere,
                                "the address is no multiple of %llu: pass the allocation's start "
                                "and the rest as an offset",
                                number(kMemoryAlignment));
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    if (bytes > kAllocationBytesMax || !is_ours(device, address, bytes)) {
      return sdk::fail_argument(error,
                                {2},
                                kWhere,
                                "these %llu bytes are not all memory of this device: pass what "
                                "cudaMalloc or the engine's allocator gave",
                                number(bytes));
    }
    return borrow_memory(
        device, reinterpret_cast<uint8_t*>(address), bytes, out_memory, error, kWhere);
  });
}

// An engine's stream as the device's context knows it; nullptr: not one of this context.
cudaStream_t stream_of(const Device& device, uint64_t handle) {
  // The integer 0 means whatever the program was compiled for; the engine means the legacy one.
  auto* const stream = handle == 0 ? cudaStreamLegacy : reinterpret_cast<cudaStream_t>(handle);
  if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return stream;
  }
  CUcontext context = nullptr;
  const CUresult bad = device.driver.stream_context(stream, &context);
  return bad == CUDA_SUCCESS && context == device.context ? stream : nullptr;
}

kvspan_result_t KVSPAN_CALL native_import_queue(kvspan_device_t* handle,
                                                uint64_t stream,
                                                kvspan_queue_t** out_queue,
                                                kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "native.import_queue";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_queue == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 3u}, kWhere, "an argument is NULL: pass one");
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    cudaStream_t found = nullptr;
    {
      const Current current(device.driver, device.context);
      found = stream_of(device, stream);
    }
    if (found == nullptr || found == cudaStreamPerThread) {
      return sdk::fail_argument(
          error,
          {2},
          kWhere,
          found == nullptr
              ? "this is no stream of the device's context: open the device on the stream's own"
              : "the per-thread stream is another one for each thread: import one of your own");
    }
    return make_queue(device, kDepthMax, found, out_queue, error, kWhere);
  });
}

struct EventBody {
  cudaEvent_t event;
};

cudaError_t issue_event_wait(const Issue& issue, const void* body) {
  const EventBody& wait = *static_cast<const EventBody*>(body);
  return cudaStreamWaitEvent(issue.stream, wait.event, 0);
}

class EventTask final : public Task {
 public:
  explicit EventTask(cudaEvent_t event) : Task(Kind::orders), event_(event) {}

  void lay_out(Cutter& cutter) override { cutter.cut(body_, 1); }

  void fill(Packet& packet, Uses&) override {
    *body_ = {event_};
    packet.body = body_;
    packet.bytes = 0;
    packet.issue = issue_event_wait;
  }

 private:
  cudaEvent_t event_;
  EventBody* body_ = nullptr;
};

kvspan_result_t KVSPAN_CALL native_import_point(kvspan_queue_t* handle,
                                                uint64_t event,
                                                uint64_t value,
                                                const kvspan_submit_t* submit,
                                                kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "native.import_point";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || event == 0) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
    }
    if (value != 0) {
      return sdk::fail_argument(
          error, {3}, kWhere, "value %llu: CUDA's events have none: pass 0", number(value));
    }
    Queue& queue = *queue_of(handle);
    Device& device = queue.device();
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    auto* const native = reinterpret_cast<cudaEvent_t>(event);
    cudaError_t state = cudaSuccess;
    {
      const Current current(device.driver, device.context);
      state = cudaEventQuery(native);
    }
    if (is_sticky(state)) {
      return report_call(device, state, "asking for an event", error, kWhere);
    }
    if (state != cudaSuccess && state != cudaErrorNotReady) {
      sdk::fail_argument(error,
                         {2},
                         kWhere,
                         "this event cannot be waited for (%s): record it on a stream, outside of "
                         "a graph",
                         cudaGetErrorName(state));
      if (error != nullptr) {
        error->native_code = static_cast<int32_t>(state);
      }
      return KVSPAN_E_INVALID_ARG;
    }
    EventTask task(native);
    return queue.submit(task, submit, 4, error, kWhere);
  });
}

// Puts the wait on the stream. `cause` is filled where the point can never be reached.
kvspan_result_t hold(Device& device, const Point& point, cudaStream_t stream, Cause& cause) {
  // The lock keeps the event from being recorded anew before the stream waits for it.
  const std::lock_guard lock(device.mutex);
  if (point.fence->reached(point.value)) {
    return KVSPAN_OK;
  }
  if (point.fence->failed()) {
    cause = point.fence->cause;
    return cause.code;
  }
  const Packet* const promise = Queue::promise_of(*point.fence, point.value);
  if (promise == nullptr) {
    return KVSPAN_E_UNSUPPORTED;
  }
  if (!promise->issued) {
    cause = promise->cause;
    return cause.code;
  }
  if (const cudaError_t bad = cudaStreamWaitEvent(stream, promise->done, 0)) {
    cause = {is_sticky(bad) ? KVSPAN_E_DEVICE_LOST : KVSPAN_E_INTERNAL,
             promise->submit_id,
             "the stream could not be made to wait",
             static_cast<int32_t>(bad)};
    return cause.code;
  }
  return KVSPAN_OK;
}

kvspan_result_t export_checked(
    Device& device, const Point& point, uint64_t handle, kvspan_error_t* error, const char* where) {
  const Current current(device.driver, device.context);
  auto* const stream = stream_of(device, handle);
  if (stream == nullptr) {
    return sdk::fail_argument(
        error,
        {3},
        where,
        "this is no stream of the device's context: open the device on the stream's own");
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
      status != cudaStreamCaptureStatusNone) {
    return sdk::fail_reasons(error,
                             where,
                             0,
                             "the engine is recording this stream into a graph of its own: let it "
                             "wait before or after that");
  }
  Cause cause;
  const kvspan_result_t result = hold(device, point, stream, cause);
  if (result == KVSPAN_E_UNSUPPORTED && cause.code == KVSPAN_OK) {
    return sdk::fail_reasons(error,
                             where,
                             0,
                             "the point is %llu of a fence that no submit yet signals that far: "
                             "submit the signal first",
                             number(point.value));
  }
  return result == KVSPAN_OK ? result : report_cause(device, cause, error, where);
}

kvspan_result_t KVSPAN_CALL native_export_point(kvspan_device_t* handle,
                                                const kvspan_point_t* point,
                                                uint64_t stream,
                                                kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "native.export_point";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || point == nullptr || point->fence == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
    }
    Device& device = *device_of(handle);
    Fence* const fence = fence_of(point->fence);
    if (&fence->device != &device) {
      return sdk::fail_argument(
          error, {2}, kWhere, "the point is of another device: use a fence of this one");
    }
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    return export_checked(device, {fence, point->value}, stream, error, kWhere);
  });
}

}  // namespace

const kvspan_native_table_t kNativeTable = {sizeof(kvspan_native_table_t),
                                            0,
                                            native_open,
                                            native_import_memory,
                                            native_import_queue,
                                            native_import_point,
                                            native_export_point};

}  // namespace kvspan::cuda
