// SPDX-License-Identifier: Apache-2.0
// Read first: holdings.hpp.
#include "holdings.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cuda_runtime_api.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <malloc.h>
#include <string>

namespace kvspan::cuda_proof {

namespace {

using cuda_bench::Failure;

// A line of /proc/self/status in the unit written there.
std::uint64_t status_value(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::stoull(line.substr(name.size() + 1));
    }
  }
  throw Failure("/proc/self/status has no " + name);
}

std::uint64_t median(std::vector<std::uint64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A dozen samples, evenly spaced, the first and the last among them.
std::vector<std::uint64_t> course_of(const std::vector<std::uint64_t>& samples) {
  constexpr std::size_t kPoints = 12;
  std::vector<std::uint64_t> out;
  for (std::size_t point = 0; point < kPoints; ++point) {
    out.push_back(samples[point * (samples.size() - 1) / (kPoints - 1)]);
  }
  return out;
}

void judge(const std::string& what,
           std::uint64_t was,
           std::uint64_t is,
           std::uint64_t bound,
           const std::vector<std::uint64_t>& samples,
           nlohmann::ordered_json& out) {
  out[what] = {{"highest", *std::max_element(samples.begin(), samples.end())},
               {"course", course_of(samples)},
               {"warm", was},
               {"then", is},
               {"may_grow_by", bound}};
  if (is > was + bound) {
    throw Failure(fmt::format("{} grew from {} to {}, {} more allowed", what, was, is, bound));
  }
}

}  // namespace

std::optional<std::uint64_t> device_free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return free;
}

Holdings holdings(const cuda_bench::Rig& rig) {
  Holdings now;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
    now.device_used_bytes = total - free;
  } else {
    (void)cudaGetLastError();
  }
  if (const kvspan_debug_table_t* const debug = rig.tables().debug; debug != nullptr) {
    kvspan_debug_counters_t counters{};
    counters.struct_size = sizeof counters;
    kvspan_error_t error = empty_error();
    cuda_bench::check(debug->counters(rig.device(), &counters, &error), error, "counting");
    now.plugin_device_bytes = counters.device_bytes;
  }
  now.resident_bytes = status_value("VmRSS") * 1024;
  const auto heap = ::mallinfo2();
  now.heap_bytes = heap.uordblks + heap.hblkhd;
  now.threads = status_value("Threads");
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  now.descriptors = static_cast<std::uint64_t>(std::distance(begin(descriptors), end(descriptors)));
  return now;
}

void judge_flat(const std::vector<Holdings>& samples,
                const Bounds& bounds,
                nlohmann::ordered_json& out) {
  out["samples"] = samples.size();
  if (samples.size() < 8) {
    throw Failure(fmt::format("{} samples are too few to judge by", samples.size()));
  }
  const std::size_t quarter = samples.size() / 4;
  const auto column = [&](auto field) {
    std::vector<std::uint64_t> values;
    std::transform(samples.begin(), samples.end(), std::back_inserter(values), field);
    return values;
  };
  const auto highest = [&](const char* what, std::uint64_t bound, auto field) {
    const auto values = column(field);
    const auto warm = values.begin() + static_cast<std::ptrdiff_t>(quarter);
    judge(what,
          *std::max_element(values.begin(), warm),
          *std::max_element(warm, values.end()),
          bound,
          values,
          out);
  };
  highest("descriptors", 0, [](const Holdings& now) { return now.descriptors; });
  highest("threads", 0, [](const Holdings& now) { return now.threads; });
  highest("plugin_device_bytes", 0, [](const Holdings& now) { return now.plugin_device_bytes; });
  if (samples.front().device_used_bytes) {
    highest("device_used_bytes", bounds.device_bytes, [](const Holdings& now) {
      return now.device_used_bytes.value_or(0);
    });
  }
  const auto medians = [&](const char* what, std::uint64_t bound, auto field) {
    const auto values = column(field);
    const auto at = [&](std::size_t index) {
      return values.begin() + static_cast<std::ptrdiff_t>(index);
    };
    judge(what,
          median({at(quarter), at(2 * quarter)}),
          median({at(samples.size() - quarter), values.end()}),
          bound,
          values,
          out);
  };
  medians("resident_bytes", bounds.resident_bytes, [](const Holdings& now) {
    return now.resident_bytes;
  });
  medians("heap_bytes", bounds.heap_bytes, [](const Holdings& now) { return now.heap_bytes; });
}

}  // namespace kvspan::cuda_proof
