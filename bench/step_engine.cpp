// SPDX-License-Identifier: Apache-2.0
// Read first: step_engine.hpp.
#include "kvspan/bench/step_engine.hpp"

#include "kvspan/bench/spread.hpp"
#include "kvspan/sdk/reference/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

namespace kvspan::bench {

namespace {

// Larger than any arena that a plan can fill.
constexpr std::uint64_t kUnboundedBytes = std::uint64_t{1} << 50;

std::uint64_t align_up(std::uint64_t value) {
  return (value + 255) / 256 * 256;
}

std::uint64_t element_bytes(kvspan_type_t type) {
  return type == KVSPAN_TYPE_F16 ? 2 : sizeof(float);
}

kvspan_rows_t rows_in(const DeviceMemory& memory,
                      std::uint64_t offset,
                      std::uint32_t heads,
                      std::uint32_t head_size,
                      kvspan_type_t type = KVSPAN_TYPE_F32) {
  kvspan_rows_t rows{};
  rows.memory = memory.get();
  rows.offset = offset;
  rows.row_stride = heads * head_size * element_bytes(type);
  rows.head_stride = head_size * element_bytes(type);
  rows.type = type;
  return rows;
}

// Values [first, first + count) of the noise that all rows are made of, as queries of a type.
void write_queries(kvspan_type_t type, std::uint64_t first, std::uint64_t count, std::byte* to) {
  std::vector<float> values(count);
  for (std::uint64_t index = 0; index < count; ++index) {
    values[index] = kQueryScale * noise(0x73, first + index);
  }
  (void)kvspan_ref_encode_row(type, values.data(), count, to);
}

}  // namespace

SessionOptions session_options(const RandomPages& pages, const StepCase& asked) {
  SessionOptions options;
  options.geometry.layers.assign(asked.layers, pages.layer());
  options.geometry.page_tokens = pages.layout().page_tokens;
  options.geometry.alignment = 256;
  options.context_tokens = asked.tokens + asked.appended;
  options.prefill_rows_max = asked.chunk_rows == 0 ? 16 : asked.chunk_rows;
  options.prefill_rows_fixed = asked.chunk_rows;
  options.decode_rows = asked.rows_max;
  options.arena_bytes = asked.arena_bytes;
  options.q_type = asked.query_type;
  options.stream = asked.stream;
  return options;
}

namespace {

// In all the memory that there could be.
Result<Plan> unbounded_plan(const Backend& backend,
                            const RandomPages& pages,
                            const StepCase& asked) {
  PlanRequest request = plan_request(backend, session_options(pages, asked));
  request.arena_bytes = kUnboundedBytes;
  return plan(request);
}

}  // namespace

Result<std::uint64_t> arena_for(const Backend& backend,
                                const RandomPages& pages,
                                const StepCase& asked) {
  auto found = unbounded_plan(backend, pages, asked);
  if (!found) {
    return tl::unexpected(std::move(found).error());
  }
  return found->regions.total_bytes();
}

Result<StepCase> resident_case(const Backend& backend,
                               const RandomPages& pages,
                               const StepCase& asked) {
  StepCase resident = asked;
  resident.stream = {};
  resident.wait_each_layer = false;
  resident.gap_seconds = 0.0;
  resident.other_work = nullptr;
  resident.submission_thread = false;
  const auto found = unbounded_plan(backend, pages, resident);
  if (!found) {
    return tl::unexpected(found.error());
  }
  if (found->mode != PlanMode::resident) {
    return tl::unexpected(
        error_of(Errc::internal, "the run to compare with is not resident", "bench"));
  }
  resident.arena_bytes = found->regions.total_bytes();
  return resident;
}

Result<StepEngine> StepEngine::open(const Backend& backend,
                                    const RandomPages& pages,
                                    const StepCase& asked) {
  auto session = Session::open(backend, session_options(pages, asked));
  if (!session) {
    return tl::unexpected(std::move(session).error());
  }
  StepEngine engine(backend, pages, asked, std::move(*session));
  auto done = engine.load();
  if (done) {
    done = engine.place_rows();
  }
  if (!done) {
    return tl::unexpected(std::move(done).error());
  }
  if (asked.submission_thread) {
    auto thread = SubmissionThread::start(std::move(*engine.session_));
    if (!thread) {
      return tl::unexpected(std::move(thread).error());
    }
    engine.session_.reset();
    engine.thread_ = std::make_unique<SubmissionThread>(std::move(*thread));
  }
  return engine;
}

Result<void> StepEngine::load() {
  const auto sequence = session_->add_sequence();
  if (!sequence) {
    return tl::unexpected(sequence.error());
  }
  sequence_ = *sequence;
  tokens_ = case_.tokens;
  return session_->load(
      sequence_,
      case_.tokens,
      [this](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
        const auto from = pages_->page(layer, page);
        std::memcpy(bytes.data(), from.data(), std::min(bytes.size(), from.size()));
        return {};
      });
}

// In device memory, where an engine has them.
Result<void> StepEngine::place_rows() {
  const LayerGeometry& layer = pages_->layer();
  const std::uint32_t rows_max = std::max(case_.rows_max, case_.chunk_rows);
  const auto bytes_of = [&](std::uint32_t heads, std::uint32_t head_size) {
    return align_up(std::uint64_t{rows_max} * heads * head_size * sizeof(float));
  };
  q_bytes_ =
      align_up(rows_max * layer.q_heads * layer.head_size_k * element_bytes(case_.query_type));
  k_bytes_ = bytes_of(layer.kv_heads, layer.head_size_k);
  v_bytes_ = bytes_of(layer.kv_heads, layer.head_size_v);
  out_bytes_ = bytes_of(layer.q_heads, layer.head_size_v);
  const std::uint64_t in_bytes = q_bytes_ + k_bytes_ + v_bytes_;
  out_offset_ = case_.layers * in_bytes;
  const std::uint64_t all = out_offset_ + case_.layers * out_bytes_;
  auto host = host_memory(backend_, all);
  auto device = backend_.allocate(KVSPAN_MEMORY_DEVICE, all);
  if (!host || !device) {
    return tl::unexpected(host ? device.error() : host.error());
  }
  host_rows_ = std::move(*host);
  rows_ = std::move(*device);
  std::memset(host_rows_.address, 0xff, all);  // NaN: an output that nobody wrote is seen
  auto* const floats = reinterpret_cast<float*>(host_rows_.address);
  for (std::uint64_t index = 0; index < out_offset_ / sizeof(float); ++index) {
    floats[index] = noise(0x73, index);
  }
  for (std::uint64_t at = 0; at < out_offset_; at += in_bytes) {
    write_queries(case_.query_type,
                  at / sizeof(float),
                  q_bytes_ / element_bytes(case_.query_type),
                  host_rows_.address + at);
  }
  auto line = Line::create(backend_, KVSPAN_ROLE_UPLOAD);
  if (!line) {
    return tl::unexpected(std::move(line).error());
  }
  return line->move({host_rows_.memory.get(), rows_.get(), 0, 0, all, 1, 0, 0});
}

// Sets last_ where somebody asks for the point.
Result<void> StepEngine::submit(std::uint32_t index,
                                const WriteRows& write,
                                const AttendRows& attend) {
  Result<kvspan_point_t> point;
  if (thread_) {
    const auto ticket = thread_->layer(index, write, attend);
    if (!ticket) {
      return tl::unexpected(ticket.error());
    }
    last_ticket_ = *ticket;
    if (case_.other_work == nullptr) {
      return {};
    }
    point = thread_->point(last_ticket_);
  } else {
    auto written = session_->write(index, write);
    point = written ? session_->attend(index, attend)
                    : Result<kvspan_point_t>(tl::unexpected(std::move(written).error()));
  }
  if (!point) {
    return tl::unexpected(std::move(point).error());
  }
  last_ = *point;
  return {};
}

// For the outputs of the last layer that was submitted.
Result<void> StepEngine::wait() {
  return thread_ ? thread_->wait(last_ticket_) : session_->wait(last_);
}

Result<void> StepEngine::layer(std::uint32_t index) {
  const LayerGeometry& layer = pages_->layer();
  const std::uint64_t at = index * (q_bytes_ + k_bytes_ + v_bytes_);
  WriteRows write;
  write.k = rows_in(rows_, at + q_bytes_, layer.kv_heads, layer.head_size_k);
  write.v = rows_in(rows_, at + q_bytes_ + k_bytes_, layer.kv_heads, layer.head_size_v);
  write.ready = ready_;
  AttendRows attend;
  attend.q = rows_in(rows_, at, layer.q_heads, layer.head_size_k, case_.query_type);
  attend.out = rows_in(rows_, out_offset_ + index * out_bytes_, layer.q_heads, layer.head_size_v);
  attend.scale = 1.0F / std::sqrt(static_cast<float>(layer.head_size_k));
  attend.ready = ready_;
  if (auto submitted = submit(index, write, attend); !submitted) {
    return submitted;
  }
  if (case_.other_work != nullptr) {
    auto behind = case_.other_work->submit(last_);
    if (!behind) {
      return tl::unexpected(std::move(behind).error());
    }
    ready_ = {*behind};
  }
  if (case_.wait_each_layer || index + 1 == case_.layers) {
    auto waited = wait();
    if (waited && case_.other_work != nullptr) {
      waited = case_.other_work->wait(ready_.front());
    }
    if (!waited) {
      return waited;
    }
  }
  for (const Clock::time_point begin = Clock::now(); seconds_since(begin) < case_.gap_seconds;) {
    std::this_thread::yield();
  }
  return {};
}

StepTraffic StepEngine::traffic() const {
  const Plan& plan = session().plan();
  const std::uint64_t complete = tokens_ / pages_->layout().page_tokens;
  StepTraffic traffic;
  for (std::size_t index = 0; index < plan.pages.size(); ++index) {
    const PageLayout& page = plan.pages[index];
    const std::uint64_t pages =
        complete - std::min<std::uint64_t>(complete, plan.resident_pages[index]);
    traffic.pages += pages;
    traffic.bytes_min += pages * page.page_tokens * (page.k_token_bytes + page.v_token_bytes);
    traffic.bytes_max += pages * page.page_bytes;
  }
  return traffic;
}

Result<void> StepEngine::truncate(std::uint64_t tokens) {
  auto done = session().truncate(sequence_, tokens);
  if (done) {
    tokens_ = tokens;
  }
  return done;
}

Result<double> StepEngine::step(std::uint32_t rows, Phase phase) {
  rows_of_step_ = rows;
  const Clock::time_point start = Clock::now();
  const StepRows part{sequence_, rows};
  auto begun =
      thread_ ? thread_->begin_step({&part, 1}, phase) : session_->begin_step({&part, 1}, phase);
  if (!begun) {
    return tl::unexpected(std::move(begun).error());
  }
  for (std::uint32_t index = 0; index < case_.layers; ++index) {
    if (auto done = layer(index); !done) {
      return tl::unexpected(std::move(done).error());
    }
  }
  auto committed = thread_ ? thread_->commit({&rows, 1}) : session_->commit({&rows, 1});
  if (!committed) {
    return tl::unexpected(std::move(committed).error());
  }
  tokens_ += rows;
  return seconds_since(start);
}

Result<std::vector<float>> StepEngine::outputs() {
  auto line = Line::create(backend_, KVSPAN_ROLE_DOWNLOAD);
  if (!line) {
    return tl::unexpected(std::move(line).error());
  }
  const std::uint64_t bytes = case_.layers * out_bytes_;
  if (auto moved = line->move(
          {rows_.get(), host_rows_.memory.get(), out_offset_, out_offset_, bytes, 1, 0, 0});
      !moved) {
    return tl::unexpected(std::move(moved).error());
  }
  std::vector<float> out;
  const std::uint64_t row_floats =
      std::uint64_t{pages_->layer().q_heads} * pages_->layer().head_size_v;
  for (std::uint32_t index = 0; index < case_.layers; ++index) {
    const auto* const from =
        reinterpret_cast<const float*>(host_rows_.address + out_offset_ + index * out_bytes_);
    out.insert(out.end(), from, from + rows_of_step_ * row_floats);
  }
  return out;
}

}  // namespace kvspan::bench
