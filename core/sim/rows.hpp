// SPDX-License-Identifier: Apache-2.0
// The engine's row buffers, what it writes into them, and what must come out of attention.
// Private to core/sim. Read next: life.hpp, runner.hpp.
#pragma once

#include "device.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvspan::sim {

// One sequence's rows of a step.
struct RowsPart {
  std::uint32_t stream = 0;
  std::uint64_t first_token = 0;
  std::uint32_t first_row = 0;  // in the buffers
  std::uint32_t rows = 0;
  std::uint32_t generation = 0;
  std::uint32_t expectation = 0;
  std::shared_ptr<const std::vector<std::uint32_t>> generations;  // [token], these rows included
};

// What was encoded for a token, in f32: arithmetic only.
[[nodiscard]] std::vector<float> numbers(
    std::uint64_t key, std::uint32_t plane, std::uint32_t head, std::uint32_t size, bool quiet);

// A token's name among all tokens of a run.
[[nodiscard]] std::uint64_t key_of(std::uint32_t stream,
                                   std::uint32_t layer,
                                   std::uint64_t token,
                                   std::uint32_t generation);

// Buffers of one step: [layer] q, k, v, out. Thread class: SYNC(device).
class Rows {
 public:
  // `device` and `geometry` outlive it; the memory is given back with it.
  Rows(Device& device, const Geometry& geometry, std::uint32_t rows_max);
  ~Rows();
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  Rows(Rows&&) = delete;
  Rows& operator=(Rows&&) = delete;

  [[nodiscard]] kvspan_rows_t q(std::uint32_t layer) const { return at(layer, 0); }

  [[nodiscard]] kvspan_rows_t k(std::uint32_t layer) const { return at(layer, 1); }

  [[nodiscard]] kvspan_rows_t v(std::uint32_t layer) const { return at(layer, 2); }

  [[nodiscard]] kvspan_rows_t out(std::uint32_t layer) const { return at(layer, 3); }

  // The bytes of a layer's q, k and v; of its outputs.
  [[nodiscard]] kvspan_range_t inputs(std::uint32_t layer) const;
  [[nodiscard]] kvspan_range_t outputs(std::uint32_t layer) const;

  // Writes q, k and v of the parts; outputs become poison.
  void fill(std::uint32_t layer, const std::vector<RowsPart>& parts) const;
  void spoil_outputs(std::uint32_t layer) const;

  // Compares outputs with what must be there; reports to the device's trouble.
  void check(std::uint32_t layer, const std::vector<RowsPart>& parts) const;

 private:
  struct Place {
    std::uint64_t offset[4];
    std::uint64_t end;
  };

  [[nodiscard]] kvspan_rows_t at(std::uint32_t layer, std::size_t which) const;
  [[nodiscard]] std::byte* row(const kvspan_rows_t& rows,
                               std::uint64_t index,
                               std::uint32_t head) const;
  void write(const kvspan_rows_t& rows,
             std::uint64_t index,
             std::uint32_t head,
             std::uint32_t size,
             std::uint8_t plane,
             std::uint32_t layer,
             const RowsPart& part,
             std::uint64_t token) const;
  void check_tags(std::uint32_t layer, const RowsPart& part) const;
  void check_numbers(std::uint32_t layer, const RowsPart& part) const;

  Device& device_;
  const Geometry& geometry_;
  std::uint32_t rows_max_;
  std::vector<Place> places_;
  Memory* memory_ = nullptr;
};

// Rows of one page of one layer, encoded as load() wants them; rows at or past `tokens` are poison.
void write_page(const Geometry& geometry,
                bool arithmetic,
                std::uint32_t stream,
                std::uint32_t generation,
                std::uint32_t layer,
                std::uint64_t page,
                std::uint64_t tokens,
                std::span<std::byte> bytes);

}  // namespace kvspan::sim
