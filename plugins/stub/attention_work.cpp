// SPDX-License-Identifier: Apache-2.0
// The three steps over rows, heads and granules. Each K or V row is decoded once for all query
// heads and rows that share it: the one thing here that is there for speed. Read next:
// attention.cpp.
#include "attention_work.hpp"

#include "kvspan/sdk/reference/advance.h"
#include "kvspan/sdk/reference/fold.h"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "attention_rules.hpp"
#include "memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan::stub {
namespace {

/// The state of one split or accumulator: u [row, q_head, head_size_v], ml [row, q_head, 2].
struct State {
  float* u;
  float* ml;
};

State state_of(const kvspan_state_t& state) {
  return {reinterpret_cast<float*>(address_of(state.memory, state.u_offset)),
          reinterpret_cast<float*>(address_of(state.memory, state.ml_offset))};
}

/// Tokens [begin, end).
struct Tokens {
  std::uint64_t begin;
  std::uint64_t end;
};

/// The K and V rows of one KV head in one granule, decoded when they are first asked for.
class Tile {
 public:
  Tile(const kvspan_attention_shape_t& shape, const kvspan_entry_t& entry, std::uint32_t granule)
      : entry_(entry),
        k_{shape.k_type, shape.head_size_k, &kvspan_span_t::k, 0, {}},
        v_{shape.v_type, shape.head_size_v, &kvspan_span_t::v, 0, {}} {
    k_.rows.resize(std::size_t{granule} * shape.head_size_k);
    v_.rows.resize(std::size_t{granule} * shape.head_size_v);
  }

  void move_to(std::uint64_t first_token, std::uint32_t head) {
    first_token_ = first_token;
    head_ = head;
    k_.known = 0;
    v_.known = 0;
  }

  static const float* k_row(void* tile, std::uint64_t token, float*) {
    return static_cast<Tile*>(tile)->row(static_cast<Tile*>(tile)->k_, token);
  }

  static const float* v_row(void* tile, std::uint64_t token, float*) {
    return static_cast<Tile*>(tile)->row(static_cast<Tile*>(tile)->v_, token);
  }

 private:
  struct Side {
    kvspan_type_t type;
    std::uint32_t head_size;
    kvspan_plane_t kvspan_span_t::*plane;
    std::uint64_t known;      // bit t: row t of the granule is decoded
    std::vector<float> rows;  // [token of the granule, element]
  };

  const float* row(Side& side, std::uint64_t token) {
    const std::uint64_t index = token - first_token_;
    float* const decoded = side.rows.data() + index * side.head_size;
    if ((side.known >> index & 1) == 0) {
      const std::uint32_t at = kvspan_ref_span_of(entry_.spans, entry_.span_count, token);
      const kvspan_span_t& span = entry_.spans[at];
      const kvspan_plane_t& plane = span.*side.plane;
      const std::uint64_t offset = kvspan_ref_plane_offset(&plane, token - span.first_token, head_);
      kvspan_ref_decode_row(side.type, address_of(plane.memory, offset), side.head_size, decoded);
      side.known |= 1ull << index;
    }
    return decoded;
  }

  const kvspan_entry_t& entry_;
  std::uint64_t first_token_ = 0;
  std::uint32_t head_ = 0;
  Side k_;
  Side v_;
};

/// One entry of a call, and the steps over it.
class EntryWork {
 public:
  EntryWork(const AttentionArgs& call, std::uint32_t entry)
      : args_(call.args()), shape_(call.shape()), entry_(call.entry(entry)) {}

  void clear(const State& state) const {
    for_each_pair([&](std::uint32_t row, std::uint32_t head) {
      kvspan_ref_state_clear(ml_of(state, row, head), u_of(state, row, head), shape_.head_size_v);
    });
  }

  void advance(const State& state, Tokens tokens, std::uint32_t granule) const {
    Tile tile(shape_, entry_, granule);
    const std::uint32_t group = shape_.q_heads / shape_.kv_heads;
    std::vector<float> queries(std::size_t{entry_.row_count} * group * shape_.head_size_k);
    std::vector<double> sums(shape_.head_size_v);
    for (std::uint32_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      decode_queries(kv_head * group, group, queries.data());
      for (std::uint64_t at = tokens.begin; at < tokens.end;) {
        const std::uint64_t next = std::min(tokens.end, at / granule * granule + granule);
        tile.move_to(at, kv_head);
        const float* query = queries.data();
        for (std::uint32_t row = 0; row < entry_.row_count; ++row) {
          for (std::uint32_t i = 0; i < group; ++i, query += shape_.head_size_k) {
            const std::uint32_t head = kv_head * group + i;
            kvspan_ref_advance_t one = arguments(tile, row, head);
            one.q = query;
            one.sums = sums.data();
            one.granule = granule;
            kvspan_ref_advance(&one, at, next, ml_of(state, row, head), u_of(state, row, head));
          }
        }
        at = next;
      }
    }
  }

  void fold(const State& accumulator, const State& source) const {
    for_each_pair([&](std::uint32_t row, std::uint32_t head) {
      kvspan_ref_state_fold(ml_of(accumulator, row, head),
                            u_of(accumulator, row, head),
                            ml_of(source, row, head),
                            u_of(source, row, head),
                            shape_.head_size_v);
    });
  }

  void finish(const State& accumulator) const {
    std::vector<float> out(shape_.head_size_v);
    for_each_pair([&](std::uint32_t row, std::uint32_t head) {
      const float* const sink =
          (shape_.options & KVSPAN_OPTION_SINKS) != 0 ? float_of(args_.sinks, head) : nullptr;
      const float lse = kvspan_ref_state_finish(ml_of(accumulator, row, head),
                                                u_of(accumulator, row, head),
                                                shape_.head_size_v,
                                                sink,
                                                out.data());
      const std::uint64_t offset = kvspan_ref_rows_offset(&entry_.out, row, head);
      kvspan_ref_encode_row(
          entry_.out.type, out.data(), shape_.head_size_v, address_of(entry_.out.memory, offset));
      if ((shape_.options & KVSPAN_OPTION_LSE) != 0) {
        *float_of(entry_.lse, std::uint64_t{row} * shape_.q_heads + head) = lse;
      }
    });
  }

  /// Splits in ascending order through the same steps, with states in the workspace.
  void run(std::uint32_t granule) const {
    const std::uint64_t pairs = std::uint64_t{entry_.row_count} * shape_.q_heads;
    const std::uint64_t u_bytes = aligned(pairs * shape_.head_size_v * sizeof(float));
    const std::uint64_t ml_bytes = aligned(pairs * 2 * sizeof(float));
    const std::uint64_t first = args_.workspace.offset;
    kvspan_memory_t* const memory = args_.workspace.memory;
    const State split = state_of({memory, first, first + u_bytes});
    const std::uint64_t second = first + u_bytes + ml_bytes;
    const State accumulator = state_of({memory, second, second + u_bytes});
    clear(accumulator);
    const Tokens seen = visible();
    for (std::uint64_t at = seen.begin / granule * granule; at < seen.end;) {
      const std::uint64_t into = at % entry_.split_tokens;
      const std::uint64_t left = entry_.split_tokens - into;
      const std::uint64_t end = left < seen.end - at ? at + left : seen.end;
      clear(split);
      advance(split, {at, end}, granule);
      fold(accumulator, split);
      at = end;
    }
    finish(accumulator);
  }

 private:
  template <class Visit>
  void for_each_pair(Visit&& visit) const {
    for (std::uint32_t row = 0; row < entry_.row_count; ++row) {
      for (std::uint32_t head = 0; head < shape_.q_heads; ++head) {
        visit(row, head);
      }
    }
  }

  std::uint64_t pair(std::uint32_t row, std::uint32_t head) const {
    return std::uint64_t{row} * shape_.q_heads + head;
  }

  float* ml_of(const State& state, std::uint32_t row, std::uint32_t head) const {
    return state.ml + pair(row, head) * 2;
  }

  float* u_of(const State& state, std::uint32_t row, std::uint32_t head) const {
    return state.u + pair(row, head) * shape_.head_size_v;
  }

  static float* float_of(const kvspan_range_t& range, std::uint64_t index) {
    return reinterpret_cast<float*>(address_of(range.memory, range.offset + index * sizeof(float)));
  }

  /// The queries of one KV head as f32 [row, head of the group, element].
  void decode_queries(std::uint32_t first_head, std::uint32_t heads, float* out) const {
    for (std::uint32_t row = 0; row < entry_.row_count; ++row) {
      for (std::uint32_t i = 0; i < heads; ++i, out += shape_.head_size_k) {
        const std::uint64_t offset = kvspan_ref_rows_offset(&entry_.q, row, first_head + i);
        kvspan_ref_decode_row(
            entry_.q.type, address_of(entry_.q.memory, offset), shape_.head_size_k, out);
      }
    }
  }

  kvspan_ref_advance_t arguments(Tile& tile, std::uint32_t row, std::uint32_t head) const {
    const bool alibi = (shape_.options & KVSPAN_OPTION_ALIBI) != 0;
    kvspan_ref_advance_t one{};
    one.k = Tile::k_row;
    one.v = (shape_.options & KVSPAN_OPTION_V_IN_K) != 0 ? Tile::k_row : Tile::v_row;
    one.context = &tile;
    one.visibility = kvspan_ref_visibility_of(&entry_, row);
    one.position = kvspan_ref_position_of(&entry_, row);
    one.head_size_k = shape_.head_size_k;
    one.head_size_v = shape_.head_size_v;
    one.scale = args_.scale;
    one.soft_cap = args_.soft_cap;
    one.slope = alibi ? *float_of(args_.slopes, head) : 0.0f;
    return one;
  }

  /// The tokens that some row sees, suffix masks aside; empty where none sees any.
  Tokens visible() const {
    Tokens seen{UINT64_MAX, 0};
    for (std::uint32_t row = 0; row < entry_.row_count; ++row) {
      const kvspan_ref_visibility_t one = kvspan_ref_visibility_of(&entry_, row);
      if (one.window_begin < one.visible_end) {
        seen.begin = std::min(seen.begin, one.window_begin);
        seen.end = std::max(seen.end, one.visible_end);
      }
    }
    return seen;
  }

  const kvspan_attention_args_t& args_;
  const kvspan_attention_shape_t& shape_;
  const kvspan_entry_t& entry_;
};

class RunBody final : public Body {
 public:
  RunBody(const kvspan_attention_args_t& args, std::uint32_t granule)
      : call_(args), granule_(granule) {}

  void finish() override {
    for (std::uint32_t i = 0; i < call_.args().entry_count; ++i) {
      if (call_.entry(i).row_count != 0) {
        EntryWork(call_, i).run(granule_);
      }
    }
  }

 private:
  const AttentionArgs call_;
  const std::uint32_t granule_;
};

class AdvanceBody final : public Body {
 public:
  AdvanceBody(const kvspan_attention_args_t& args,
              std::vector<kvspan_advance_item_t> items,
              std::uint32_t granule)
      : call_(args), items_(std::move(items)), granule_(granule) {}

  void start(Random& random) override {
    for (std::size_t left = items_.size(); left > 1; --left) {  // splits are independent
      std::swap(items_[left - 1], items_[random.up_to(left - 1)]);
    }
  }

  void finish() override {
    for (const kvspan_advance_item_t& item : items_) {
      if (call_.entry(item.entry).row_count == 0) {
        continue;
      }
      const EntryWork entry(call_, item.entry);
      const State state = state_of(item.state);
      if ((item.flags & KVSPAN_ITEM_FRESH) != 0) {
        entry.clear(state);
      }
      entry.advance(state, {item.first_token, item.first_token + item.token_count}, granule_);
    }
  }

 private:
  const AttentionArgs call_;
  std::vector<kvspan_advance_item_t> items_;
  const std::uint32_t granule_;
};

class FoldBody final : public Body {
 public:
  FoldBody(const kvspan_attention_args_t& args, std::vector<kvspan_fold_item_t> items)
      : call_(args), items_(std::move(items)) {}

  void finish() override {
    for (const kvspan_fold_item_t& item : items_) {
      if (call_.entry(item.entry).row_count == 0) {
        continue;
      }
      const EntryWork entry(call_, item.entry);
      const State accumulator = state_of(item.accumulator);
      if ((item.flags & KVSPAN_ITEM_FRESH) != 0) {
        entry.clear(accumulator);
      }
      entry.fold(accumulator, state_of(item.source));
    }
  }

 private:
  const AttentionArgs call_;
  const std::vector<kvspan_fold_item_t> items_;
};

class FinishBody final : public Body {
 public:
  FinishBody(const kvspan_attention_args_t& args, std::vector<kvspan_state_t> accumulators)
      : call_(args), accumulators_(std::move(accumulators)) {}

  void finish() override {
    for (std::uint32_t i = 0; i < call_.args().entry_count; ++i) {
      if (call_.entry(i).row_count != 0) {
        EntryWork(call_, i).finish(state_of(accumulators_[i]));
      }
    }
  }

 private:
  const AttentionArgs call_;
  const std::vector<kvspan_state_t> accumulators_;
};

}  // namespace

std::unique_ptr<Body> make_run(const kvspan_attention_args_t& args, std::uint32_t granule) {
  return std::make_unique<RunBody>(args, granule);
}

std::unique_ptr<Body> make_advance(const kvspan_attention_args_t& args,
                                   std::vector<kvspan_advance_item_t> items,
                                   std::uint32_t granule) {
  return std::make_unique<AdvanceBody>(args, std::move(items), granule);
}

std::unique_ptr<Body> make_fold(const kvspan_attention_args_t& args,
                                std::vector<kvspan_fold_item_t> items) {
  return std::make_unique<FoldBody>(args, std::move(items));
}

std::unique_ptr<Body> make_finish(const kvspan_attention_args_t& args,
                                  std::vector<kvspan_state_t> accumulators) {
  return std::make_unique<FinishBody>(args, std::move(accumulators));
}

}  // namespace kvspan::stub
