// SPDX-License-Identifier: Apache-2.0
// Read first: streamed.hpp.
#include "streamed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

namespace kvspan::cuda_bench {

namespace {

constexpr float kQueryScale = 12.0F;

std::uint64_t align_up(std::uint64_t value) {
  return (value + 255) / 256 * 256;
}

SessionOptions options_of(const RandomPages& pages, const StreamCase& asked) {
  SessionOptions options;
  options.geometry.layers.assign(asked.layers, pages.layer());
  options.geometry.page_tokens = kPageTokens;
  options.geometry.alignment = 256;
  options.context_tokens = asked.tokens + asked.appended;
  options.prefill_rows_max = 16;
  options.decode_rows = asked.rows_max;
  options.arena_bytes = asked.arena_bytes;
  options.stream = asked.stream;
  return options;
}

}  // namespace

Streamed::Streamed(const Bench& bench, const StreamCase& asked)
    : rig_(bench.rig),
      pages_(bench.pages.of(asked.geometry)),
      case_(asked),
      session_(take(Session::open(rig_.backend(), options_of(pages_, asked)), "opening a session")),
      tokens_(asked.tokens) {
  sequence_ = take(session_.add_sequence(), "a sequence");
  take(
      session_.load(
          sequence_,
          asked.tokens,
          [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
            const auto from = pages_.page(layer, page);
            std::memcpy(bytes.data(), from.data(), std::min(bytes.size(), from.size()));
            return {};
          }),
      "loading the history");
  place_rows();
}

void Streamed::place_rows() {
  const LayerGeometry& layer = pages_.layer();
  const auto bytes_of = [&](std::uint32_t heads, std::uint32_t head_size) {
    return align_up(std::uint64_t{case_.rows_max} * heads * head_size * sizeof(float));
  };
  q_bytes_ = bytes_of(layer.q_heads, layer.head_size_k);
  k_bytes_ = bytes_of(layer.kv_heads, layer.head_size_k);
  v_bytes_ = bytes_of(layer.kv_heads, layer.head_size_v);
  out_bytes_ = bytes_of(layer.q_heads, layer.head_size_v);
  out_offset_ = case_.layers * (q_bytes_ + k_bytes_ + v_bytes_);
  const std::uint64_t all = out_offset_ + case_.layers * out_bytes_;
  host_rows_ = host_memory(rig_, all);
  rows_ = device_memory(rig_, all);
  std::memset(host_rows_.address, 0xff, all);  // NaN: an output that nobody wrote is seen
  auto* const floats = reinterpret_cast<float*>(host_rows_.address);
  for (std::uint64_t index = 0; index < out_offset_ / sizeof(float); ++index) {
    const bool query = index * sizeof(float) % (q_bytes_ + k_bytes_ + v_bytes_) < q_bytes_;
    floats[index] = (query ? kQueryScale : 1.0F) * noise(0x73, index);
  }
  Line line(rig_, KVSPAN_ROLE_UPLOAD);
  const kvspan_segment_t segment{host_rows_.memory.get(), rows_.get(), 0, 0, all, 1, 0, 0};
  line.wait(line.copy({}, {&segment, 1}));
}

void Streamed::layer(std::uint32_t index) {
  const LayerGeometry& layer = pages_.layer();
  const auto rows_of = [&](std::uint64_t offset, std::uint32_t heads, std::uint32_t head_size) {
    kvspan_rows_t rows{};
    rows.memory = rows_.get();
    rows.offset = offset;
    rows.row_stride = std::uint64_t{heads} * head_size * sizeof(float);
    rows.head_stride = head_size * sizeof(float);
    return rows;
  };
  const std::uint64_t at = index * (q_bytes_ + k_bytes_ + v_bytes_);
  WriteRows write;
  write.k = rows_of(at + q_bytes_, layer.kv_heads, layer.head_size_k);
  write.v = rows_of(at + q_bytes_ + k_bytes_, layer.kv_heads, layer.head_size_v);
  take(session_.write(index, write), "writing a layer");
  AttendRows attend;
  attend.q = rows_of(at, layer.q_heads, layer.head_size_k);
  attend.out = rows_of(out_offset_ + index * out_bytes_, layer.q_heads, layer.head_size_v);
  attend.scale = 1.0F / std::sqrt(static_cast<float>(layer.head_size_k));
  last_ = take(session_.attend(index, attend), "attending a layer");
}

std::uint64_t Streamed::step_bytes() const {
  const Plan& plan = session_.plan();
  std::uint64_t bytes = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    const std::uint64_t complete = tokens_ / kPageTokens;
    const std::uint64_t resident = std::min<std::uint64_t>(complete, plan.resident_pages[layer]);
    bytes += (complete - resident) * plan.pages[layer].page_bytes;
  }
  return bytes;
}

double Streamed::step(std::uint32_t rows) {
  rows_of_step_ = rows;
  const Clock::time_point start = Clock::now();
  const StepRows part{sequence_, rows};
  take(session_.begin_step({&part, 1}, Phase::decode), "beginning a step");
  for (std::uint32_t index = 0; index < case_.layers; ++index) {
    layer(index);
    if (case_.wait_each_layer || index + 1 == case_.layers) {
      take(session_.wait(last_), "waiting for a layer");
    }
    if (case_.gap_seconds > 0.0) {
      for (const Clock::time_point begin = Clock::now();
           seconds_since(begin) < case_.gap_seconds;) {
        std::this_thread::yield();
      }
    }
  }
  take(session_.commit({&rows, 1}), "committing");
  tokens_ += rows;
  return seconds_since(start);
}

std::vector<float> Streamed::outputs() {
  Line line(rig_, KVSPAN_ROLE_DOWNLOAD);
  const std::uint64_t bytes = case_.layers * out_bytes_;
  const kvspan_segment_t segment{
      rows_.get(), host_rows_.memory.get(), out_offset_, out_offset_, bytes, 1, 0, 0};
  line.wait(line.copy({}, {&segment, 1}));
  std::vector<float> out;
  const std::uint64_t row_floats =
      std::uint64_t{pages_.layer().q_heads} * pages_.layer().head_size_v;
  for (std::uint32_t index = 0; index < case_.layers; ++index) {
    const auto* const from =
        reinterpret_cast<const float*>(host_rows_.address + out_offset_ + index * out_bytes_);
    out.insert(out.end(), from, from + rows_of_step_ * row_floats);
  }
  return out;
}

StreamTimes time_steps(const Bench& bench,
                       const StreamCase& asked,
                       const std::vector<Steps>& steps) {
  Streamed engine(bench, asked);
  StreamTimes times{engine.session().plan(), {}};
  for (const Steps& wanted : steps) {
    StepTimes& out = times.steps.emplace_back();
    out.rows = wanted.rows;
    (void)engine.step(wanted.rows);
    out.outputs = engine.outputs();
    const Counters before = engine.session().counters();
    const CpuTime cpu_before = cpu_time();
    std::uint64_t expected = 0;
    std::vector<double> seconds;
    for (int step = 0; step < wanted.timed; ++step) {
      expected += engine.step_bytes();
      seconds.push_back(engine.step(wanted.rows));
    }
    const CpuTime cpu_after = cpu_time();
    const Counters after = engine.session().counters();
    const std::uint64_t streamed = after.streamed_bytes - before.streamed_bytes;
    if (streamed != expected) {
      throw Failure(fmt::format("{} bytes were streamed, {} had to be", streamed, expected));
    }
    const auto timed = static_cast<std::uint64_t>(std::max(wanted.timed, 1));
    out.seconds = spread_of(seconds);
    out.bytes = streamed / timed;
    out.pages = (after.streamed_pages - before.streamed_pages) / timed;
    const auto pages = static_cast<double>(after.streamed_pages - before.streamed_pages);
    if (pages > 0.0) {
      out.cpu = {(cpu_after.process - cpu_before.process) / pages,
                 (cpu_after.thread - cpu_before.thread) / pages};
    }
  }
  return times;
}

StreamTimes time_resident(const Bench& bench,
                          const StreamCase& asked,
                          const std::vector<Steps>& steps) {
  StreamCase resident = asked;
  resident.stream = {};
  resident.arena_bytes = std::uint64_t{64} << 30;
  resident.wait_each_layer = false;
  resident.gap_seconds = 0.0;
  StreamTimes times = time_steps(bench, resident, steps);
  if (times.plan.mode != PlanMode::resident) {
    throw Failure("the run to compare with is not resident");
  }
  return times;
}

std::string compare(const StepTimes& streamed, const StepTimes& resident) {
  const std::vector<float>& outputs = streamed.outputs;
  if (outputs.empty() || outputs.size() != resident.outputs.size() ||
      std::memcmp(outputs.data(), resident.outputs.data(), outputs.size() * sizeof(float)) != 0) {
    throw Failure("outputs differ from the resident run");
  }
  for (const float value : outputs) {
    if (!(value >= -1.5F && value <= 1.5F)) {
      throw Failure("an output is not a mean of values between -1 and 1");
    }
  }
  return fmt::format("memcmp of {} outputs with resident", outputs.size());
}

}  // namespace kvspan::cuda_bench
