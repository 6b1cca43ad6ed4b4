// SPDX-License-Identifier: Apache-2.0
// A made-up history of one sequence: K and V as typed bytes and as the f32 values those bytes mean,
// and ways to lay it out in memory (pages, lists, paddings, kinds of memory), with chosen poison
// everywhere else. Not here: what attention over it gives (oracle.hpp), calling it (scene.hpp).
#ifndef KVSPAN_CONFORMANCE_CASES_HISTORY_H
#define KVSPAN_CONFORMANCE_CASES_HISTORY_H

#include "worker/rig.hpp"

#include <cstdint>
#include <vector>

namespace kvspan::conformance {

enum class Poison { nan, infinity, large };  // large: about 1e38, or the type's largest

inline constexpr Poison kPoisons[] = {Poison::nan, Poison::infinity, Poison::large};

/// Types, heads and head sizes of K and V.
struct Geometry {
  kvspan_type_t k_type = KVSPAN_TYPE_F16;
  kvspan_type_t v_type = KVSPAN_TYPE_F16;
  uint32_t head_size_k = 64;
  uint32_t head_size_v = 64;
  uint32_t kv_heads = 1;
  uint32_t q_heads = 1;
  bool v_in_k = false;  // V is the first head_size_v elements of K's row
};

/// One side, dense: bytes [token, head, row_bytes], values [token, head, head_size].
struct Side {
  kvspan_type_t type = KVSPAN_TYPE_F16;
  uint32_t heads = 1;
  uint32_t head_size = 64;
  uint64_t row_bytes = 0;
  Bytes bytes;
  std::vector<float> values;

  Side() = default;
  Side(kvspan_type_t side_type, uint32_t head_count, uint32_t size, uint64_t tokens);
  /// Encodes x [head_size]; values become what the bytes decode to.
  void set(uint64_t token, uint32_t head, const float* x);
  const float* at(uint64_t token, uint32_t head) const;
  /// Makes every head of a token poison, in its bytes alone.
  void poison(uint64_t token, Poison poison);
};

struct History {
  Geometry geometry;
  uint64_t tokens = 0;
  Side k;
  Side v;

  History() = default;
  /// All K and V 0.
  History(const Geometry& shape, uint64_t token_count);
  /// Normal values times the magnitudes.
  static History random(const Geometry& shape, uint64_t token_count, Dice& dice);
  /// The values of V for attention: those of v, or with v_in_k the head of K's row.
  const float* v_at(uint64_t token, uint32_t head) const;
};

/// Bytes that mean `poison` in every element of the type, repeated over [begin, end) of the image.
void fill_poison(Bytes& image, uint64_t begin, uint64_t end, kvspan_type_t type, Poison poison);

/// Tokens [first_token, first_token + token_count) in one memory.
struct Piece {
  uint64_t first_token = 0;
  uint64_t token_count = 0;
  uint32_t kind = KVSPAN_MEMORY_DEVICE;
  uint32_t page_tokens = 0;  // 0 = contiguous
  bool listed = false;       // slots shuffled, with a list
  bool adjacent = false;     // a page's V behind its K
  uint32_t pad_bytes = 0;    // behind each head, row and page; a multiple of 4
  uint32_t spare_slots = 0;  // slots that no page uses
};

/// Memory that grows from the front; its image is poison or canary until somebody takes a part.
struct Arena {
  Buffer* buffer = nullptr;
  uint64_t used = 0;

  /// Offset of `bytes` bytes, aligned to 256, with a canary gap before the next part.
  uint64_t take(uint64_t bytes);
};

/// One arena a kind of memory, reused from scene to scene.
class Arenas {
 public:
  Arenas(Rig& rig, uint64_t bytes) : rig_(rig), bytes_{bytes, bytes, bytes} {}

  Rig& rig() { return rig_; }

  /// Throws what ends the case where the plugin refuses the memory, which has failed the case then.
  Arena& of(uint32_t kind);
  /// From its next reset on, the device's arena has at least so many bytes.
  void make_room(uint64_t bytes);
  /// Forgets all parts.
  void reset();
  void upload();
  /// The bytes in memory now.
  Bytes download(uint32_t kind);

  bool made(uint32_t kind) const { return arenas_[kind].buffer != nullptr; }

 private:
  Rig& rig_;
  uint64_t bytes_[3];
  Arena arenas_[3];
};

/// Spans of a history laid out in pieces. Only tokens for which live[token] is true get their
/// bytes; everything else in the planes is poison. `live` empty = all of them.
class Placement {
 public:
  Placement(Arenas& arenas,
            const History& history,
            const std::vector<Piece>& pieces,
            std::vector<bool> live,
            Poison poison,
            Dice& dice);
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  Placement(Placement&&) = delete;
  Placement& operator=(Placement&&) = delete;
  ~Placement() = default;

  const std::vector<kvspan_span_t>& spans() const { return spans_; }

 private:
  struct Plane;
  void place(Arenas& arenas, const History& history, const Piece& piece, Poison poison, Dice& dice);

  std::vector<bool> live_;
  std::vector<kvspan_span_t> spans_;
  std::vector<std::vector<uint32_t>> lists_;
};

/// The whole history in one contiguous piece of device memory.
std::vector<Piece> one_piece(uint64_t tokens);

/// Random pieces: cut at multiples of the granule, kinds among those of the bits, everything else
/// thrown by the dice.
std::vector<Piece> random_pieces(uint64_t tokens, uint32_t granule, uint32_t kinds, Dice& dice);

}  // namespace kvspan::conformance

#endif
