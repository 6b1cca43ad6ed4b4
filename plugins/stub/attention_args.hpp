// SPDX-License-Identifier: Apache-2.0
// The arguments of an attention call, kept until its work has run.
// Read next: attention_work.hpp.
#pragma once

#include "kvspan/attention.h"

#include <cstdint>
#include <vector>

namespace kvspan::stub {

/// A deep copy of a call's arguments: nothing of the caller's arrays is read after submit returns.
/// The V planes are not copied with V_IN_K, where they mean nothing.
class AttentionArgs {
 public:
  explicit AttentionArgs(const kvspan_attention_args_t& args);
  AttentionArgs(const AttentionArgs&) = delete;
  AttentionArgs& operator=(const AttentionArgs&) = delete;
  ~AttentionArgs() = default;

  const kvspan_attention_args_t& args() const { return args_; }

  const kvspan_attention_shape_t& shape() const { return shape_; }

  const kvspan_entry_t& entry(std::uint32_t i) const { return entries_[i]; }

 private:
  void own_entry(kvspan_entry_t& entry);
  void own_list(kvspan_plane_t& plane);

  kvspan_attention_shape_t shape_;
  kvspan_attention_args_t args_;
  std::vector<kvspan_entry_t> entries_;
  std::vector<std::vector<kvspan_span_t>> spans_;
  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::vector<std::uint64_t>> words_;
  std::vector<std::vector<std::int64_t>> positions_;
};

}  // namespace kvspan::stub
