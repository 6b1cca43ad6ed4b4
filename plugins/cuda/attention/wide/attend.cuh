// SPDX-License-Identifier: Apache-2.0
// The attending warps: a warpgroup takes 64 pairs through all granules by itself. Scores of a granule
// are products of queries with whole numbers of K, a block of 32 elements at a time, scaled in f32 and
// summed by ascending block; then the running maximum, weights rounded to f16, u = u * kept + P V. A
// thread has two pairs, all their scores of every fourth two tokens, and the same columns of u.
// Device code only.
#pragma once

#include "attention/fold.cuh"
#include "attention/tensor/open.cuh"
#include "attention/tensor/ptx.cuh"
#include "attention/wide/block.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda::wide {

template <class K, class V>
class Attender {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;
  static constexpr uint32_t size = Places::size;
  static constexpr uint32_t parts = size / 128;  // of u, as products take them
  // The same bits as the division by it, which the compiler would spell out for each number: what is
  // done once an item is code that is fetched anew each time, 128 bytes a trip.
  static constexpr float kUnscale = 1.0f / tensor::kWeightScale;

  __device__ explicit Attender(const Owner& block)
      : block_(block),
        quad_(threadIdx.x % 4),
        query_(wgmma::uniform(wgmma::operand(
            ptx::shared_address(block.q()) + group() * kGroupPairs * wgmma::kPanelRowBytes, 0))) {}

  // The block as this warp sees it.
  __device__ Owner& block() { return block_; }

  // All granules of an item, and what comes of them.
  __device__ void walk() {
    if (group() * kGroupPairs >= block_.opened().count) {
      return pass();
    }
    begin();
    bool walked = false;
    tensor::for_each_stretch(block_.opened(), [&](const tensor::Stretch& stretch) {
      if (walk_is(Walk::splits)) {
        forget();
      }
      for (uint32_t granule = 0; granule < stretch.granules; ++granule) {
        attend(stretch, granule);
      }
      finish_products();
      leave_values();
      if (walk_is(Walk::splits)) {
        fold_split(walked);
      }
      walked = true;
    });
    if (walk_is(Walk::splits)) {
      write_outputs(walked);
    } else if (walked || walk_is(Walk::fresh)) {
      store_state();
    }
  }

 private:
  // Number of this warpgroup.
  [[nodiscard]] __device__ static uint32_t group() { return threadIdx.x / 128; }

  // What an item is about is looked up when it is asked for: u, scores and products leave few registers.
  [[nodiscard]] __device__ bool walk_is(Walk walk) const { return block_.opened().item.walk == walk; }

  // Of this thread's two.
  [[nodiscard]] __device__ static uint32_t pair(uint32_t r) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }

  [[nodiscard]] __device__ bool is_there(uint32_t r) const { return pair(r) < block_.opened().count; }

  [[nodiscard]] __device__ tensor::PairPlace place(uint32_t pair) const {
    return tensor::place_of(block_.opened(), block_.problem, pair);
  }

  // Where a thread's pairs are in the item's state: found once, a division each.
  struct StateRows {
    float* ml;          // of the state
    uint64_t index[2];  // row * q_heads + head
    float* u[2];
  };

  [[nodiscard]] __device__ StateRows state_rows() const {
    StateRows out;
    out.ml = block_.opened().item.state.ml;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const tensor::PairPlace at = place(pair(r));
      out.index[r] = at.row * block_.problem.q_heads + at.head;
      out.u[r] = block_.opened().item.state.u + out.index[r] * size;
    }
    return out;
  }

  // A warpgroup without pairs.
  __device__ void pass() {
    tensor::for_each_stretch(block_.opened(), [&](const tensor::Stretch& stretch) {
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        (void)begin_tile(tiles_, 0);
        leave_tile(tiles_.slot);
        (void)begin_values();
        leave_tile(values_of(tiles_).slot);
        tiles_.next_by(2, Places::tiles);
        other_ ^= 1;
      }
    });
  }

  // Queries of the warpgroup's pairs as operands, behind its last products with those before, and the
  // state, which is on its way meanwhile.
  __device__ void begin() {
    const RowsView& rows = block_.opened().entry.q;
    const bool aligned = are_aligned(rows);
    ptx::sync(kGroupBarrier + group(), 128);
    if (aligned) {
      fetch_queries();
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < kQueriesAWarp; ++i) {
        store_query(first_query() + i, tensor::fetch_query<K>(block_, first_query() + i));
      }
    }
    forget();
    if (walk_is(Walk::resume)) {
      fetch_state();
    }
    if (aligned) {
      ptx::wait_for_units();
      __syncwarp();
      // Eight lanes that read at once have eight rows that follow each other, and so different banks.
      const uint32_t lane = threadIdx.x % 32;
      make_query(first_query() + lane % kQueriesAWarp, rows.type, lane / kQueriesAWarp);
    }
    if (block_.problem.slopes != nullptr && threadIdx.x % 128 < kGroupPairs) {
      const uint32_t pair = group() * kGroupPairs + threadIdx.x % 128;
      tensor::lean(block_.kept().pairs, block_.opened(), block_.problem, pair, place(pair));
    }
    ptx::fence_async();
    ptx::sync(kGroupBarrier + group(), 128);
    q_scale_[0] = block_.kept().pairs.q_scale[pair(0)];
    q_scale_[1] = block_.kept().pairs.q_scale[pair(1)];
    scale_state();
  }

  // A warp makes 16 queries.
  static constexpr uint32_t kQueriesAWarp = kGroupPairs / 4;
  static_assert(kQueriesAWarp == 16);

  [[nodiscard]] __device__ static uint32_t first_query() { return threadIdx.x / 32 * kQueriesAWarp; }

  // Whether each eight elements of 16 bits are one load.
  __device__ static bool are_aligned(const RowsView& rows) {
    return ((reinterpret_cast<uint64_t>(rows.base) | rows.row_stride | rows.head_stride) & 15) == 0;
  }

  // Rows of 16 bits are asked for, all at once, to where their operands will be; two lanes make a row what
  // it shall be there. Short loops: this code is fetched anew for each item.
  __device__ void fetch_queries() {
    const Item& opened = block_.opened();
    const RowsView& rows = opened.entry.q;
    const uint32_t lane = threadIdx.x % 32;
    // Lane i has the row of this warp's i-th pair.
    const uint32_t mine = first_query() + lane % kQueriesAWarp;
    const tensor::PairPlace at = place(mine);
    const auto row = reinterpret_cast<unsigned long long>(row_of(rows, at.row, at.head));
#pragma unroll 4
    for (uint32_t i = 0; i < kQueriesAWarp; ++i) {
      const uint32_t pair = first_query() + i;
      const auto from = __shfl_sync(~0u, row, static_cast<int>(i));
      if (8 * lane >= size) {
        continue;
      }
      if (pair < opened.count) {
        ptx::load_unit<16>(query_unit(pair, lane), reinterpret_cast<const uint8_t*>(from) + 16 * lane);
      } else {
        *query_unit(pair, lane) = uint4{};
      }
    }
  }

  // Half a row that lies where its operand will be, with the lane that has the other half.
  __device__ void make_query(uint32_t pair, kvspan_type_t type, uint32_t half) {
    constexpr uint32_t kUnits = size / 16;
    tensor::Query query{};
#pragma unroll 4
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      tensor::widen(type, *query_unit(pair, half * kUnits + unit), query.values);
      tensor::find_most_of(query);
    }
    query.most = fmaxf(query.most, __shfl_xor_sync(~0u, query.most, kQueriesAWarp));
    const float down = tensor::power_of_two(-query.exponent());
#pragma unroll 4
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      uint4* const at = query_unit(pair, half * kUnits + unit);
      tensor::widen(type, *at, query.values);
      *at = operand_of(query, down);
    }
    tell_scale(pair, query, half == 0);
  }

  // Where eight elements of a query lie.
  [[nodiscard]] __device__ uint4* query_unit(uint32_t pair, uint32_t unit) const {
    return reinterpret_cast<uint4*>(block_.q() + unit / 8 * Places::q_panel_bytes +
                                    wgmma::unit_place(pair, unit % 8));
  }

  // Eight elements of a query as they are multiplied: divided by a power of two that brings its largest
  // near 1, so that it fits 16 bits whatever its size.
  __device__ static uint4 operand_of(const tensor::Query& query, float down) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = ptx::bits_of(__floats2half2_rn(__fmul_rn(query.values[2 * i], down),
                                                __fmul_rn(query.values[2 * i + 1], down)));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  __device__ void tell_scale(uint32_t pair, const tensor::Query& query, bool first) {
    if (first) {
      block_.kept().pairs.q_scale[pair] =
          __fmul_rn(block_.problem.scale, tensor::power_of_two(query.exponent()));
    }
  }

  // A warp: a query of which each lane has eight elements.
  __device__ void store_query(uint32_t pair, const tensor::Query& query) {
    const uint32_t lane = threadIdx.x % 32;
    tell_scale(pair, query, lane == 0);
    if (8 * lane < size) {
      *query_unit(pair, lane) = operand_of(query, tensor::power_of_two(-query.exponent()));
    }
  }

  // Waits for a tile; names it as an operand.
  [[nodiscard]] __device__ uint32_t begin_tile(const tensor::Ring& ring, uint32_t panel_bytes) const {
    ptx::wait(&block_.kept().tile_full[ring.slot], ring.parity);
    return wgmma::uniform(wgmma::operand(ptx::shared_address(block_.tile(ring.slot)), panel_bytes));
  }

  // The tile of V of the granule whose K is at `keys`.
  [[nodiscard]] __device__ static tensor::Ring values_of(tensor::Ring keys) {
    keys.next(Places::tiles);
    return keys;
  }

  [[nodiscard]] __device__ uint32_t begin_values() const {
    return begin_tile(values_of(tiles_), Places::tile_panel_bytes);
  }

  __device__ void leave_tile(uint32_t slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::arrive(&block_.kept().tile_empty[slot]);
    }
  }

  __device__ void forget() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u_[part][i] = 0.0f;
      }
    }
    for (uint32_t r = 0; r < 2; ++r) {
      l_[r] = 0.0f;
      m_[r] = -INFINITY;
    }
  }

  // Calls visit(r, element, u of it, u of the next element) for all that this thread has.
  template <class Visit>
  __device__ void for_each_two(Visit&& visit) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(r)) {
        continue;
      }
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {
          visit(r, 128 * part + 8 * i + 2 * quad_, u_[part][4 * i + 2 * r], u_[part][4 * i + 2 * r + 1]);
        }
      }
    }
  }

  // Asks for it; nothing waits before scale_state().
  __device__ void fetch_state() {
    const StateRows rows = state_rows();
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(r)) {
        m_[r] = rows.ml[2 * rows.index[r]];
        l_[r] = rows.ml[2 * rows.index[r] + 1];
      }
    }
    for_each_two([&](uint32_t r, uint32_t element, float& a, float& b) {
      const float2 from = *reinterpret_cast<const float2*>(rows.u[r] + element);
      a = from.x;
      b = from.y;
    });
  }

  // As sums are kept while they grow; zeros stay.
  __device__ void scale_state() {
    l_[0] *= tensor::kWeightScale;
    l_[1] *= tensor::kWeightScale;
    pin_u();  // not before
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u_[part][i] *= tensor::kWeightScale;
      }
    }
  }

  __device__ void store_state() {
    const StateRows rows = state_rows();
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(r) && quad_ == 0) {
        rows.ml[2 * rows.index[r]] = m_[r];
        rows.ml[2 * rows.index[r] + 1] = l_[r] * kUnscale;
      }
    }
    for_each_two([&](uint32_t r, uint32_t element, float a, float b) {
      *reinterpret_cast<float2*>(rows.u[r] + element) = make_float2(a * kUnscale, b * kUnscale);
    });
  }

  __device__ void attend(const tensor::Stretch& stretch, uint32_t granule) {
    const uint32_t k_tile = begin_tile(tiles_, 0);
#pragma unroll 1
    for (uint32_t half = 0; half < 2; ++half) {
      attend_half(k_tile, half, stretch, granule);
    }
    other_ ^= 1;
    tiles_.next_by(2, Places::tiles);
  }

  // 32 tokens. Products of the half before with V are under way until the first products with K are
  // over, which come behind them; u is theirs so long.
  __device__ void attend_half(uint32_t k_tile,
                              uint32_t half,
                              const tensor::Stretch& stretch,
                              uint32_t granule) {
    float scores[16];
    multiply_keys(k_tile + half * (kHalfBytes / 16), half, scores);
    if (half == 1) {
      leave_tile(tiles_.slot);
    } else if (granule != 0) {
      leave_values();
    }
    const bool open = stretch.is_open(granule);
    uint32_t seen[2] = {~0u, ~0u};
    if (!open) {
      seen[0] = seen_of(pair(0), half, stretch, granule);
      seen[1] = seen_of(pair(1), half, stretch, granule);
    }
    make_scores(scores, seen, stretch.token(granule) + 32 * half, open);
    uint32_t weights[2][4];  // first operands of 16 tokens each
    float kept[2];
    weigh(scores, weights, kept);
    if (__any_sync(~0u, kept[0] != 1.0f || kept[1] != 1.0f ? 1 : 0) != 0) {
      rescale(kept);  // a product with 1 changes nothing, and most granules have no new maximum
    }
    if (open) {
      multiply_values(half, weights);
      return;
    }
    Closed closed{{seen[0], seen[1]}, {}};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      closed.weights[i / 4][i % 4] = weights[i / 4][i % 4];
    }
    multiply_values(half, weights);
    finish_products();
    add_odd(closed, half, stretch.token(granule) + 32 * half);
  }

  // The half granule's tokens that a pair sees, a bit each.
  [[nodiscard]] __device__ uint32_t seen_of(uint32_t pair,
                                            uint32_t half,
                                            const tensor::Stretch& stretch,
                                            uint32_t granule) const {
    return static_cast<uint32_t>(
        tensor::visible_bits(block_.opened(), pair, stretch.token(granule), stretch.stop) >> 32 * half);
  }

  // What is kept of a half granule that not every pair sees whole, behind its products.
  struct Closed {
    uint32_t seen[2];
    uint32_t weights[2][4];
  };

  static constexpr uint32_t kHalfBytes = 32 * wgmma::kPanelRowBytes;  // of 32 tokens, in a panel

  // A block of 32 elements.
  __device__ static void multiply_block(uint32_t query, uint32_t keys, float (&sums)[16]) {
    wgmma::begin();
    wgmma::multiply<false>(sums, query, keys);
    wgmma::multiply<true>(sums, query + 2, keys + 2);
    wgmma::commit();
  }

  // Scales of a block, of this thread's tokens of a half granule; fetched before products are waited for.
  struct Scales {
    float4 of[2];

    __device__ explicit Scales(const float* scales)
        : of{reinterpret_cast<const float4*>(scales)[0], reinterpret_cast<const float4*>(scales)[1]} {}

    __device__ void add(const float (&sums)[16], float (&scores)[16]) const {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
          const uint32_t at = 8 * i + 2 * r;
          scores[at] = fmaf(of[i].x, sums[at], scores[at]);
          scores[at + 1] = fmaf(of[i].y, sums[at + 1], scores[at + 1]);
          scores[at + 4] = fmaf(of[i].z, sums[at + 4], scores[at + 4]);
          scores[at + 5] = fmaf(of[i].w, sums[at + 5], scores[at + 5]);
        }
      }
    }
  };

  // A panel has two blocks; the products of one are under way while the other's are scaled.
  __device__ void multiply_keys(uint32_t keys, uint32_t half, float (&scores)[16]) {
    const float* scales = &block_.kept().scales[other_][0][32 * half + 8 * quad_];
    uint32_t query = query_;
    asm volatile("" : "+r"(query));  // else its sums are made once for all halves, and kept in local memory
    float low[16];
    float high[16];
    multiply_block(query, keys, low);
    multiply_block(query + 4, keys + 4, high);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      scores[i] = 0.0f;
    }
    wgmma::wait<0>();  // for those with V, too: with any under way ptxas puts all one after another
    pin_u();
    wgmma::pin(low);
    wgmma::pin(high);
#pragma unroll  // rolled, ptxas puts all products one after another
    for (uint32_t panel = 1; panel <= Places::panels; ++panel) {
      const bool more = panel < Places::panels;
      query += Places::q_panel_bytes / 16;
      keys += Places::tile_panel_bytes / 16;
      const Scales of_low(scales);
      wgmma::wait<1>();
      wgmma::pin(low);
      of_low.add(low, scores);
      if (more) {
        multiply_block(query, keys, low);
      }
      const Scales of_high(scales + kTokens);
      if (more) {
        wgmma::wait<1>();
      } else {
        wgmma::wait<0>();
      }
      wgmma::pin(high);
      of_high.add(high, scores);
      if (more) {
        multiply_block(query + 4, keys + 4, high);
      }
      scales += 2 * kTokens;
    }
  }

  __device__ void pin_u() {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
      wgmma::pin(u_[part]);
    }
  }

  // Behind the products with V that are under way.
  __device__ void finish_products() {
    wgmma::wait<0>();
    pin_u();
  }

  // Gives back the tile of V of the granule before, whose products are over.
  __device__ void leave_values() const {
    leave_tile(tiles_.slot == 0 ? Places::tiles - 1 : tiles_.slot - 1);
  }

  // Token of the half granule that element e is a score of.
  [[nodiscard]] __device__ uint32_t token_of(uint32_t e) const { return e / 4 * 8 + 2 * quad_ + e % 2; }

  // Scores in natural units in place of products, -infinity where the pair does not see the token.
  __device__ void make_scores(float (&scores)[16],
                              const uint32_t (&seen)[2],
                              uint64_t first,
                              bool open) const {
#pragma unroll
    for (uint32_t e = 0; e < 16; ++e) {
      scores[e] = __fmul_rn(scores[e], q_scale_[e / 2 % 2]);
    }
    const Problem& problem = block_.problem;
    if (problem.soft_cap != 0.0f || problem.slopes != nullptr) {
#pragma unroll
      for (uint32_t e = 0; e < 16; ++e) {
        scores[e] = tensor::bent(block_, scores[e], pair(e / 2 % 2), first + token_of(e));
      }
    }
    if (!open) {
#pragma unroll
      for (uint32_t e = 0; e < 16; ++e) {
        scores[e] = (seen[e / 2 % 2] >> token_of(e) & 1) != 0 ? scores[e] : -INFINITY;
      }
    }
  }

  // Weights, rounded: l is their sum as they are used. `kept`: what the old l and u are multiplied with.
  __device__ void weigh(const float (&scores)[16], uint32_t (&weights)[2][4], float (&kept)[2]) {
    float from[2];
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float top = m_[r];
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        top = ptx::max_nan(top, scores[i / 2 * 4 + 2 * r + i % 2]);
      }
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 1));
      top = ptx::max_nan(top, __shfl_xor_sync(~0u, top, 2));
      from[r] = is_neutral(top) ? 0.0f : top;
      kept[r] = tensor::kept_of(m_[r], from[r]);
      m_[r] = top;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      // i / 2: which eight tokens; i % 2 is r.
      const uint32_t at = i / 2 * 4 + i % 2 * 2;
      const __half2 two = __floats2half2_rn(tensor::weight_of(scores[at], from[i % 2]),
                                            tensor::weight_of(scores[at + 1], from[i % 2]));
      const float2 rounded = __half22float2(two);
      sums[i % 2] = __fadd_rn(sums[i % 2], __fadd_rn(rounded.x, rounded.y));
      weights[i / 4][i % 4] = ptx::bits_of(two);
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(~0u, sums[r], 1));
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(~0u, sums[r], 2));
      l_[r] = fmaf(l_[r], kept[r], sums[r]);
    }
  }

  __device__ void rescale(const float (&kept)[2]) {
#pragma unroll
    for (uint32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < 64; ++i) {
        u_[part][i] *= kept[i / 2 % 2];
      }
    }
  }

  __device__ void multiply_values(uint32_t half, const uint32_t (&weights)[2][4]) {
    const uint32_t values = begin_values() + half * (kHalfBytes / 16);
    wgmma::begin();
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part) {
        wgmma::multiply(u_[part],
                        weights[step],
                        values + 2 * part * (Places::tile_panel_bytes / 16) + step * (kHalfBytes / 32));
      }
    }
    wgmma::commit();
  }

  // Tokens that were left out of the products, for the pairs that see them, from where they lie.
  __device__ void add_odd(const Closed& closed, uint32_t half, uint64_t first) {
    const auto& kept = block_.kept();
    const Problem& problem = block_.problem;
    for (uint32_t left = reinterpret_cast<const uint32_t*>(kept.odd[other_])[half]; left != 0;
         left &= left - 1) {
      const auto token = static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
      const SpanView span = span_of(first + token);
      const uint8_t* const row = row_of(
          problem.v_in_k != 0 ? span.k : span.v, first + token - span.first_token, block_.opened().kv_head);
      float weight[2];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        // Lane token % 8 / 2 of the quad has it.
        uint32_t bits = closed.weights[token / 16][token / 8 % 2 * 2 + r];
        bits = __shfl_sync(~0u, bits, static_cast<int>(threadIdx.x % 32 / 4 * 4 + token % 8 / 2));
        const float2 two = __half22float2(ptx::half2_of(bits));
        weight[r] = token % 2 == 0 ? two.x : two.y;
      }
      for_each_two([&](uint32_t r, uint32_t element, float& a, float& b) {
        if ((closed.seen[r] >> token & 1) != 0) {
          const kvspan_type_t type = V::type(KVSPAN_TYPE_F32);
          a = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element)), a);
          b = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element + 1)), b);
        }
      });
    }
  }

  // The span of a token that some pair sees.
  [[nodiscard]] __device__ SpanView span_of(uint64_t token) const {
    const EntryView& entry = block_.opened().entry;
    uint32_t at = 0;
    while (entry.spans[at].first_token + entry.spans[at].token_count <= token) {
      ++at;
    }
    SpanView span = entry.spans[at];
    reach_all(block_.near(), span);
    return span;
  }

  // {m, l} of the accumulator, which lies in the item's state.
  [[nodiscard]] __device__ float2 accumulated(const StateRows& rows, uint32_t r, bool there) const {
    return there && is_there(r) ? *reinterpret_cast<const float2*>(rows.ml + 2 * rows.index[r])
                                : make_float2(-INFINITY, 0.0f);
  }

  // The state of a split is over: into the accumulator.
  __device__ void fold_split(bool has_accumulator) {
    const StateRows rows = state_rows();
    Fold fold[2];
    float l[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float2 before = accumulated(rows, r, has_accumulator);
      fold[r] = fold_of(before.x, m_[r]);
      l[r] = folded(fold[r], before.y, l_[r] * kUnscale);
    }
    __syncwarp();  // all four lanes have read {m, l}
    for (uint32_t r = 0; r < 2; ++r) {
      if (is_there(r) && quad_ == 0) {
        *reinterpret_cast<float2*>(rows.ml + 2 * rows.index[r]) = make_float2(fold[r].m, l[r]);
      }
    }
    __syncwarp();
    for_each_two([&](uint32_t r, uint32_t element, float a, float b) {
      auto* const to = reinterpret_cast<float2*>(rows.u[r] + element);
      const float2 sum = has_accumulator ? *to : make_float2(0.0f, 0.0f);
      *to = make_float2(folded(fold[r], sum.x, a * kUnscale), folded(fold[r], sum.y, b * kUnscale));
    });
  }

  __device__ void write_outputs(bool has_accumulator) {
    const Problem& problem = block_.problem;
    const EntryView& entry = block_.opened().entry;
    const StateRows rows = state_rows();
    Finish finish[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float* const sink =
          problem.sinks != nullptr ? problem.sinks + place(pair(r)).head : nullptr;
      const float2 sums = accumulated(rows, r, has_accumulator);
      finish[r] = finish_of(sums.x, sums.y, sink);
      if (is_there(r) && quad_ == 0 && entry.lse != nullptr) {
        entry.lse[rows.index[r]] = finish[r].lse;
      }
    }
    const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!is_there(r)) {
        continue;
      }
      const float* const from = rows.u[r];
      const tensor::PairPlace at = place(pair(r));
      uint8_t* const to = row_of(entry.out, at.row, at.head);
#pragma unroll 1
      for (uint32_t element = 2 * quad_; element < size; element += 8) {
        const float2 sum = has_accumulator ? *reinterpret_cast<const float2*>(from + element)
                                           : make_float2(0.0f, 0.0f);
        store_element(entry.out.type, finished(finish[r], sum.x), to + element * bytes);
        store_element(entry.out.type, finished(finish[r], sum.y), to + (element + 1) * bytes);
      }
    }
  }

  Owner block_;
  const uint32_t quad_;   // lane of the four that share two pairs
  const uint32_t query_;  // operand of the warpgroup's pairs
  tensor::Ring tiles_;    // where K of the granule is that is next; V lies behind it
  uint32_t other_ = 0;    // of Kept's numbers of every other granule
  float q_scale_[2];
  float u_[parts][64];
  float l_[2];
  float m_[2];
};

}  // namespace kvspan::cuda::wide
