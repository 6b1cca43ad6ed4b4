// SPDX-License-Identifier: Apache-2.0
// What faults are made of: a hand around every submit, deep copies of attention arguments, work
// that is done before the slot returns and then spoilt, reading and writing any memory of the
// device. What a host got wrong goes to the base untouched, so that a fault never hides another
// rule's refusal. Read next: submits.cpp for short examples.
#ifndef KVSPAN_CONFORMANCE_FAULTS_EDITS_H
#define KVSPAN_CONFORMANCE_FAULTS_EDITS_H

#include "layer.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace kvspan::faults {

using Bytes = std::vector<uint8_t>;

// --- submits
// --------------------------------------------------------------------------------------

/// Sets of submitting slots.
inline constexpr uint32_t kCopy = 1;
inline constexpr uint32_t kFill = 2;
inline constexpr uint32_t kEncode = 4;
inline constexpr uint32_t kDecode = 8;
inline constexpr uint32_t kRun = 16;
inline constexpr uint32_t kAdvance = 32;
inline constexpr uint32_t kFold = 64;
inline constexpr uint32_t kFinish = 128;
inline constexpr uint32_t kReaders = kRun | kAdvance;  // of queries, K and V
inline constexpr uint32_t kAttention = kRun | kAdvance | kFold | kFinish;
inline constexpr uint32_t kEverySlot = 255;

/// The rest of a submitting slot: everything but queue, submit and error is bound.
using Go = std::function<kvspan_result_t(const kvspan_submit_t* submit, kvspan_error_t* error)>;

/// Stands for a submitting slot; calls `go` once, or more, or not at all.
using Around = std::function<kvspan_result_t(
    kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error, const Go& go)>;

/// Replaces the slots of the set by `around`. Submits that cannot be read go straight through.
void around_submits(Layer& layer, uint32_t slots, const Around& around);

/// The same where only the submit changes; `edit` says whether it made a difference.
void edit_submits(Layer& layer,
                  uint32_t slots,
                  const std::function<bool(kvspan_queue_t* queue, kvspan_submit_t& submit)>& edit);

/// Calls `call` with a copy of the items that `edit` changed, and counts. Where `edit` says that it
/// made no difference, and where the base refuses the changed items, the call gets them unchanged.
template <class Item, class Call>
kvspan_result_t with_edited(Layer& layer,
                            const Item* items,
                            uint32_t count,
                            const std::function<bool(std::vector<Item>& items)>& edit,
                            const Call& call) {
  constexpr uint32_t kMost = 1u << 16;
  if (items == nullptr || count == 0 || count > kMost) {
    return call(items, count);
  }
  std::vector<Item> changed(items, items + count);
  if (!edit(changed)) {
    return call(items, count);
  }
  const kvspan_result_t result = call(changed.data(), static_cast<uint32_t>(changed.size()));
  if (result == KVSPAN_E_INVALID_ARG) {
    return call(items, count);
  }
  layer.ran();
  return result;
}

/// A submit of nothing that carries the signals of `submit`.
kvspan_result_t signal_only(Layer& layer,
                            kvspan_queue_t* queue,
                            const kvspan_submit_t& submit,
                            kvspan_error_t* error);

/// Whether work of this submit may be done before its slot returns: all of it can be read and what
/// it waits for is reached soon, for a submitting slot must not hang.
bool can_do_now(Layer& layer, kvspan_queue_t* queue, const kvspan_submit_t* submit);

/// Does the work of `go` and waits for it, then calls `after`, then signals what the submit
/// signals: for results that are spoilt on the host. What cannot be done now goes straight through.
kvspan_result_t spoil(Layer& layer,
                      kvspan_queue_t* queue,
                      const kvspan_submit_t* submit,
                      kvspan_error_t* error,
                      const Go& go,
                      const std::function<void()>& after);

/// Fills a range, where it lies inside its memory, by a submit that waits for nothing and signals
/// nothing; counts what the base took.
void fill_silently(Layer& layer,
                   kvspan_queue_t* queue,
                   const kvspan_range_t& range,
                   uint64_t pattern,
                   uint32_t pattern_bytes);

/// `bytes` of any memory, at a time when nothing is pending on them. Empty where it did not work.
Bytes read_memory(
    Layer& layer, kvspan_queue_t* queue, kvspan_memory_t* memory, uint64_t offset, uint64_t bytes);
void write_memory(Layer& layer,
                  kvspan_queue_t* queue,
                  kvspan_memory_t* memory,
                  uint64_t offset,
                  const Bytes& bytes);

/// Host memory of the plugin with these bytes, for arguments that a fault replaces; release it when
/// the work is done.
kvspan_memory_t* make_memory(Layer& layer, kvspan_device_t* device, const Bytes& bytes);
void release_memory(Layer& layer, kvspan_memory_t* memory);

/// Whether [offset, offset + bytes) lies inside the memory.
bool inside(kvspan_memory_t* memory, uint64_t offset, uint64_t bytes);

float load_float(const Bytes& bytes, uint64_t index);
void store_float(Bytes& bytes, uint64_t index, float value);

/// Rounds floats to half precision, in place.
void round_to_half(Bytes& floats);

// --- attention
// ------------------------------------------------------------------------------------

/// Attention arguments that may be changed, arrays included. Does not move.
struct ArgsCopy {
  explicit ArgsCopy(const kvspan_attention_args_t& from);
  ArgsCopy(const ArgsCopy&) = delete;
  ArgsCopy& operator=(const ArgsCopy&) = delete;
  ArgsCopy(ArgsCopy&&) = delete;
  ArgsCopy& operator=(ArgsCopy&&) = delete;
  ~ArgsCopy() = default;

  struct Arrays {
    std::vector<kvspan_span_t> spans;
    std::vector<uint64_t> visible_end;
    std::vector<uint64_t> window_begin;  // empty where the entry has none, as the next two
    std::vector<uint64_t> suffix_mask;
    std::vector<int64_t> positions;
  };

  /// Points the entries at the arrays again, after one of them changed its size.
  void connect();

  kvspan_attention_args_t args;
  kvspan_attention_shape_t shape;
  std::vector<kvspan_entry_t> entries;
  std::vector<Arrays> arrays;               // [entry]
  std::deque<std::vector<uint32_t>> lists;  // page lists that an edit made, for spans to point at
};

/// Whether the arrays of `args` can be read: right sizes, nothing NULL, within the shape.
bool readable(const kvspan_attention_args_t* args);

/// Changes arguments; says whether it made a difference.
using ArgsEdit = std::function<bool(ArgsCopy& copy)>;

/// Replaces attention slots of the set: they get arguments that `edit` changed. What the base
/// refuses in the changed arguments runs with the unchanged ones and does not count.
void edit_args(Layer& layer, uint32_t slots, const ArgsEdit& edit);

/// Called after run or finish has written its outputs.
using AfterOutput = std::function<void(kvspan_queue_t* queue, const kvspan_attention_args_t& args)>;

/// Spoils what run and finish wrote, as spoil() does.
void after_output(Layer& layer, uint32_t slots, const AfterOutput& after);

/// Rows of one entry that `see` may change in place as f32; written back where it returns true.
/// Other output types are left alone.
void change_rows(
    Layer& layer,
    kvspan_queue_t* queue,
    const kvspan_attention_args_t& args,
    const std::function<bool(
        const kvspan_entry_t& entry, uint32_t row, uint32_t head, float* out, uint32_t size)>& see);

/// Bytes of a split state's planes.
uint64_t u_bytes(const kvspan_attention_args_t& args, uint32_t entry);
uint64_t ml_bytes(const kvspan_attention_args_t& args, uint32_t entry);

}  // namespace kvspan::faults

#endif
