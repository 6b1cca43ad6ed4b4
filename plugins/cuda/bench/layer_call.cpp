// SPDX-License-Identifier: Apache-2.0
// Read first: layer_call.hpp.
#include "layer_call.hpp"

#include "kvspan/sdk/reference/half.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvspan::cuda_bench {

namespace {

constexpr std::uint64_t kRotatedBytes = 600'000'000;
constexpr std::uint64_t kCallsMax = 48;  // with more, launching waits until the queue moves on
constexpr std::uint32_t kPreparedDepth = 128;
constexpr std::uint32_t kPreparedItems = 64;
constexpr std::uint32_t kPreparedPages = 8192;
constexpr std::uint64_t kOutBytesMax = std::uint64_t{256} << 20;

// Bound of the default error class on max |error| / max |V|, |V| < 1 here.
constexpr double kErrorMax = 2e-3;

std::uint64_t align_up(std::uint64_t value) {
  return (value + 255) / 256 * 256;
}

}  // namespace

LayerHistory::LayerHistory(const Rig& rig,
                           const bench::RandomPages& pages,
                           const Plug& plug,
                           const LayerCase& asked)
    : pages_(pages), case_(asked) {
  set_pages_ = (asked.tokens + kPageTokens - 1) / kPageTokens;
  const std::uint64_t set_bytes = set_pages_ * pages.layout().page_bytes;
  sets_ = std::max<std::uint64_t>(2, kRotatedBytes / set_bytes + 1);
  if (asked.memory_kind == KVSPAN_MEMORY_DEVICE) {
    device_ = device_memory(rig, sets_ * set_bytes);
    upload(rig, plug);
  } else {
    host_ = host_memory(rig, sets_ * set_bytes);
    map();
  }
}

std::uint64_t LayerHistory::bytes() const {
  return case_.tokens * (pages_.layout().k_token_bytes + pages_.layout().v_token_bytes);
}

void LayerHistory::upload(const Rig& rig, const Plug& plug) {
  Line line(rig, KVSPAN_ROLE_UPLOAD);
  const std::uint64_t page_bytes = pages_.layout().page_bytes;
  const std::uint64_t each = kPlugBytes / page_bytes;
  const std::uint64_t all = sets_ * set_pages_;
  for (std::uint64_t first = 0; first < all; first += each) {
    const std::uint64_t count = std::min(each, all - first);
    for (std::uint64_t index = 0; index < count; ++index) {
      const std::uint64_t set = (first + index) / set_pages_;
      const std::uint64_t page = (first + index) % set_pages_;
      std::memcpy(
          plug.source.address + index * page_bytes, pages_.page(set, page).data(), page_bytes);
    }
    const kvspan_segment_t segment{plug.source.memory.get(),
                                   device_.get(),
                                   0,
                                   first * page_bytes,
                                   count * page_bytes,
                                   1,
                                   0,
                                   0};
    line.wait(line.copy({}, {&segment, 1}));
  }
}

void LayerHistory::map() {
  const std::uint64_t page_bytes = pages_.layout().page_bytes;
  for (std::uint64_t index = 0; index < sets_ * set_pages_; ++index) {
    std::memcpy(host_.address + index * page_bytes,
                pages_.page(index / set_pages_, index % set_pages_).data(),
                page_bytes);
  }
}

kvspan_span_t LayerHistory::span(std::uint64_t set) const {
  const PageLayout& page = pages_.layout();
  kvspan_span_t span{};
  span.token_count = case_.tokens;
  span.k.memory = device_ ? device_.get() : host_.memory.get();
  span.k.offset = set * set_pages_ * page.page_bytes;
  span.k.page_stride = page.tile_bytes;
  span.k.row_stride = page.k_row_bytes;
  span.k.head_stride = page.k_head_bytes;
  span.k.page_tokens = page.tile_tokens;
  span.v = span.k;
  span.v.offset += page.v_offset;
  span.v.row_stride = page.v_row_bytes;
  span.v.head_stride = page.v_head_bytes;
  return span;
}

LayerCall::LayerCall(const Rig& rig,
                     const LayerHistory& history,
                     const Plug& plug,
                     std::uint32_t rows)
    : rig_(rig),
      history_(history),
      plug_(plug),
      row_count_(rows),
      compute_(rig, KVSPAN_ROLE_COMPUTE),
      upload_(rig, KVSPAN_ROLE_UPLOAD) {
  make_shape();
  make_rows();
}

void LayerCall::make_shape() {
  const LayerGeometry& layer = history_.pages().layer();
  shape_.struct_size = sizeof shape_;
  shape_.k_type = layer.k_type;
  shape_.v_type = layer.v_type;
  shape_.head_size_k = layer.head_size_k;
  shape_.head_size_v = layer.head_size_v;
  shape_.q_type = KVSPAN_TYPE_F16;  // as engines hand them over
  shape_.out_type = KVSPAN_TYPE_F32;
  shape_.q_heads = layer.q_heads;
  shape_.kv_heads = layer.kv_heads;
  shape_.row_class = history_.asked().row_class;
  shape_.error_class = KVSPAN_ERROR_E1;
  shape_.memory_kinds = 1U << history_.asked().memory_kind;
  shape_.rows_max = row_count_;
  shape_.entries_max = 1;
  shape_.items_max = 1;
  shape_.spans_max = 1;
  shape_.tokens_max = history_.asked().tokens;
  caps_ = take(rig_.backend().query(shape_), "asking for the shape");
  workspace_ = device_memory(rig_, std::max<std::uint64_t>(caps_.run_workspace_bytes, 1));
  prepare();
}

// A session of another row may have told the device of fewer rows.
void LayerCall::prepare() const {
  kvspan_prepare_t request{};
  request.struct_size = sizeof request;
  request.depth = kPreparedDepth;
  request.segments_max = kPreparedItems;
  request.codec_items_max = kPreparedItems;
  request.attention_items_max = kPreparedItems;
  request.spans_max = kPreparedItems;
  request.page_list_max = kPreparedPages;
  request.shape_count = 1;
  request.shapes = &shape_;
  kvspan_prepared_t prepared{};
  prepared.struct_size = sizeof prepared;
  const Backend& backend = rig_.backend();
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  if (backend.tables().device->prepare(backend.device(), &request, &prepared, &error) !=
      KVSPAN_OK) {
    throw Failure(std::string("preparing for the shape: ") + error.message);
  }
}

void LayerCall::make_rows() {
  const LayerGeometry& layer = history_.pages().layer();
  const std::uint64_t q_floats = std::uint64_t{row_count_} * layer.q_heads * layer.head_size_k;
  q_bytes_ = align_up(q_floats * sizeof(std::uint16_t));
  out_bytes_ =
      align_up(std::uint64_t{row_count_} * layer.q_heads * layer.head_size_v * sizeof(float));
  out_sets_ = std::clamp<std::uint64_t>(kOutBytesMax / out_bytes_, 1, history_.sets());
  const std::uint64_t all = q_bytes_ + out_sets_ * out_bytes_;
  rows_ = device_memory(rig_, all);
  host_rows_ = host_memory(rig_, all);
  std::memset(host_rows_.address, 0xff, all);  // NaN: an output that nobody wrote is seen
  auto* const q = reinterpret_cast<std::uint16_t*>(host_rows_.address);
  queries_.resize(q_floats);
  for (std::uint64_t index = 0; index < q_floats; ++index) {
    q[index] = kvspan_ref_f16_from_f32(bench::kQueryScale * bench::noise(0x71, index));
    queries_[index] = kvspan_ref_f32_from_f16(q[index]);
  }
  const kvspan_segment_t segment{host_rows_.memory.get(), rows_.get(), 0, 0, all, 1, 0, 0};
  upload_.wait(upload_.copy({}, {&segment, 1}));
  for (std::uint32_t row = 0; row < row_count_; ++row) {
    visible_end_.push_back(history_.asked().tokens - row_count_ + row + 1);
  }
}

kvspan_point_t LayerCall::run(std::uint64_t set, std::span<const kvspan_point_t> waits) {
  const LayerGeometry& layer = history_.pages().layer();
  const std::uint64_t tokens = history_.asked().tokens;
  const kvspan_span_t span = history_.span(set);
  const auto rows_of = [&](std::uint64_t offset, std::uint32_t head_size, kvspan_type_t type) {
    kvspan_rows_t rows{};
    rows.memory = rows_.get();
    rows.offset = offset;
    rows.type = type;
    rows.head_stride =
        head_size * (type == KVSPAN_TYPE_F32 ? sizeof(float) : sizeof(std::uint16_t));
    rows.row_stride = layer.q_heads * rows.head_stride;
    return rows;
  };
  kvspan_entry_t entry{};
  entry.spans = &span;
  entry.span_count = 1;
  entry.visible_end = visible_end_.data();
  entry.row_count = row_count_;
  entry.token_total = tokens;
  const std::uint64_t each = (tokens + caps_.split_count - 1) / caps_.split_count;
  entry.split_tokens = (each + caps_.span_granule - 1) / caps_.span_granule * caps_.span_granule;
  entry.q = rows_of(0, layer.head_size_k, shape_.q_type);
  entry.out = rows_of(q_bytes_ + set % out_sets_ * out_bytes_, layer.head_size_v, shape_.out_type);
  kvspan_attention_args_t args{};
  args.struct_size = sizeof args;
  args.entry_count = 1;
  args.shape = &shape_;
  args.entries = &entry;
  args.scale = 1.0F / std::sqrt(static_cast<float>(layer.head_size_k));
  args.workspace = {workspace_.get(), 0, caps_.run_workspace_bytes};
  return compute_.submit(
      waits, [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        queue_ = queue;
        kvspan_submit_t measured = *submit;
        measured.flags |= KVSPAN_SUBMIT_MEASURE;
        return rig_.tables().attention->run(queue, &args, &measured, error);
      });
}

// Sum of the durations of all calls that are over and were not asked for yet.
double LayerCall::measured_seconds() const {
  double seconds = 0.0;
  std::uint32_t count = queue_ != nullptr ? 1 : 0;
  while (count != 0) {
    kvspan_measurement_t measured[64];
    kvspan_error_t error = empty_error();
    check(rig_.tables().copy->feedback(queue_, measured, 64, &count, &error),
          error,
          "asking for durations");
    for (std::uint32_t i = 0; i < count; ++i) {
      seconds += static_cast<double>(measured[i].duration_ns) * 1e-9;
    }
  }
  return seconds;
}

// Seconds a call took on the device, from event to event. Behind a copy that lasts longer than
// submitting all of them does, so that none waits for the host.
double LayerCall::time_once(std::uint64_t calls, std::uint64_t plug_bytes, bool& covered) {
  const kvspan_segment_t plug{
      plug_.source.memory.get(), plug_.target.get(), 0, 0, plug_bytes, 1, 0, 0};
  (void)measured_seconds();  // of the calls before
  const kvspan_point_t plugged = upload_.copy({}, {&plug, 1});
  kvspan_point_t last{};
  for (std::uint64_t call = 0; call < calls; ++call) {
    last = run(call % history_.sets(),
               call == 0 ? std::span(&plugged, 1) : std::span<kvspan_point_t>{});
  }
  covered = !upload_.reached(plugged);
  upload_.wait(plugged);
  compute_.wait(last);
  return measured_seconds() / static_cast<double>(calls);
}

std::vector<double> LayerCall::time(int repetitions) {
  bool covered = false;
  (void)time_once(2, kPlugBytes / 8, covered);  // loads what is loaded when first used
  const double first = time_once(2, kPlugBytes / 8, covered);
  // About 8 ms a repetition; the copy in front lasts longer than submitting them takes.
  const auto wanted = static_cast<std::uint64_t>(0.008 / std::max(first, 1e-6));
  const std::uint64_t calls = std::clamp<std::uint64_t>(wanted, 2, kCallsMax);
  // A kernel that is far from any goal still gets a value, in bounded time.
  const int runs = first * static_cast<double>(calls) > 0.2 ? 3 : repetitions;
  for (int warm = 0; warm < 3; ++warm) {  // every packet of the queue has its room afterwards
    (void)time_once(calls, kPlugBytes, covered);
  }
  std::vector<double> seconds;
  for (int repetition = 0; repetition < runs; ++repetition) {
    seconds.push_back(time_once(calls, kPlugBytes, covered));
    if (!covered) {
      throw Failure(
          fmt::format("{} submits took longer than a copy of {} bytes, so the times "
                      "would be the host's",
                      calls,
                      kPlugBytes));
    }
  }
  return seconds;
}

double LayerCall::worst_error(std::uint64_t set, std::uint32_t row, std::uint32_t head) const {
  const LayerGeometry& layer = history_.pages().layer();
  const auto* const q =
      queries_.data() + (std::uint64_t{row} * layer.q_heads + head) * layer.head_size_k;
  const std::vector<double> expected = bench::exact_attention(
      history_.pages(),
      set,
      visible_end_[row],
      head / (layer.q_heads / layer.kv_heads),
      {q, layer.head_size_k},
      static_cast<double>(1.0F / std::sqrt(static_cast<float>(layer.head_size_k))));
  const auto* const out =
      reinterpret_cast<const float*>(host_rows_.address + q_bytes_ + set % out_sets_ * out_bytes_) +
      (std::uint64_t{row} * layer.q_heads + head) * layer.head_size_v;
  double worst = 0.0;
  for (std::size_t element = 0; element < expected.size(); ++element) {
    const double error = std::abs(expected[element] - static_cast<double>(out[element]));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

std::string LayerCall::verify() {
  const std::uint64_t last_set = out_sets_ - 1;
  for (std::uint64_t set = 0; set <= last_set; ++set) {
    compute_.wait(run(set, {}));
  }
  Line line(rig_, KVSPAN_ROLE_DOWNLOAD);
  const std::uint64_t outs = out_sets_ * out_bytes_;
  const kvspan_segment_t segment{
      rows_.get(), host_rows_.memory.get(), q_bytes_, q_bytes_, outs, 1, 0, 0};
  line.wait(line.copy({}, {&segment, 1}));
  const std::uint32_t heads = history_.pages().layer().q_heads;
  const double worst = std::max(
      {worst_error(0, 0, 0),
       worst_error(last_set, row_count_ - 1, heads - 1),
       worst_error(last_set / 2, row_count_ / 2, static_cast<std::uint32_t>(last_set) % heads)});
  if (!(worst <= kErrorMax)) {
    throw Failure(fmt::format("an output is wrong by {:.3g}, allowed {:.3g}", worst, kErrorMax));
  }
  return fmt::format(
      "3 of {} output heads against f64, worst {:.2g}", out_sets_ * row_count_ * heads, worst);
}

}  // namespace kvspan::cuda_bench
