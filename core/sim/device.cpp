// SPDX-License-Identifier: Apache-2.0
// The device's life, what the engine asks of it, and what is left of it in the end.
#include "device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan::sim {

const char* name(CallKind kind) {
  constexpr const char* kNames[] = {
      "a copy", "an encode", "a run", "an advance", "a fold", "a finish", "work"};
  return kNames[static_cast<std::size_t>(kind)];
}

void EntryCopy::bind() {
  entry.visible_end = visible_end.data();
  entry.window_begin = window_begin.empty() ? nullptr : window_begin.data();
  for (std::size_t index = 0; index < spans.size(); ++index) {
    const std::uint32_t* const list = lists[index].empty() ? nullptr : lists[index].data();
    spans[index].k.page_list = list;
    spans[index].v.page_list = list;
  }
  entry.spans = spans.data();
  entry.span_count = static_cast<std::uint32_t>(spans.size());
}

kvspan_result_t refuse(kvspan_error_t* error, kvspan_result_t code, const std::string& message) {
  if (error != nullptr) {
    *error = {};
    error->struct_size = sizeof *error;
    error->code = code;
    error->field_offset = UINT32_MAX;
    std::strncpy(error->where, "sim", sizeof error->where - 1);
    std::strncpy(error->message, message.c_str(), sizeof error->message - 1);
  }
  return code;
}

Device::Device(const Scenario& scenario, Trouble& trouble, CallFilter* filter)
    : scenario_(scenario), trouble_(trouble), filter_(filter), random_(scenario.seed ^ 0x5eedULL) {}

Device::~Device() = default;

void Device::host_access(const kvspan_memory_t* memory,
                         std::uint64_t begin,
                         std::uint64_t end,
                         bool writes) {
  if (memory_of(memory)->accesses.conflict(begin, end, writes, host_) != nullptr) {
    trouble_.report("order",
                    std::string("the host may ") + (writes ? "write" : "read") + " bytes [" +
                        std::to_string(begin) + ", " + std::to_string(end) +
                        ") now, but work that was not waited for may still touch them");
  }
}

void Device::host_access_at(const std::byte* address, std::uint64_t bytes, bool writes) {
  for (const auto& memory : memories) {
    if (memory->kind != KVSPAN_MEMORY_DEVICE && address >= memory->data &&
        address < memory->data + memory->bytes) {
      const auto begin = static_cast<std::uint64_t>(address - memory->data);
      host_access(
          reinterpret_cast<const kvspan_memory_t*>(memory.get()), begin, begin + bytes, writes);
    }
  }
}

std::uint32_t Device::expect(Expectation expectation) {
  expectations_.push_back(std::move(expectation));
  return static_cast<std::uint32_t>(expectations_.size());
}

const Expectation* Device::expectation(std::uint32_t number) const {
  return number == 0 || number > expectations_.size() ? nullptr : &expectations_[number - 1];
}

void Device::after(std::uint64_t delay_ns, std::function<void()> what) {
  timers_.emplace_back(now_ns_ + delay_ns, std::move(what));
}

void Device::content(const std::string& what) {
  trouble_.report("content", what);
}

std::vector<std::shared_ptr<Ending>> Device::take_downloads() {
  return std::exchange(downloads_, {});
}

std::string Device::leaks() const {
  std::string out;
  const auto add = [&out](const char* what, std::size_t count) {
    if (count != 0) {
      out += (out.empty() ? "" : ", ") + std::to_string(count) + " " + what;
    }
  };
  add("memories", memories.size());
  add("queues", queues.size());
  add("fences", fences.size());
  return out;
}

std::uint32_t Device::free_place() const {
  for (std::uint32_t place = 0; place < kQueuesMax; ++place) {
    if (std::none_of(queues.begin(), queues.end(), [place](const auto& queue) {
          return queue->place == place;
        })) {
      return place;
    }
  }
  return kQueuesMax;
}

void Device::count_device_bytes(std::int64_t change) {
  device_bytes_ += static_cast<std::uint64_t>(change);
  device_bytes_peak_ = std::max(device_bytes_peak_, device_bytes_);
}

}  // namespace kvspan::sim
