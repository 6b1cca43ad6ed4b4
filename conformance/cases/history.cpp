// SPDX-License-Identifier: Apache-2.0
// Histories and their layouts. The formula of a token's place is that of kvspan_plane_t.
#include "history.hpp"

#include "kvspan/sdk/reference/half.h"
#include "kvspan/sdk/reference/quant.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace kvspan::conformance {
namespace {

constexpr uint64_t kPartAlignment = 256;  // the strictest that a device may ask of an offset
constexpr uint64_t kPartGap = 256;

uint64_t rounded(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

Side::Side(kvspan_type_t side_type, uint32_t head_count, uint32_t size, uint64_t tokens)
    : type(side_type),
      heads(head_count),
      head_size(size),
      row_bytes(kvspan_ref_row_bytes(side_type, size)),
      bytes(tokens * head_count * row_bytes),
      values(tokens * head_count * size) {
  const std::vector<float> zero(size, 0.0F);
  for (uint64_t token = 0; token < tokens; ++token) {
    for (uint32_t head = 0; head < heads; ++head) {
      set(token, head, zero.data());
    }
  }
}

void Side::set(uint64_t token, uint32_t head, const float* x) {
  const uint64_t row = token * heads + head;
  uint8_t* typed = bytes.data() + row * row_bytes;
  kvspan_ref_encode_row(type, x, head_size, typed);
  kvspan_ref_decode_row(type, typed, head_size, values.data() + row * head_size);
}

void Side::poison(uint64_t token, Poison poison) {
  fill_poison(bytes, token * heads * row_bytes, (token + 1) * heads * row_bytes, type, poison);
}

const float* Side::at(uint64_t token, uint32_t head) const {
  return values.data() + (token * heads + head) * head_size;
}

History::History(const Geometry& shape, uint64_t token_count)
    : geometry(shape),
      tokens(token_count),
      k(shape.k_type, shape.kv_heads, shape.head_size_k, token_count),
      v(shape.v_type, shape.kv_heads, shape.head_size_v, shape.v_in_k ? 0 : token_count) {}

History History::random(const Geometry& shape, uint64_t token_count, Dice& dice) {
  History made(shape, token_count);
  std::vector<float> row(std::max(shape.head_size_k, shape.head_size_v));
  for (Side* side : {&made.k, &made.v}) {
    const uint64_t rows = side->row_bytes == 0 ? 0 : side->bytes.size() / side->row_bytes;
    for (uint64_t i = 0; i < rows; ++i) {
      for (uint32_t e = 0; e < side->head_size; ++e) {
        row[e] = dice.normal();
      }
      side->set(i / side->heads, static_cast<uint32_t>(i % side->heads), row.data());
    }
  }
  return made;
}

const float* History::v_at(uint64_t token, uint32_t head) const {
  return geometry.v_in_k ? k.at(token, head) : v.at(token, head);
}

void fill_poison(Bytes& image, uint64_t begin, uint64_t end, kvspan_type_t type, Poison poison) {
  uint32_t word = 0;
  if (type == KVSPAN_TYPE_F32) {
    word = poison == Poison::nan ? 0x7FC00001u
                                 : (poison == Poison::infinity ? 0x7F800000u : 0x7E967699u);
  } else if (type == KVSPAN_TYPE_BF16) {
    word = poison == Poison::nan ? 0x7FC17FC1u
                                 : (poison == Poison::infinity ? 0x7F807F80u : 0x7E967E96u);
  } else {  // f16, and the scales of blocks: blocks are whole 16-bit words
    word = poison == Poison::nan ? 0x7E017E01u
                                 : (poison == Poison::infinity ? 0x7C007C00u : 0x7BFF7BFFu);
  }
  for (; begin + sizeof word <= end; begin += sizeof word) {
    std::memcpy(image.data() + begin, &word, sizeof word);
  }
  std::copy_n(reinterpret_cast<const uint8_t*>(&word),
              begin < end ? end - begin : 0,
              image.begin() + static_cast<std::ptrdiff_t>(begin));
}

uint64_t Arena::take(uint64_t bytes) {
  const uint64_t offset = used;
  used = rounded(offset + bytes + kPartGap, kPartAlignment);
  if (used > buffer->bytes()) {
    ADD_FAILURE() << "the test's arena of " << buffer->bytes() << " bytes is too small for "
                  << used;
    used = 0;
    return 0;
  }
  return offset;
}

Arena& Arenas::of(uint32_t kind) {
  Arena& arena = arenas_[kind];
  if (arena.buffer != nullptr && arena.used == 0 && arena.buffer->bytes() < bytes_[kind]) {
    rig_.release(arena.buffer);
    arena.buffer = nullptr;
  }
  if (arena.buffer == nullptr) {
    arena.buffer = rig_.allocate(kind, bytes_[kind]);
  }
  if (arena.buffer == nullptr) {  // told already; everything a scene has would lie there
    throw std::runtime_error("the case cannot go on without its memory");
  }
  return arena;
}

void Arenas::make_room(uint64_t bytes) {
  uint64_t& now = bytes_[KVSPAN_MEMORY_DEVICE];
  now = std::max(now, rounded(bytes, uint64_t{8} << 20));
}

void Arenas::reset() {
  for (Arena& arena : arenas_) {
    arena.used = 0;
  }
}

void Arenas::upload() {
  for (Arena& arena : arenas_) {
    if (arena.buffer != nullptr && arena.used != 0) {
      rig_.upload(*arena.buffer, arena.used);
    }
  }
}

Bytes Arenas::download(uint32_t kind) {
  return rig_.download(*arenas_[kind].buffer, arenas_[kind].used);
}

/// One side's layout in an arena.
struct Placement::Plane {
  const Side* side = nullptr;
  uint64_t offset = 0;
  uint64_t head_stride = 0;
  uint64_t row_stride = 0;
  uint64_t page_stride = 0;
  uint64_t page_bytes = 0;

  Plane(const Side& of, const Piece& piece) : side(&of) {
    head_stride = of.row_bytes + piece.pad_bytes;
    row_stride = head_stride * of.heads + 2u * piece.pad_bytes;
    page_bytes = rounded(row_stride * std::max(1u, piece.page_tokens) + piece.pad_bytes, 4);
    page_stride = page_bytes;
  }

  uint64_t place(const Piece& piece, const std::vector<uint32_t>& slots, uint64_t token) const {
    if (piece.page_tokens == 0) {
      return offset + token * row_stride;
    }
    return offset + slots[token / piece.page_tokens] * page_stride +
           token % piece.page_tokens * row_stride;
  }

  kvspan_plane_t raw(const Arena& arena,
                     const Piece& piece,
                     const std::vector<uint32_t>* list) const {
    kvspan_plane_t plane = {};
    plane.memory = arena.buffer->memory;
    plane.offset = offset;
    plane.page_stride = piece.page_tokens == 0 ? 0 : page_stride;
    plane.row_stride = row_stride;
    plane.head_stride = head_stride;
    plane.page_tokens = piece.page_tokens;
    if (list != nullptr) {
      plane.page_list = list->data();
      plane.page_count = static_cast<uint32_t>(list->size());
    }
    return plane;
  }
};

Placement::Placement(Arenas& arenas,
                     const History& history,
                     const std::vector<Piece>& pieces,
                     std::vector<bool> live,
                     Poison poison,
                     Dice& dice)
    : live_(std::move(live)) {
  lists_.reserve(pieces.size());  // spans point into the lists
  for (const Piece& piece : pieces) {
    place(arenas, history, piece, poison, dice);
  }
}

void Placement::place(
    Arenas& arenas, const History& history, const Piece& piece, Poison poison, Dice& dice) {
  Arena& arena = arenas.of(piece.kind);
  const bool paged = piece.page_tokens != 0;
  const uint64_t pages =
      paged ? (piece.token_count + piece.page_tokens - 1) / piece.page_tokens : 1;
  const uint64_t slot_count = paged ? pages + piece.spare_slots : 1;
  std::vector<uint32_t> slots(slot_count);
  std::iota(slots.begin(), slots.end(), 0u);
  if (piece.listed) {
    dice.shuffle(slots);
  }
  slots.resize(pages);
  lists_.push_back(slots);
  const bool listed = paged && piece.listed;

  Plane planes[2] = {Plane(history.k, piece), Plane(history.v, piece)};
  const uint32_t sides = history.geometry.v_in_k ? 1 : 2;
  if (paged && piece.adjacent && sides == 2) {
    // The V plane's offset has to be aligned too: V's part of a page begins at a multiple.
    const uint64_t k_part = rounded(planes[0].page_bytes, kPartAlignment);
    const uint64_t stride = k_part + planes[1].page_bytes;
    planes[0].offset = arena.take(slot_count * stride);
    planes[1].offset = planes[0].offset + k_part;
    planes[0].page_stride = planes[1].page_stride = stride;
    planes[0].page_bytes = k_part;
  } else {
    for (uint32_t s = 0; s < sides; ++s) {
      const uint64_t bytes = paged
                                 ? slot_count * planes[s].page_bytes
                                 : std::max<uint64_t>(1, piece.token_count) * planes[s].row_stride;
      planes[s].offset = arena.take(bytes);
      planes[s].page_bytes = paged ? planes[s].page_bytes : bytes;
    }
  }
  Bytes& image = arena.buffer->image;
  for (uint32_t s = 0; s < sides; ++s) {
    const Plane& plane = planes[s];
    for (uint64_t slot = 0; slot < slot_count; ++slot) {
      const uint64_t begin = plane.offset + slot * plane.page_stride;
      fill_poison(image, begin, begin + plane.page_bytes, plane.side->type, poison);
    }
    for (uint64_t t = 0; t < piece.token_count; ++t) {
      const uint64_t token = piece.first_token + t;
      for (uint32_t h = 0; h < plane.side->heads && (live_.empty() || live_[token]); ++h) {
        const uint64_t row = (token * plane.side->heads + h) * plane.side->row_bytes;
        std::memcpy(image.data() + plane.place(piece, lists_.back(), t) + h * plane.head_stride,
                    plane.side->bytes.data() + row,
                    plane.side->row_bytes);
      }
    }
  }
  kvspan_span_t span = {};
  span.first_token = piece.first_token;
  span.token_count = piece.token_count;
  span.k = planes[0].raw(arena, piece, listed ? &lists_.back() : nullptr);
  if (sides == 2) {
    span.v = planes[1].raw(arena, piece, listed ? &lists_.back() : nullptr);
  }
  spans_.push_back(span);
}

std::vector<Piece> one_piece(uint64_t tokens) {
  Piece piece;
  piece.token_count = tokens;
  return {piece};
}

std::vector<Piece> random_pieces(uint64_t tokens, uint32_t granule, uint32_t kinds, Dice& dice) {
  std::vector<uint32_t> offered;
  for (uint32_t kind = 0; kind < 3; ++kind) {
    if ((kinds & (1u << kind)) != 0) {
      offered.push_back(kind);
    }
  }
  std::vector<Piece> pieces;
  uint64_t at = 0;
  while (at < tokens) {
    Piece piece;
    const uint64_t granules_left = (tokens - at + granule - 1) / granule;
    const uint64_t granules = dice.hit(4) ? granules_left : dice.between(1, granules_left);
    piece.first_token = at;
    piece.token_count = std::min(granules * granule, tokens - at);
    piece.kind = offered[dice.below(offered.size())];
    piece.page_tokens = dice.pick<uint32_t>({0, 0, 4, 16, 24, 32, 64, 256});
    piece.listed = dice.hit(2);
    piece.adjacent = dice.hit(2);
    piece.pad_bytes = dice.pick<uint32_t>({0, 0, 4, 36});
    piece.spare_slots = static_cast<uint32_t>(dice.below(3));
    pieces.push_back(piece);
    at += piece.token_count;
  }
  return pieces;
}

}  // namespace kvspan::conformance
