// SPDX-License-Identifier: Apache-2.0
// Units of work and what each does. A unit writes only its own pairs, so units run in any order on
// any thread with the same bits. `opaque` is a Context. Read next: units.cpp.
#pragma once

#include "attention/kernel.hpp"

#include <cstdint>

namespace kvspan::cpu {

// advance: (item, KV head, tile).
void advance_unit(void* opaque, uint64_t index, Scratch& scratch);

// fold and finish: (entry, chunk of pairs).
void fold_unit(void* opaque, uint64_t index, Scratch& scratch);
void finish_unit(void* opaque, uint64_t index, Scratch& scratch);

// run: (entry, KV head, tile), all splits in ascending order, folded as they end.
void run_unit(void* opaque, uint64_t index, Scratch& scratch);

// run, where that gives too few units for the threads: (entry, KV head, tile, split) into the
// workspace, then (entry, chunk of pairs). The same kernel and the same fold, so the same bits.
void split_unit(void* opaque, uint64_t index, Scratch& scratch);
void fold_splits_unit(void* opaque, uint64_t index, Scratch& scratch);

}  // namespace kvspan::cpu
