// SPDX-License-Identifier: Apache-2.0
// Dealing a product's rows or columns out to a thread team, and the choice of the kernel. The split
// may be anything in whole steps (kMatmulRowStep, kMatmulOutStep): by the kernels' invariant no
// split changes a bit. Rows are split when there are many, since then each weight is unpacked once
// per member; else columns.
// Read next: matmul_kernels.hpp, matmul_kernel.inl.
#include "model/matmul.hpp"

#include "model/fail.hpp"

#include <algorithm>
#include <atomic>
#include <new>

namespace kvspan::model {

namespace {

// From this many rows a member on, rows are split instead of columns. Below it the packing of the
// weights by every member would cost more than the packing of the rows.
constexpr std::size_t kRowsPerMember = 64;

// Below this many multiply-adds in a call the caller works alone: waking the others would take
// longer than they save.
constexpr std::size_t kWorthWaking = std::size_t{1} << 21;

MatmulKernel kernel_of(MatmulIsa isa) noexcept {
  switch (isa) {
    case MatmulIsa::v2:
      return matmul_tile_v2;
    case MatmulIsa::avx2:
      return matmul_tile_avx2;
    case MatmulIsa::avx512:
      return matmul_tile_avx512;
  }
  return matmul_tile_v2;
}

// Whole column steps of a product; the last one also takes what is left over.
std::size_t out_steps(const Product& product) noexcept {
  return std::max<std::size_t>(product.outs / kMatmulOutStep, 1);
}

std::size_t step_begin(const Product& product, std::size_t step) noexcept {
  return step >= out_steps(product) ? product.outs : step * kMatmulOutStep;
}

}  // namespace

std::string_view matmul_isa_name(MatmulIsa isa) noexcept {
  switch (isa) {
    case MatmulIsa::v2:
      return "x86-64-v2";
    case MatmulIsa::avx2:
      return "avx2";
    case MatmulIsa::avx512:
      return "avx512";
  }
  return "unknown";
}

bool matmul_isa_available(MatmulIsa isa) noexcept {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  switch (isa) {
    case MatmulIsa::v2:
      return true;
    case MatmulIsa::avx2:
      return avx2;
    case MatmulIsa::avx512:
      return avx2 && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0;
  }
  return false;
}

MatmulIsa matmul_isa_best() noexcept {
  for (const MatmulIsa isa : {MatmulIsa::avx512, MatmulIsa::avx2}) {
    if (matmul_isa_available(isa)) {
      return isa;
    }
  }
  return MatmulIsa::v2;
}

// Rows [row_begin, row_end) of columns [out_begin, out_end); the tails of this product in the
// scratch. Only the part that holds the last row handles the leftover rows.
struct Matmul::Part {
  std::size_t row_begin = 0;
  std::size_t row_end = 0;
  std::size_t out_begin = 0;
  std::size_t out_end = 0;
  const float* x_tail = nullptr;  // [kMatmulRowStep, ins]
  float* y_tail = nullptr;        // [kMatmulRowStep, outs]
};

Matmul::Matmul(MatmulIsa isa, MatmulKernel kernel, const MatmulLimits& limits)
    : isa_(isa),
      kernel_(kernel),
      x_tail_(std::make_unique<float[]>(kMatmulRowStep * limits.ins_sum)),
      y_tail_(std::make_unique<float[]>(kMatmulRowStep * limits.outs_sum)) {}

std::size_t Matmul::scratch_bytes(const MatmulLimits& limits) noexcept {
  return kMatmulRowStep * (limits.ins_sum + limits.outs_sum) * sizeof(float);
}

Result<Matmul> Matmul::create(MatmulIsa isa, const MatmulLimits& limits) {
  if (!matmul_isa_available(isa)) {
    return fail(Errc::unsupported,
                "this processor does not run {}: use {}",
                matmul_isa_name(isa),
                matmul_isa_name(matmul_isa_best()));
  }
  try {
    return Matmul(isa, kernel_of(isa), limits);
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory,
                "not enough memory for {} bytes of matrix scratch",
                scratch_bytes(limits));
  }
}

bool Matmul::run_part(const Product& product, const Part& part) const {
  const std::size_t outs = part.out_end - part.out_begin;
  const std::size_t whole_end =
      std::min(part.row_end, product.rows / kMatmulRowStep * kMatmulRowStep);
  MatmulTile tile{product.x + part.row_begin * product.ins,
                  product.w + part.out_begin * product.ins,
                  product.y + part.row_begin * product.outs + part.out_begin,
                  whole_end - std::min(whole_end, part.row_begin),
                  outs,
                  product.ins,
                  product.ins,
                  product.outs};
  if (tile.rows > 0 && !kernel_(tile)) {
    return false;
  }
  if (part.row_end == whole_end) {
    return true;
  }
  tile.x = part.x_tail;
  tile.y = part.y_tail + part.out_begin;
  tile.rows = kMatmulRowStep;
  if (!kernel_(tile)) {
    return false;
  }
  for (std::size_t row = whole_end; row < part.row_end; ++row) {
    const float* const from = tile.y + (row - whole_end) * product.outs;
    std::copy_n(from, outs, product.y + row * product.outs + part.out_begin);
  }
  return true;
}

Result<void> Matmul::run(ThreadTeam& team, std::span<const Product> products) {
  float* x_tail = x_tail_.get();
  std::size_t steps = 0;
  std::size_t multiply_adds = 0;
  for (const Product& product : products) {
    const std::size_t whole = product.rows / kMatmulRowStep * kMatmulRowStep;
    std::copy(product.x + whole * product.ins, product.x + product.rows * product.ins, x_tail);
    x_tail += kMatmulRowStep * product.ins;
    steps += out_steps(product);
    multiply_adds += std::max(product.rows, kMatmulRowStep) * product.outs * product.ins;
  }
  const std::size_t members = multiply_adds < kWorthWaking ? 1 : team.members();
  const bool by_rows = products.front().rows >= kRowsPerMember * members;
  std::atomic<bool> complete = true;
  const auto work = [&](std::size_t member) {
    const ItemRange mine = member_share(steps, member, members);
    std::size_t first_step = 0;  // of the current product, counted over all products
    Part part{0, 0, 0, 0, x_tail_.get(), y_tail_.get()};
    for (const Product& product : products) {
      const std::size_t own_steps = out_steps(product);
      if (by_rows) {
        const std::size_t row_steps = (product.rows + kMatmulRowStep - 1) / kMatmulRowStep;
        const ItemRange rows = member_share(row_steps, member, members);
        part.row_begin = rows.begin * kMatmulRowStep;
        part.row_end = std::min(rows.end * kMatmulRowStep, product.rows);
        part.out_begin = 0;
        part.out_end = product.outs;
      } else {
        const std::size_t begin = std::clamp(mine.begin, first_step, first_step + own_steps);
        const std::size_t end = std::clamp(mine.end, first_step, first_step + own_steps);
        part.row_end = product.rows;
        part.out_begin = step_begin(product, begin - first_step);
        part.out_end = step_begin(product, end - first_step);
      }
      if (part.row_begin < part.row_end && part.out_begin < part.out_end) {
        if (!run_part(product, part)) {
          complete = false;
        }
      }
      first_step += own_steps;
      part.x_tail += kMatmulRowStep * product.ins;
      part.y_tail += kMatmulRowStep * product.outs;
    }
  };
  if (members == 1) {
    work(0);
  } else {
    team.run(work);
  }
  if (!complete) {
    return fail(Errc::host_memory, "not enough memory for the buffers of a matrix product");
  }
  return {};
}

}  // namespace kvspan::model
