// SPDX-License-Identifier: Apache-2.0
// Which instance of the tensor-core kernel a call takes, and how many pairs a block of it.
// Read first: instances.hpp.
#include "attention/tensor/instances.hpp"

namespace kvspan::cuda {

namespace {

constexpr uint32_t kTileCounts[] = {1, 3, 6, 8};  // tiles of 8 pairs that instances are made for
constexpr uint32_t kTilesMax = kTensorPairsMax / 8;
constexpr uint32_t kTilesMaxTwo = 6;     // queries of two parts take twice the room
constexpr uint32_t kTilesMaxLoaded = 3;  // rows that are made take room too

constexpr const tensor::Family* kFamilies[] = {
    &tensor::kQ8Q4, &tensor::kQ8Q8, &tensor::kQ4Q4, &tensor::kF16, &tensor::kBf16};

constexpr const tensor::WideFamily* kWideFamilies[] = {
    &tensor::kWideQ8Q4, &tensor::kWideQ8Q8, &tensor::kWideQ4Q4};

// Among `families`, the instance of the call's own pair of types and head size, or nullptr.
template <class Families>
const tensor::Instance* own_instance(const Families& families, const Problem& problem) {
  const kvspan_type_t v_type = problem.v_in_k != 0 ? problem.k_type : problem.v_type;
  for (const auto* family : families) {
    if (family->k_type == problem.k_type && family->v_type == v_type &&
        problem.head_size_k == problem.head_size_v) {
      return problem.head_size_k == 128   ? &family->size_128
             : problem.head_size_k == 256 ? &family->size_256
                                          : nullptr;
    }
  }
  return nullptr;
}

const tensor::Instance& instance_of(const Problem& problem, uint32_t tile_pairs) {
  const tensor::Instance* const own = tile_pairs == kWidePairs
                                          ? own_instance(kWideFamilies, problem)
                                          : own_instance(kFamilies, problem);
  if (own != nullptr) {
    return *own;
  }
  const kvspan_type_t v_type = problem.v_in_k != 0 ? problem.k_type : problem.v_type;
  return tensor::kLoaded[problem.k_type == KVSPAN_TYPE_BF16 ? 1 : 0]
                        [v_type == KVSPAN_TYPE_BF16 ? 1 : 0];
}

}  // namespace

bool has_wide_kernel(const Problem& problem, kvspan_type_t q_type) {
  return q_type != KVSPAN_TYPE_F32 && own_instance(kWideFamilies, problem) != nullptr;
}

uint32_t tensor_tile_pairs(const Problem& problem, uint64_t pairs, kvspan_type_t q_type) {
  const uint32_t most =
      8 * (own_instance(kFamilies, problem) == nullptr                   ? kTilesMaxLoaded
           : needs_two_parts(problem.k_type == KVSPAN_TYPE_BF16, q_type) ? kTilesMaxTwo
                                                                         : kTilesMax);
  const uint64_t tiles = pairs == 0 ? 1 : (pairs + most - 1) / most;
  const uint64_t each = (pairs + tiles - 1) / tiles;
  for (const uint32_t count : kTileCounts) {
    if (each <= uint64_t{8} * count) {
      return 8 * count;
    }
  }
  return most;
}

cudaError_t launch_tensor_advance(cudaStream_t stream, const HeldCall& call) {
  return instance_of(call.view.problem, call.view.tile_pairs).launch(stream, call);
}

cudaError_t prepare_tensor_kernels() {
  cudaError_t bad = cudaSuccess;
  for (const tensor::Family* family : kFamilies) {
    bad = bad != cudaSuccess ? bad : family->size_128.prepare();
    bad = bad != cudaSuccess ? bad : family->size_256.prepare();
  }
  for (const tensor::WideFamily* family : kWideFamilies) {
    bad = bad != cudaSuccess ? bad : family->size_128.prepare();
    bad = bad != cudaSuccess ? bad : family->size_256.prepare();
  }
  for (const auto& row : tensor::kLoaded) {
    for (const tensor::Instance& instance : row) {
      bad = bad != cudaSuccess ? bad : instance.prepare();
    }
  }
  return bad;
}

}  // namespace kvspan::cuda
