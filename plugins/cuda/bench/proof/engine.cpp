// SPDX-License-Identifier: Apache-2.0
// Read first: engine.hpp.
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kvspan::cuda_proof {

namespace {

using cuda_bench::device_memory;
using cuda_bench::host_memory;
using cuda_bench::take;

constexpr std::uint64_t kNoiseFloats = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnboundedBytes = std::uint64_t{1} << 50;

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

LayerGeometry geometry_of(bool small) {
  return small ? LayerGeometry{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 64, 64, 1, 2}
               : LayerGeometry{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24};
}

SessionOptions options_of(const Material& material, const EngineCase& asked) {
  SessionOptions options;
  options.geometry.layers.assign(asked.layers, material.pages().layer());
  options.geometry.page_tokens = static_cast<std::uint32_t>(material.page_tokens());
  options.geometry.alignment = 256;
  options.context_tokens = asked.context_tokens;
  options.sequences = asked.sequences;
  options.prefill_rows_max = asked.prefill_rows;
  options.prefill_rows_fixed = asked.prefill_rows;
  options.decode_rows = kDecodeRows;
  options.stream = asked.stream;
  options.placement.changes = asked.moves;
  return options;
}

Session open(const Rig& rig, const Material& material, const EngineCase& asked) {
  SessionOptions options = options_of(material, asked);
  if (asked.arena_bytes) {
    options.arena_bytes = *asked.arena_bytes;
  } else {
    PlanRequest request = plan_request(rig.backend(), options);
    request.arena_bytes = kUnboundedBytes;
    options.arena_bytes = take(plan(request), "planning").regions.total_bytes();
  }
  return take(Session::open(rig.backend(), options), "opening a session");
}

std::uint64_t floats_of(std::uint32_t heads, std::uint32_t head_size) {
  return std::uint64_t{heads} * head_size;
}

}  // namespace

std::uint64_t Dice::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  return mixed(state_);
}

Material Material::make(bool small) {
  const std::uint32_t page_tokens = small ? 64 : 256;
  return Material(
      take(bench::RandomPages::create(geometry_of(small), page_tokens, 256), "random pages"));
}

Material::Material(bench::RandomPages pages) : pages_(std::move(pages)), noise_(kNoiseFloats) {
  for (std::uint64_t index = 0; index < kNoiseFloats; ++index) {
    noise_[index] = bench::noise(0x70, index);
  }
}

void Material::copy_row(const Text& text,
                        std::uint32_t layer,
                        std::uint64_t token,
                        std::uint32_t kind,
                        std::span<float> to) const {
  const std::uint64_t key = mixed(mixed(mixed(text.id * 4 + kind) + layer) + token);
  const float* const from = noise_.data() + key % (kNoiseFloats - to.size());
  const float scale = kind == 2 ? bench::kQueryScale : 1.0F;
  std::transform(
      from, from + to.size(), to.begin(), [scale](float value) { return scale * value; });
}

Engine::Engine(const Rig& rig, const Material& material, const EngineCase& asked)
    : rig_(rig),
      material_(material),
      case_(asked),
      rows_max_(std::max(asked.prefill_rows, asked.sequences * kDecodeRows)),
      up_(rig, KVSPAN_ROLE_UPLOAD),
      down_(rig, KVSPAN_ROLE_DOWNLOAD),
      session_(open(rig, material, asked)) {
  const LayerGeometry& layer = material.pages().layer();
  q_floats_ = floats_of(layer.q_heads, layer.head_size_k);
  k_floats_ = floats_of(layer.kv_heads, layer.head_size_k);
  v_floats_ = floats_of(layer.kv_heads, layer.head_size_v);
  out_floats_ = floats_of(layer.q_heads, layer.head_size_v);
  const std::uint64_t rows = asked.layers * rows_max_ * sizeof(float);
  host_rows_ = host_memory(rig, rows * (q_floats_ + k_floats_ + v_floats_));
  host_out_ = host_memory(rig, rows * out_floats_);
  rows_ = device_memory(rig, rows * (q_floats_ + k_floats_ + v_floats_));
  out_ = device_memory(rig, rows * out_floats_);
}

SequenceId Engine::add(const Text& text) {
  const SequenceId sequence = take(session_.add_sequence(), "adding a sequence");
  texts_[sequence] = text;
  const auto source =
      [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
    const auto from =
        material_.pages().page(layer + 1024 * static_cast<std::uint32_t>(text.id), page);
    std::memcpy(bytes.data(), from.data(), std::min(bytes.size(), from.size()));
    return {};
  };
  if (text.loaded_tokens != 0) {
    take(session_.load(sequence, text.loaded_tokens, source), "loading a text");
  }
  return sequence;
}

void Engine::remove(SequenceId sequence) {
  take(session_.remove_sequence(sequence), "removing a sequence");
  texts_.erase(sequence);
}

// Rows of all sequences lie behind each other, layer by layer.
void Engine::prepare(std::span<const StepRows> parts) {
  const std::uint64_t row_floats = q_floats_ + k_floats_ + v_floats_;
  auto* const floats = reinterpret_cast<float*>(host_rows_.address);
  std::vector<kvspan_segment_t> segments;
  for (std::uint32_t layer = 0; layer < case_.layers; ++layer) {
    std::uint64_t at = layer * rows_max_ * row_floats;
    const auto plane = [&](std::uint32_t kind, std::uint64_t count) {
      std::uint64_t row = at;
      for (const StepRows& part : parts) {
        const std::uint64_t begin = take(session_.tokens(part.sequence), "asking for tokens");
        for (std::uint64_t token = begin; token < begin + part.rows; ++token, row += count) {
          material_.copy_row(texts_.at(part.sequence), layer, token, kind, {floats + row, count});
        }
      }
      segments.push_back({host_rows_.memory.get(),
                          rows_.get(),
                          at * sizeof(float),
                          at * sizeof(float),
                          (row - at) * sizeof(float),
                          1,
                          0,
                          0});
      at += rows_max_ * count;
    };
    plane(2, q_floats_);
    plane(0, k_floats_);
    plane(1, v_floats_);
  }
  up_.wait(up_.copy({}, segments));
  up_.wait(up_.fill(out_, case_.layers * rows_max_ * out_floats_ * sizeof(float), 0xff));
}

Result<void> Engine::layer(std::uint32_t index) {
  const LayerGeometry& of = material_.pages().layer();
  const std::uint64_t row_floats = q_floats_ + k_floats_ + v_floats_;
  std::uint64_t at = index * rows_max_ * row_floats * sizeof(float);
  const auto rows_at =
      [](const DeviceMemory& memory, std::uint64_t offset, std::uint64_t row, std::uint64_t head) {
        return kvspan_rows_t{
            memory.get(), offset, row * sizeof(float), head * sizeof(float), KVSPAN_TYPE_F32, 0};
      };
  AttendRows attend;
  attend.q = rows_at(rows_, at, q_floats_, of.head_size_k);
  attend.out =
      rows_at(out_, index * rows_max_ * out_floats_ * sizeof(float), out_floats_, of.head_size_v);
  attend.scale = 1.0F / std::sqrt(static_cast<float>(of.head_size_k));
  at += rows_max_ * q_floats_ * sizeof(float);
  WriteRows write;
  write.k = rows_at(rows_, at, k_floats_, of.head_size_k);
  at += rows_max_ * k_floats_ * sizeof(float);
  write.v = rows_at(rows_, at, v_floats_, of.head_size_v);
  if (auto written = session_.write(index, write); !written) {
    return written;
  }
  auto point = session_.attend(index, attend);
  if (!point) {
    return tl::unexpected(std::move(point).error());
  }
  last_ = *point;
  layers_done_ = index + 1;
  return {};
}

Result<void> Engine::run(std::span<const StepRows> parts, Phase phase) {
  rows_of_step_ = 0;
  layers_done_ = 0;
  std::vector<std::uint32_t> accepted;
  for (const StepRows& part : parts) {
    rows_of_step_ += part.rows;
    accepted.push_back(part.rows);
  }
  if (auto begun = session_.begin_step(parts, phase); !begun) {
    return begun;
  }
  for (std::uint32_t index = 0; index < case_.layers; ++index) {
    if (auto done = layer(index); !done) {
      return done;
    }
    const bool waits = pace_ == Pace::by_layer || index + 1 == case_.layers;
    if (auto waited = waits ? session_.wait(last_) : Result<void>(); !waited) {
      session_.cancel_step();
      return waited;
    }
  }
  return session_.commit(accepted);
}

void Engine::read_back() {
  const std::uint64_t bytes = case_.layers * rows_max_ * out_floats_ * sizeof(float);
  const kvspan_segment_t segment{out_.get(), host_out_.memory.get(), 0, 0, bytes, 1, 0, 0};
  down_.wait(down_.copy({}, {&segment, 1}));
}

std::vector<float> Engine::outputs() {
  read_back();
  std::vector<float> all;
  const auto* const floats = reinterpret_cast<const float*>(host_out_.address);
  for (std::uint32_t layer = 0; layer < case_.layers; ++layer) {
    const float* const from = floats + layer * rows_max_ * out_floats_;
    all.insert(all.end(), from, from + rows_of_step_ * out_floats_);
  }
  return all;
}

std::vector<std::uint64_t> Engine::row_hashes() {
  read_back();
  std::vector<std::uint64_t> hashes(rows_of_step_, 0);
  const std::byte* const bytes = host_out_.address;
  for (std::uint32_t layer = 0; layer < case_.layers; ++layer) {
    for (std::uint32_t row = 0; row < rows_of_step_; ++row) {
      const std::byte* const from = bytes + (layer * rows_max_ + row) * out_floats_ * sizeof(float);
      for (std::uint64_t at = 0; at < out_floats_ * sizeof(float); at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, from + at, sizeof word);
        hashes[row] = mixed(hashes[row] ^ word);
      }
    }
  }
  return hashes;
}

std::uint64_t Engine::pages_to_stream(SequenceId sequence) const {
  const std::uint64_t complete =
      take(session_.tokens(sequence), "asking for tokens") / material_.page_tokens();
  std::uint64_t pages = 0;
  for (const std::uint32_t resident : session_.plan().resident_pages) {
    pages += complete - std::min<std::uint64_t>(complete, resident);
  }
  return pages;
}

std::vector<std::uint64_t> undisturbed(const Rig& rig,
                                       const Material& material,
                                       std::uint32_t layers,
                                       const Text& text,
                                       std::uint64_t tokens) {
  EngineCase asked;
  asked.layers = layers;
  asked.context_tokens = text.loaded_tokens + tokens + kDecodeRows;
  Engine engine(rig, material, asked);
  if (engine.session().plan().mode != PlanMode::resident) {
    throw cuda_bench::Failure("the run to compare with is not resident");
  }
  const SequenceId sequence = engine.add(text);
  std::vector<std::uint64_t> hashes;
  while (hashes.size() < tokens) {
    take(engine.step(sequence, kDecodeRows, Phase::decode), "an undisturbed step");
    const auto rows = engine.row_hashes();
    hashes.insert(hashes.end(), rows.begin(), rows.end());
  }
  return hashes;
}

}  // namespace kvspan::cuda_proof
