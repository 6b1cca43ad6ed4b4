// SPDX-License-Identifier: Apache-2.0
// Read first: reservations.hpp.
#include "kvspan/core/backend/reservations.hpp"

#include "kvspan/core/backend/backend.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace kvspan {

namespace {

bool is_same(const kvspan_attention_shape_t& a, const kvspan_attention_shape_t& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;  // fields fill the struct, padding does not exist
}

static_assert(sizeof(kvspan_attention_shape_t) ==
              18 * sizeof(std::uint32_t) + sizeof(std::uint64_t));

// The amounts of a request.
constexpr std::uint32_t kvspan_prepare_t::*kAmounts[] = {&kvspan_prepare_t::segments_max,
                                                         &kvspan_prepare_t::codec_items_max,
                                                         &kvspan_prepare_t::attention_items_max,
                                                         &kvspan_prepare_t::spans_max,
                                                         &kvspan_prepare_t::page_list_max};

// A depth of 0 is the most that there is.
std::uint32_t deeper(std::uint32_t a, std::uint32_t b) {
  return a == 0 || b == 0 ? 0 : std::max(a, b);
}

void join(ReservedSubmits& all, const ReservedSubmits& one) {
  all.limits.depth = deeper(all.limits.depth, one.limits.depth);
  for (const auto amount : kAmounts) {
    all.limits.*amount = std::max(all.limits.*amount, one.limits.*amount);
  }
  for (const kvspan_attention_shape_t& shape : one.shapes) {
    if (std::none_of(all.shapes.begin(), all.shapes.end(), [&](const auto& known) {
          return is_same(known, shape);
        })) {
      all.shapes.push_back(shape);
    }
  }
}

bool holds(const ReservedSubmits& all, const ReservedSubmits& one) {
  ReservedSubmits both = all;
  join(both, one);
  return both.shapes.size() == all.shapes.size() && both.limits.depth == all.limits.depth &&
         std::all_of(std::begin(kAmounts), std::end(kAmounts), [&](const auto amount) {
           return both.limits.*amount == all.limits.*amount;
         });
}

}  // namespace

Result<std::uint64_t> Reservations::reserve(const kvspan_device_table_t& table,
                                            kvspan_device_t* device,
                                            const void* owner,
                                            const ReservedSubmits& asked) {
  const std::lock_guard lock(mutex_);
  const auto known = owners_.find(owner);
  const bool alone = owners_.size() == (known == owners_.end() ? 0 : 1);
  const std::uint64_t before_bytes = alone                    ? 0
                                     : known == owners_.end() ? device_bytes_
                                                              : known->second.before_bytes;
  std::map<const void*, Owner> owner_to_be;  // made before the device is asked
  owner_to_be.try_emplace(owner, Owner{asked, before_bytes});
  if (alone || !holds(held_, asked)) {
    ReservedSubmits all = asked;
    for (const auto& [other, of] : owners_) {
      if (other != owner) {
        join(all, of.asked);
      }
    }
    all.limits.struct_size = sizeof all.limits;
    all.limits.shapes = all.shapes.data();
    all.limits.shape_count = static_cast<std::uint32_t>(all.shapes.size());
    kvspan_prepared_t prepared{};
    prepared.struct_size = sizeof prepared;
    kvspan_error_t error = empty_error();
    const kvspan_result_t result = table.prepare(device, &all.limits, &prepared, &error);
    if (result != KVSPAN_OK) {
      return tl::unexpected(from_abi(result, error, "preparing the device"));
    }
    held_ = std::move(all);
    device_bytes_ = prepared.device_bytes;
  }
  owners_.erase(owner);
  owners_.merge(owner_to_be);
  return device_bytes_ - std::min(device_bytes_, before_bytes);
}

void Reservations::release(const void* owner) {
  const std::lock_guard lock(mutex_);
  owners_.erase(owner);
}

}  // namespace kvspan
