// SPDX-License-Identifier: Apache-2.0
// Attention over a plain f32 history in memory, as the transformer's tests need it: no plugin, no
// pages. Each query row is computed alone and in a fixed order, so chunk sizes and threads do not
// show.
// Read next: model/kv_attention.hpp for the contract.
#pragma once

#include "model/kv_attention.hpp"
#include "model/model_config.hpp"
#include "model/thread_team.hpp"

#include <cstddef>
#include <vector>

namespace kvspan::model::testing {

class F32Attention final : public KvAttention {
 public:
  // `team` may be nullptr: the caller then works alone. It must outlive this object.
  F32Attention(const ModelGeometry& geometry, ThreadTeam* team)
      : geometry_(geometry), team_(team), layers_(geometry.layers) {}

  [[nodiscard]] Result<void> attend(std::uint32_t layer, const AttentionRows& rows) override;

 private:
  struct History {
    std::vector<float> k;  // [token, kv_head, head_size_k]
    std::vector<float> v;  // [token, kv_head, head_size_v]
  };

  void attend_head(const History& history,
                   const AttentionRows& rows,
                   std::size_t row,
                   std::size_t head) const;

  ModelGeometry geometry_;
  ThreadTeam* team_;
  std::vector<History> layers_;
};

}  // namespace kvspan::model::testing
