// SPDX-License-Identifier: Apache-2.0
// Read first: limits.hpp.
#include "limits.hpp"

#include "failure.hpp"
#include "kernels.hpp"
#include "rig.hpp"
#include "row.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <functional>
#include <memory>
#include <vector>

namespace kvspan::cuda_bench {

namespace {

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;
constexpr std::size_t kPoolBytes = std::size_t{2} << 30;

class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
  }

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  ~Stream() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t get() const { return stream_; }

  // Device seconds of what `work` puts on the stream; the median of `runs`, after one to warm up.
  [[nodiscard]] double median(int runs, const std::function<void(int)>& work) const {
    std::vector<double> seconds;
    for (int run = -1; run < runs; ++run) {
      check(cudaEventRecord(begin_, stream_), "an event");
      work(run + 1);
      check(cudaEventRecord(end_, stream_), "an event");
      check(cudaEventSynchronize(end_), "waiting");
      float milliseconds = 0.0F;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading events");
      if (run >= 0) {
        seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
      }
    }
    return spread_of(seconds).median;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};

struct FreeHost {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

void measure_link(const Stream& stream, void* device, Limits& out) {
  void* raw = nullptr;
  check(cudaHostAlloc(&raw, kCopyBytes, cudaHostAllocDefault), "pinned memory");
  const std::unique_ptr<void, FreeHost> host(raw);
  check(cudaMemcpy(raw, device, kCopyBytes, cudaMemcpyDeviceToHost), "filling it with noise");
  constexpr int kCopies = 4;
  const auto rate = [&](cudaMemcpyKind kind) {
    const double seconds = stream.median(7, [&](int run) {
      for (int copy = 0; copy < kCopies; ++copy) {
        char* const place =
            static_cast<char*>(device) + static_cast<std::size_t>((run + copy) % 4) * kCopyBytes;
        void* const target = kind == cudaMemcpyHostToDevice ? static_cast<void*>(place) : raw;
        const void* const source = kind == cudaMemcpyHostToDevice ? raw : place;
        check(cudaMemcpyAsync(target, source, kCopyBytes, kind, stream.get()), "copying");
      }
    });
    return static_cast<double>(kCopies * kCopyBytes) / seconds;
  };
  out.link_up = rate(cudaMemcpyHostToDevice);
  out.link_down = rate(cudaMemcpyDeviceToHost);
}

// Cold reads of layer-sized pieces, each size in one graph of many launches that walk through the
// pool: T(B) = a + B / rate by least squares over the sizes, each weighed by its inverse.
void measure_read(const Stream& stream, const char* pool, Limits& out) {
  std::uint32_t* sink = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&sink), sizeof *sink), "a word");
  const std::unique_ptr<void, FreeDevice> owner(sink);
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "asking the card");
  constexpr std::array<std::size_t, 6> kSizes = {
      13'631'488, 27'262'976, 54'525'952, 109'051'904, 218'103'808, 436'207'616};
  double w = 0.0;
  double wx = 0.0;
  double wy = 0.0;
  double wxx = 0.0;
  double wxy = 0.0;
  for (const std::size_t size : kSizes) {
    const std::size_t places = kPoolBytes / size;
    const std::size_t launches = places < 32 ? places : 32;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing");
    for (std::size_t i = 0; i < launches; ++i) {
      check(launch_read(stream.get(), pool + i * size, size, sink, 4 * sms), "reading");
    }
    check(cudaStreamEndCapture(stream.get(), &graph), "capturing");
    check(cudaGraphInstantiate(&executable, graph, 0), "a graph");
    const double each = stream.median(9, [&](int) {
      check(cudaGraphLaunch(executable, stream.get()), "a graph");
    }) / static_cast<double>(launches);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    const auto x = static_cast<double>(size);
    const double weight = 1.0 / (each * each);
    w += weight;
    wx += weight * x;
    wy += weight * each;
    wxx += weight * x * x;
    wxy += weight * x * each;
  }
  const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  out.read_rate = 1.0 / slope;
  out.read_start = (wy - slope * wx) / w;
}

void measure_launch(const Stream& stream, Limits& out) {
  std::vector<double> walls;
  for (int run = 0; run < 200; ++run) {
    const Clock::time_point start = Clock::now();
    check(launch_empty(stream.get()), "launching");
    check(cudaStreamSynchronize(stream.get()), "waiting");
    walls.push_back(seconds_since(start));
  }
  out.launch_wall = spread_of(walls).median;
  constexpr int kLaunches = 500;
  out.launch_queued = stream.median(5, [&](int) {
    check(launch_spin(stream.get(), 4'000'000), "launching");
    for (int i = 0; i < kLaunches; ++i) {
      check(launch_empty(stream.get()), "launching");
    }
  });
  out.launch_queued = (out.launch_queued - 4e-3) / kLaunches;
}

}  // namespace

Limits measure_limits() {
  Limits out;
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "asking the card");
  out.card = card.name;
  check(cudaDriverGetVersion(&out.driver), "asking the driver");
  check(cudaRuntimeGetVersion(&out.runtime), "asking the runtime");
  const Stream stream;
  void* raw = nullptr;
  check(cudaMalloc(&raw, kPoolBytes), "device memory");
  const std::unique_ptr<void, FreeDevice> pool(raw);
  check(launch_noise(stream.get(), raw, kPoolBytes, 20261130), "noise");
  check(cudaStreamSynchronize(stream.get()), "noise");
  measure_link(stream, raw, out);
  measure_read(stream, static_cast<const char*>(raw), out);
  measure_launch(stream, out);
  return out;
}

nlohmann::ordered_json to_json(const Limits& limits) {
  return {{"card", limits.card},
          {"driver", limits.driver},
          {"runtime", limits.runtime},
          {"link_up_bytes_s", limits.link_up},
          {"link_down_bytes_s", limits.link_down},
          {"read_start_s", limits.read_start},
          {"read_rate_bytes_s", limits.read_rate},
          {"launch_wall_s", limits.launch_wall},
          {"launch_queued_s", limits.launch_queued}};
}

}  // namespace kvspan::cuda_bench
