// SPDX-License-Identifier: Apache-2.0
// Buffers, tags and numbers of the engine; the oracle in double precision.
#include "rows.hpp"

#include "kvspan/sdk/reference/oracle.hpp"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "tag.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace kvspan::sim {

namespace {

std::uint64_t size_of(const LayerGeometry& layer, std::size_t which) {
  return which == 0 || which == 1 ? layer.head_size_k : layer.head_size_v;
}

std::uint64_t heads_of(const LayerGeometry& layer, std::size_t which) {
  return which == 0 || which == 3 ? layer.q_heads : layer.kv_heads;
}

// What is left of a K or V row after encoding.
std::vector<double> stored(kvspan_type_t type, const std::vector<float>& row) {
  const auto elements = static_cast<std::uint32_t>(row.size());
  std::vector<std::uint8_t> bytes(kvspan_ref_row_bytes(type, elements));
  std::vector<float> back(row.size());
  (void)kvspan_ref_encode_row(type, row.data(), elements, bytes.data());
  (void)kvspan_ref_decode_row(type, bytes.data(), elements, back.data());
  return {back.begin(), back.end()};
}

}  // namespace

std::vector<float> numbers(
    std::uint64_t key, std::uint32_t plane, std::uint32_t head, std::uint32_t size, bool quiet) {
  std::vector<float> out(size);
  Random random(key * 1031 + plane * 257 + head);
  for (float& value : out) {
    const double unit = static_cast<double>(random.next() >> 11) / 4503599627370496.0 - 1.0;
    value = static_cast<float>(quiet ? unit : 3.0 * unit);
  }
  return out;
}

std::uint64_t key_of(std::uint32_t stream,
                     std::uint32_t layer,
                     std::uint64_t token,
                     std::uint32_t generation) {
  return mix((std::uint64_t{stream} << 40) ^ (std::uint64_t{layer} << 32) ^
             (token * 0x9e3779b97f4a7c15ULL) ^ (std::uint64_t{generation} << 17));
}

Rows::Rows(Device& device, const Geometry& geometry, std::uint32_t rows_max)
    : device_(device), geometry_(geometry), rows_max_(rows_max) {
  std::uint64_t offset = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    Place place{};
    for (std::size_t which = 0; which < 4; ++which) {
      place.offset[which] = offset;
      offset += rows_max * heads_of(layer, which) * size_of(layer, which) * sizeof(float);
    }
    place.end = offset;
    places_.push_back(place);
  }
  auto memory = std::make_unique<Memory>();
  memory->device = &device;
  memory->bytes = offset;
  memory->kind = KVSPAN_MEMORY_HOST;
  memory->owned = std::make_unique<std::byte[]>(offset);
  memory->data = memory->owned.get();
  std::memset(memory->data, kPoison, offset);
  memory_ = memory.get();
  device.memories.push_back(std::move(memory));
}

Rows::~Rows() {
  device_.memories.erase(std::find_if(device_.memories.begin(),
                                      device_.memories.end(),
                                      [this](const auto& own) { return own.get() == memory_; }));
}

kvspan_rows_t Rows::at(std::uint32_t layer, std::size_t which) const {
  const LayerGeometry& geometry = geometry_.layers[layer];
  kvspan_rows_t rows{};
  rows.memory = reinterpret_cast<kvspan_memory_t*>(memory_);
  rows.offset = places_[layer].offset[which];
  rows.head_stride = size_of(geometry, which) * sizeof(float);
  rows.row_stride = heads_of(geometry, which) * rows.head_stride;
  rows.type = KVSPAN_TYPE_F32;
  return rows;
}

kvspan_range_t Rows::inputs(std::uint32_t layer) const {
  const Place& place = places_[layer];
  return {reinterpret_cast<kvspan_memory_t*>(memory_),
          place.offset[0],
          place.offset[3] - place.offset[0]};
}

kvspan_range_t Rows::outputs(std::uint32_t layer) const {
  const Place& place = places_[layer];
  return {
      reinterpret_cast<kvspan_memory_t*>(memory_), place.offset[3], place.end - place.offset[3]};
}

std::byte* Rows::row(const kvspan_rows_t& rows, std::uint64_t index, std::uint32_t head) const {
  return memory_->data + kvspan_ref_rows_offset(&rows, index, head);
}

void Rows::write(const kvspan_rows_t& rows,
                 std::uint64_t index,
                 std::uint32_t head,
                 std::uint32_t size,
                 std::uint8_t plane,
                 std::uint32_t layer,
                 const RowsPart& part,
                 std::uint64_t token) const {
  std::byte* const target = row(rows, index, head);
  if (device_.arithmetic()) {
    const std::vector<float> values = numbers(
        key_of(part.stream, layer, token, part.generation), plane, head, size, plane != kPlaneQ);
    std::memcpy(target, values.data(), size * sizeof(float));
    return;
  }
  write_tag(target,
            size * sizeof(float),
            {part.stream,
             static_cast<std::uint32_t>(token),
             plane == kPlaneQ ? part.expectation : part.generation,
             static_cast<std::uint16_t>(layer),
             plane,
             static_cast<std::uint8_t>(head)});
}

void Rows::fill(std::uint32_t layer, const std::vector<RowsPart>& parts) const {
  const LayerGeometry& geometry = geometry_.layers[layer];
  for (const RowsPart& part : parts) {
    for (std::uint32_t index = 0; index < part.rows; ++index) {
      const std::uint64_t token = part.first_token + index;
      const std::uint64_t at = part.first_row + index;
      for (std::uint32_t head = 0; head < geometry.q_heads; ++head) {
        write(q(layer), at, head, geometry.head_size_k, kPlaneQ, layer, part, token);
      }
      for (std::uint32_t head = 0; head < geometry.kv_heads; ++head) {
        write(k(layer), at, head, geometry.head_size_k, kPlaneK, layer, part, token);
        write(v(layer), at, head, geometry.head_size_v, kPlaneV, layer, part, token);
      }
    }
  }
}

void Rows::spoil_outputs(std::uint32_t layer) const {
  const Place& place = places_[layer];
  std::memset(memory_->data + place.offset[3], kPoison, place.end - place.offset[3]);
}

void Rows::check(std::uint32_t layer, const std::vector<RowsPart>& parts) const {
  for (const RowsPart& part : parts) {
    if (!device_.trouble().found()) {
      device_.arithmetic() ? check_numbers(layer, part) : check_tags(layer, part);
    }
  }
}

void Rows::check_tags(std::uint32_t layer, const RowsPart& part) const {
  const LayerGeometry& geometry = geometry_.layers[layer];
  for (std::uint32_t index = 0; index < part.rows; ++index) {
    for (std::uint32_t head = 0; head < geometry.q_heads; ++head) {
      const Tag wanted{part.stream,
                       static_cast<std::uint32_t>(part.first_token + index),
                       part.expectation,
                       static_cast<std::uint16_t>(layer),
                       kPlaneOut,
                       static_cast<std::uint8_t>(head)};
      const std::byte* const found = row(out(layer), part.first_row + index, head);
      if (!holds_tag(found, geometry.head_size_v * sizeof(float), wanted)) {
        device_.content("after the wait the output should be " + text(wanted) + " and is " +
                        text(read_tag(found)));
        return;
      }
    }
  }
}

void Rows::check_numbers(std::uint32_t layer, const RowsPart& part) const {
  const LayerGeometry& geometry = geometry_.layers[layer];
  oracle::Problem problem;
  problem.rows = part.rows;
  problem.q_heads = geometry.q_heads;
  problem.kv_heads = geometry.kv_heads;
  problem.head_size_k = geometry.head_size_k;
  problem.head_size_v = geometry.head_size_v;
  problem.scale = 1.0 / static_cast<double>(geometry.head_size_k);
  const std::uint64_t total = part.first_token + part.rows;
  for (std::uint64_t token = 0; token < total; ++token) {
    const std::uint64_t key = key_of(part.stream, layer, token, (*part.generations)[token]);
    for (std::uint32_t head = 0; head < geometry.kv_heads; ++head) {
      const auto k =
          stored(geometry.k_type, numbers(key, kPlaneK, head, geometry.head_size_k, true));
      problem.k.insert(problem.k.end(), k.begin(), k.end());
      if (!geometry.v_in_k) {
        const auto v =
            stored(geometry.v_type, numbers(key, kPlaneV, head, geometry.head_size_v, true));
        problem.v.insert(problem.v.end(), v.begin(), v.end());
      }
    }
  }
  std::vector<float> found;
  for (std::uint32_t index = 0; index < part.rows; ++index) {
    const std::uint64_t end = part.first_token + index + 1;
    problem.visible_end.push_back(end);
    const std::uint64_t window = geometry.window_tokens;
    problem.window_begin.push_back(window == 0 || end <= window ? 0 : end - window);
    const std::uint64_t key = key_of(part.stream, layer, end - 1, part.generation);
    for (std::uint32_t head = 0; head < geometry.q_heads; ++head) {
      const auto values = numbers(key, kPlaneQ, head, geometry.head_size_k, false);
      problem.q.insert(problem.q.end(), values.begin(), values.end());
      const auto* const at =
          reinterpret_cast<const float*>(row(out(layer), part.first_row + index, head));
      found.insert(found.end(), at, at + geometry.head_size_v);
    }
  }
  const oracle::Distance distance = oracle::distance(problem, oracle::attend(problem), found, {});
  constexpr double kNear = 1e-4;  // f32 states; a wrong, missing or doubled token is far beyond
  if (!distance.ordinary || distance.max_over_v > kNear) {
    device_.content("layer " + std::to_string(layer) + ", stream " + std::to_string(part.stream) +
                    ": the numbers are " + std::to_string(distance.max_over_v) +
                    " of the largest V away from the oracle's");
  }
}

void write_page(const Geometry& geometry,
                bool arithmetic,
                std::uint32_t stream,
                std::uint32_t generation,
                std::uint32_t layer,
                std::uint64_t page,
                std::uint64_t tokens,
                std::span<std::byte> bytes) {
  const LayerGeometry& of = geometry.layers[layer];
  const auto layout = page_layout(of,
                                  geometry.page_tokens,
                                  geometry.alignment,
                                  geometry.tile_tokens_max,
                                  geometry.row_alignment);
  if (!layout) {
    return;
  }
  std::memset(bytes.data(), kPoison, bytes.size());
  const auto put = [&](std::uint8_t plane,
                       std::uint64_t token,
                       std::uint32_t head,
                       std::byte* target) {
    const bool k = plane == kPlaneK;
    const std::uint32_t size = k ? of.head_size_k : of.head_size_v;
    if (arithmetic) {
      const auto values =
          numbers(key_of(stream, layer, token, generation), plane, head, size, true);
      (void)kvspan_ref_encode_row(
          k ? of.k_type : of.v_type, values.data(), size, reinterpret_cast<std::uint8_t*>(target));
    } else {
      write_tag(target,
                kvspan_ref_row_bytes(k ? of.k_type : of.v_type, size),
                {stream,
                 static_cast<std::uint32_t>(token),
                 generation,
                 static_cast<std::uint16_t>(layer),
                 plane,
                 static_cast<std::uint8_t>(head)});
    }
  };
  for (std::uint32_t index = 0; index < geometry.page_tokens; ++index) {
    const std::uint64_t token = page * geometry.page_tokens + index;
    for (std::uint32_t head = 0; token < tokens && head < of.kv_heads; ++head) {
      put(kPlaneK, token, head, bytes.data() + k_row_offset(*layout, index, head));
      if (!of.v_in_k) {
        put(kPlaneV, token, head, bytes.data() + v_row_offset(*layout, index, head));
      }
    }
  }
}

}  // namespace kvspan::sim
