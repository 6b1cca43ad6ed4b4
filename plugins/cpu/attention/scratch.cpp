// SPDX-License-Identifier: Apache-2.0
// Where each array of a thread's working memory lies. Read first: kernel.hpp.
#include "attention/kernel.hpp"
#include "host.hpp"

namespace kvspan::cpu {

namespace {

void cut_all(Cutter& cutter, Scratch& scratch) {
  constexpr uint64_t kPairRows = uint64_t{kPairsMax} * kHeadSizeMax;
  constexpr uint64_t kTokenRows = uint64_t{kGranuleTokens} * kHeadSizeMax;
  cutter.cut(scratch.q, kPairRows);
  cutter.cut(scratch.u, kPairRows);
  cutter.cut(scratch.m, kPairsMax);
  cutter.cut(scratch.l, kPairsMax);
  cutter.cut(scratch.fold_u, kPairRows);
  cutter.cut(scratch.fold_m, kPairsMax);
  cutter.cut(scratch.fold_l, kPairsMax);
  cutter.cut(scratch.k_rows, kTokenRows);
  cutter.cut(scratch.k_columns, kTokenRows);
  cutter.cut(scratch.v_rows, kTokenRows);
  cutter.cut(scratch.weights, uint64_t{kPairsMax} * kGranuleTokens);
  cutter.cut(scratch.kept, kPairsMax);
  cutter.cut(scratch.sums, kPairsMax);
  cutter.cut(scratch.visible, kPairsMax);
  cutter.cut(scratch.row, kPairsMax);
  cutter.cut(scratch.q_head, kPairsMax);
}

}  // namespace

uint64_t Scratch::bytes() {
  Cutter cutter(nullptr);
  Scratch unused{};
  cut_all(cutter, unused);
  return cutter.bytes();
}

Scratch Scratch::bind(void* block) {
  Cutter cutter(static_cast<uint8_t*>(block));
  Scratch scratch{};
  cut_all(cutter, scratch);
  return scratch;
}

}  // namespace kvspan::cpu
