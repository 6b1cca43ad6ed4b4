// SPDX-License-Identifier: Apache-2.0
// Which instance of the tensor-core kernel a call takes on a card, and how many pairs a block of
// it. Read first: instances.hpp.
#include "attention/tensor/instances.hpp"

#include <initializer_list>

namespace kvspan::cuda {

namespace {

constexpr uint32_t kTilesMax = kTensorPairsMax / 8;
constexpr uint32_t kTilesMaxTwo = 6;  // queries of two parts take twice the room

constexpr const tensor::Family* kFamilies[] = {
    &tensor::kQ8Q4, &tensor::kQ8Q8, &tensor::kQ4Q4, &tensor::kF16, &tensor::kBf16};

constexpr const tensor::WideFamily* kWideFamilies[] = {
    &tensor::kWideQ8Q4, &tensor::kWideQ8Q8, &tensor::kWideQ4Q4};

// Which of an instance's rooms a card has; kRoomCount: none, or no tensor cores of the kind.
uint32_t room_of(const Card& card) {
  constexpr uint32_t kRooms[tensor::kRoomCount] = {kShared227KiB, kShared163KiB, kShared99KiB};
  uint32_t room = card.capability < 80 ? tensor::kRoomCount : 0;
  while (room < tensor::kRoomCount && card.shared_bytes < kRooms[room]) {
    ++room;
  }
  return room;
}

// Among `families`, what there is for the call's own pair of types and head size, or nullptr.
template <class Families>
auto own_sizes(const Families& families, const Problem& problem) {
  const kvspan_type_t v_type = problem.v_in_k != 0 ? problem.k_type : problem.v_type;
  decltype(&families[0]->size_128) none = nullptr;
  for (const auto* family : families) {
    if (family->k_type == problem.k_type && family->v_type == v_type &&
        problem.head_size_k == problem.head_size_v) {
      return problem.head_size_k == 128   ? &family->size_128
             : problem.head_size_k == 256 ? &family->size_256
                                          : none;
    }
  }
  return none;
}

bool takes_any_type(const Card& card) {
  return room_of(card) == 0;
}

// The call's own instance, or the one that loads any type; nullptr where the card has room for
// neither.
const tensor::Instance* instance_of(const Problem& problem, const Card& card) {
  const uint32_t room = room_of(card);
  const tensor::Sizes* const own = own_sizes(kFamilies, problem);
  if (room < tensor::kRoomCount && own != nullptr && own->with[room].tiles != 0) {
    return &own->with[room];
  }
  if (!takes_any_type(card)) {
    return nullptr;
  }
  const kvspan_type_t v_type = problem.v_in_k != 0 ? problem.k_type : problem.v_type;
  return &tensor::kLoaded[problem.k_type == KVSPAN_TYPE_BF16 ? 1 : 0]
                         [v_type == KVSPAN_TYPE_BF16 ? 1 : 0];
}

bool has_wide_kernels(const Card& card) {
  return card.capability == 90;
}

}  // namespace

bool has_tensor_kernel(const Problem& problem, const Card& card) {
  return instance_of(problem, card) != nullptr;
}

bool has_wide_kernel(const Problem& problem, kvspan_type_t q_type, const Card& card) {
  return has_wide_kernels(card) && q_type != KVSPAN_TYPE_F32 &&
         own_sizes(kWideFamilies, problem) != nullptr;
}

uint32_t tensor_tile_pairs(const Problem& problem,
                           uint64_t pairs,
                           kvspan_type_t q_type,
                           const Card& card) {
  const uint32_t there = instance_of(problem, card)->tiles;
  const uint32_t bound =
      needs_two_parts(problem.k_type == KVSPAN_TYPE_BF16, q_type) ? kTilesMaxTwo : kTilesMax;
  uint32_t most = 0;
  for (uint32_t count = 1; count <= bound; ++count) {
    most = (there >> count & 1) != 0 ? count : most;
  }
  const uint64_t blocks = pairs == 0 ? 1 : (pairs + 8 * most - 1) / (8 * most);
  const uint64_t each = (pairs + blocks - 1) / blocks;
  for (uint32_t count = 1; count < most; ++count) {
    if ((there >> count & 1) != 0 && each <= uint64_t{8} * count) {
      return 8 * count;
    }
  }
  return 8 * most;
}

cudaError_t launch_tensor_advance(cudaStream_t stream, const HeldCall& call, const Card& card) {
  const Problem& problem = call.view.problem;
  return call.view.tile_pairs == kWidePairs
             ? own_sizes(kWideFamilies, problem)->launch(stream, call, card.multiprocessors)
             : instance_of(problem, card)->launch(stream, call);
}

cudaError_t prepare_tensor_kernels(const Card& card) {
  cudaError_t bad = cudaSuccess;
  const auto prepare = [&](const auto& instance) {
    bad = bad != cudaSuccess ? bad : instance.prepare();
  };
  const uint32_t room = room_of(card);
  if (room == tensor::kRoomCount) {
    return bad;
  }
  for (const tensor::Family* family : kFamilies) {
    prepare(family->size_128.with[room]);
    prepare(family->size_256.with[room]);
  }
  for (const tensor::WideFamily* family : kWideFamilies) {
    if (has_wide_kernels(card)) {
      prepare(family->size_128);
      prepare(family->size_256);
    }
  }
  for (const auto& row : tensor::kLoaded) {
    for (const tensor::Instance& instance : row) {
      if (takes_any_type(card)) {
        prepare(instance);
      }
    }
  }
  return bad;
}

}  // namespace kvspan::cuda
