// SPDX-License-Identifier: Apache-2.0
// The layer between a host and a right plugin (the base) inside one object. Each open has a Layer:
// the base's tables, the slots as the host reaches them, and the count that proves that a fault
// ran. A fault or an oddity replaces slots; `next`, the slot as it was, is its way on. Handles are
// the base's own. Not here: how a C slot finds its Layer (doors.cpp), tools of faults (edits.hpp).
// Read next: fault_list.hpp, then fences.cpp for the shape of a fault.
#ifndef KVSPAN_CONFORMANCE_FAULTS_LAYER_H
#define KVSPAN_CONFORMANCE_FAULTS_LAYER_H

#include "kvspan/kvspan.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kvspan::faults {

template <class Slot>
struct CallOf;

template <class Table, class R, class... A>
struct CallOf<R (*Table::*)(A...) noexcept> {
  using Type = std::function<R(A...)>;
};

/// A slot of a table as a value that can be replaced.
template <auto Slot>
using Call = typename CallOf<decltype(Slot)>::Type;

/// Every slot, flat; names that two tables share carry the noun.
struct Calls {
  Call<&kvspan_device_table_t::count> count;
  Call<&kvspan_device_table_t::describe> describe;
  Call<&kvspan_device_table_t::open> open;
  Call<&kvspan_device_table_t::close> close;
  Call<&kvspan_device_table_t::free_bytes> free_bytes;
  Call<&kvspan_device_table_t::prepare> prepare;
  Call<&kvspan_memory_table_t::alloc> alloc;
  Call<&kvspan_memory_table_t::import_host> import_host;
  Call<&kvspan_memory_table_t::map> map;
  Call<&kvspan_memory_table_t::release> release;
  Call<&kvspan_queue_table_t::create> create_queue;
  Call<&kvspan_queue_table_t::destroy> destroy_queue;
  Call<&kvspan_fence_table_t::create> create_fence;
  Call<&kvspan_fence_table_t::query> query;
  Call<&kvspan_fence_table_t::wait> wait;
  Call<&kvspan_fence_table_t::signal> signal;
  Call<&kvspan_fence_table_t::fail> fail;
  Call<&kvspan_fence_table_t::destroy> destroy_fence;
  Call<&kvspan_copy_table_t::copy> copy;
  Call<&kvspan_copy_table_t::fill> fill;
  Call<&kvspan_copy_table_t::limits> limits;
  Call<&kvspan_copy_table_t::feedback> feedback;
  Call<&kvspan_codec_table_t::query> codec_query;
  Call<&kvspan_codec_table_t::encode> encode;
  Call<&kvspan_codec_table_t::decode> decode;
  Call<&kvspan_attention_table_t::query> ask;
  Call<&kvspan_attention_table_t::rules> rules;
  Call<&kvspan_attention_table_t::run> run;
  Call<&kvspan_attention_table_t::advance> advance;
  Call<&kvspan_attention_table_t::fold> fold;
  Call<&kvspan_attention_table_t::finish> finish;
  Call<&kvspan_debug_table_t::fault> plant;
  Call<&kvspan_debug_table_t::counters> counters;
  std::function<const void*(uint32_t table_id)> table;
  std::function<kvspan_result_t(kvspan_error_t* error)> close_plugin;
};

/// The tables of one open: the base's by pointer, ours by value.
struct BaseTables {
  const kvspan_device_table_t* device = nullptr;
  const kvspan_memory_table_t* memory = nullptr;
  const kvspan_queue_table_t* queue = nullptr;
  const kvspan_fence_table_t* fence = nullptr;
  const kvspan_copy_table_t* copy = nullptr;
  const kvspan_codec_table_t* codec = nullptr;
  const kvspan_attention_table_t* attention = nullptr;
  const kvspan_debug_table_t* debug = nullptr;
};

struct OwnTables {
  kvspan_device_table_t device = {};
  kvspan_memory_table_t memory = {};
  kvspan_queue_table_t queue = {};
  kvspan_fence_table_t fence = {};
  kvspan_copy_table_t copy = {};
  kvspan_codec_table_t codec = {};
  kvspan_attention_table_t attention = {};
  kvspan_debug_table_t debug = {};
};

/// What is known of a living handle. `bytes` and `kind` are a memory's.
struct Owner {
  class Layer* layer = nullptr;
  kvspan_device_t* device = nullptr;
  uint64_t bytes = 0;
  uint32_t kind = 0;
};

/// The 64-bit counter in the file of the option `witness`, shared with whoever reads that file:
/// a crash or a kill does not lose it. Without the option it counts for nobody.
class Witness {
 public:
  Witness() = default;
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  Witness(Witness&&) = delete;
  Witness& operator=(Witness&&) = delete;
  ~Witness();

  /// False where the file cannot be made.
  bool open(const std::string& path);

  void add() { counter_->fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> nobody_ = 0;
  std::atomic<uint64_t>* counter_ = &nobody_;
};

/// The value of an option of the plugin; "" where it is not set.
std::string read_option(const kvspan_host_services_t* host, const char* key);

class Layer {
 public:
  Layer(const kvspan_host_services_t* services, const kvspan_plugin_t& opened);
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  Layer(Layer&&) = delete;
  Layer& operator=(Layer&&) = delete;
  ~Layer() = default;

  /// The faulty line ran and made a difference that a host could see.
  void ran() { witness.add(); }

  std::string option(const char* key) const { return read_option(host, key); }

  const kvspan_host_services_t* const host;
  const kvspan_plugin_t plugin;  // the base
  BaseTables base;
  OwnTables own;
  Calls calls;
  Witness witness;
  bool outlives_close = false;  // close says OK, and the layer must live on: a fault said so

 private:
  void make_tables();
  void pass_straight_through();
  void follow_handles();
};

/// What is known of a handle; nothing of NULL or of a stranger.
std::optional<Owner> owner_of(const void* handle);

/// The layer that a handle belongs to; for NULL and strangers the one opened last, so that the base
/// can refuse them.
Layer& layer_of(const void* handle);

void remember(const void* handle, const Owner& owner);
void forget(const void* handle);
void forget_layer(const Layer& layer);

/// Our slots: each finds its layer by its first argument and calls Layer::calls, which get the
/// base's slots here.
void fill_doors(const BaseTables& base, OwnTables& own, Calls& calls);

}  // namespace kvspan::faults

#endif
