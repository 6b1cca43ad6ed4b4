// SPDX-License-Identifier: Apache-2.0
// The writing half of GGUF, for tests.
// Read next: gguf_writer.hpp.
#include "tests/gguf_writer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvspan::model::testing {

namespace {

constexpr std::size_t kBlock = 32;

// The binary16 next to `value` towards zero; subnormals flushed. |value| < 65504.
std::uint16_t half_towards_zero(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  if (fraction == 0.0 || exponent < -13) {
    return static_cast<std::uint16_t>(sign);
  }
  const auto mantissa = static_cast<unsigned>(std::ldexp(fraction, 11)) & 0x3FFu;
  return static_cast<std::uint16_t>(sign | (static_cast<unsigned>(exponent + 14) << 10) | mantissa);
}

double block_peak(const std::vector<double>& values, std::size_t begin) {
  double peak = 0.0;
  for (std::size_t i = begin; i < begin + kBlock; ++i) {
    peak = std::max(peak, std::fabs(values[i]));
  }
  return peak;
}

// Both quantised types: a scale, then levels from -`limit` to `limit`.
PackedTensor pack_blocks(const std::vector<double>& values, int limit) {
  PackedTensor packed;
  ByteSink sink;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::uint16_t scale_bits = half_towards_zero(block_peak(values, begin) / limit + 1e-4);
    const double scale = half_value(scale_bits);
    std::vector<int> levels;
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      const auto level = static_cast<int>(std::lround(values[i] / scale));
      levels.push_back(std::clamp(level, -limit, limit));
      packed.values.push_back(levels.back() * scale);
    }
    sink.number(scale_bits);
    if (limit == 127) {
      for (const int level : levels) {
        sink.number(static_cast<std::int8_t>(level));
      }
    } else {
      for (std::size_t j = 0; j < kBlock / 2; ++j) {
        sink.number(static_cast<std::uint8_t>((levels[j] + 8) | ((levels[j + 16] + 8) << 4)));
      }
    }
  }
  packed.bytes = sink.bytes();
  return packed;
}

}  // namespace

void ByteSink::text(std::string_view value) {
  number(static_cast<std::uint64_t>(value.size()));
  const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
  bytes_.insert(bytes_.end(), bytes, bytes + value.size());
}

void ByteSink::raw(const std::vector<std::byte>& value) {
  bytes_.insert(bytes_.end(), value.begin(), value.end());
}

void ByteSink::pad_to(std::size_t alignment_bytes) {
  while (bytes_.size() % alignment_bytes != 0) {
    bytes_.push_back(std::byte{0});
  }
}

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

PackedTensor pack_tensor(TensorType type, const std::vector<double>& values) {
  if (type == TensorType::q8_0) {
    return pack_blocks(values, 127);
  }
  if (type == TensorType::q4_0) {
    return pack_blocks(values, 7);
  }
  PackedTensor packed;
  ByteSink sink;
  for (const double value : values) {
    const auto single = static_cast<float>(value);
    if (type == TensorType::f32) {
      sink.number(single);
      packed.values.push_back(static_cast<double>(single));
    } else if (type == TensorType::bf16) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(single) & 0xFFFF0000u;
      sink.number(static_cast<std::uint16_t>(bits >> 16));
      packed.values.push_back(static_cast<double>(std::bit_cast<float>(bits)));
    } else {
      const std::uint16_t bits = half_towards_zero(value);
      sink.number(bits);
      packed.values.push_back(half_value(bits));
    }
  }
  packed.bytes = sink.bytes();
  return packed;
}

void GgufWriter::add_raw(std::string_view key,
                         std::uint32_t type,
                         const std::vector<std::byte>& value) {
  values_.text(key);
  values_.number(type);
  values_.raw(value);
  value_count_ += 1;
}

void GgufWriter::add_u32(std::string_view key, std::uint32_t value) {
  ByteSink sink;
  sink.number(value);
  add_raw(key, 4, sink.bytes());
}

void GgufWriter::add_f32(std::string_view key, float value) {
  ByteSink sink;
  sink.number(value);
  add_raw(key, 6, sink.bytes());
}

void GgufWriter::add_flag(std::string_view key, std::uint8_t value) {
  add_raw(key, 7, {std::byte{value}});
}

void GgufWriter::add_text(std::string_view key, std::string_view value) {
  ByteSink sink;
  sink.text(value);
  add_raw(key, 8, sink.bytes());
}

void GgufWriter::add_texts(std::string_view key, const std::vector<std::string>& values) {
  ByteSink sink;
  sink.number(std::uint32_t{8});
  sink.number(static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) {
    sink.text(value);
  }
  add_raw(key, 9, sink.bytes());
}

void GgufWriter::add_i32s(std::string_view key, const std::vector<std::int32_t>& values) {
  ByteSink sink;
  sink.number(std::uint32_t{5});
  sink.number(static_cast<std::uint64_t>(values.size()));
  for (const std::int32_t value : values) {
    sink.number(value);
  }
  add_raw(key, 9, sink.bytes());
}

void GgufWriter::add_tensor(std::string_view name,
                            const std::vector<std::uint64_t>& dimensions,
                            TensorType type,
                            const std::vector<std::byte>& data) {
  tensors_.push_back({std::string(name), dimensions, type, data});
}

std::vector<std::byte> GgufWriter::file(std::uint32_t version, std::size_t alignment_bytes) const {
  ByteSink sink;
  sink.number(std::uint32_t{0x46554747});
  sink.number(version);
  sink.number(static_cast<std::uint64_t>(tensors_.size()));
  sink.number(value_count_);
  sink.raw(values_.bytes());
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    sink.text(tensor.name);
    sink.number(static_cast<std::uint32_t>(tensor.dimensions.size()));
    for (const std::uint64_t dimension : tensor.dimensions) {
      sink.number(dimension);
    }
    sink.number(static_cast<std::uint32_t>(tensor.type));
    sink.number(offset);
    offset += (tensor.data.size() + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  }
  for (const Tensor& tensor : tensors_) {
    sink.pad_to(alignment_bytes);
    sink.raw(tensor.data);
  }
  return sink.bytes();
}

}  // namespace kvspan::model::testing
