// SPDX-License-Identifier: Apache-2.0
// Faults of what attention reads and writes: spans, pages, precision, outputs. Not here: which
// tokens a row sees and how they score (attention_views.cpp), bits that move (attention_bits.cpp),
// states and folds (attention_states.cpp).
#include "kvspan/sdk/reference/half.h"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/reference/span.h"

#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace kvspan::faults {
namespace {

constexpr uint32_t kWriters = kRun | kFinish;

/// Changes each span of each entry.
void edit_spans(Layer& layer, const std::function<bool(kvspan_span_t& span)>& edit) {
  edit_args(layer, kReaders, [edit](ArgsCopy& copy) {
    bool changed = false;
    for (ArgsCopy::Arrays& own : copy.arrays) {
      for (kvspan_span_t& span : own.spans) {
        changed = edit(span) || changed;
      }
    }
    return changed;
  });
}

void swaps_k_and_v_strides(Layer& layer) {
  edit_spans(layer, [](kvspan_span_t& span) {
    std::swap(span.k.row_stride, span.v.row_stride);
    std::swap(span.k.head_stride, span.v.head_stride);
    return span.k.row_stride != span.v.row_stride || span.k.head_stride != span.v.head_stride;
  });
}

/// Every group of query heads reads the first KV head.
void reads_the_first_kv_head(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    for (ArgsCopy::Arrays& own : copy.arrays) {
      for (kvspan_span_t& span : own.spans) {
        span.k.head_stride = 0;
        span.v.head_stride = 0;
      }
    }
    return copy.shape.kv_heads > 1;
  });
}

/// A page of a plane as a plane of its own, its offset through 32 bits.
kvspan_plane_t wrapped_page(const kvspan_plane_t& plane, uint64_t page, bool& far) {
  const uint64_t slot = plane.page_list != nullptr ? plane.page_list[page] : page;
  kvspan_plane_t own = plane;
  own.offset += slot * plane.page_stride;
  far = far || own.offset > UINT32_MAX;
  own.offset &= UINT32_MAX;
  own.page_list = nullptr;
  own.page_count = own.page_tokens = 0;
  return own;
}

/// Addresses of pages are computed in 32 bits.
void planes_wrap_at_four_gibibytes(Layer& layer) {
  edit_args(layer, kReaders, [](ArgsCopy& copy) {
    bool far = false;
    for (ArgsCopy::Arrays& own : copy.arrays) {
      std::vector<kvspan_span_t> pages;
      for (const kvspan_span_t& span : own.spans) {
        const uint64_t tokens = span.k.page_tokens;
        if (tokens == 0 || tokens != span.v.page_tokens) {
          return false;
        }
        for (uint64_t at = 0; at < span.token_count; at += tokens) {
          pages.push_back({span.first_token + at,
                           std::min(tokens, span.token_count - at),
                           wrapped_page(span.k, at / tokens, far),
                           wrapped_page(span.v, at / tokens, far)});
        }
      }
      own.spans = std::move(pages);
    }
    copy.shape.spans_max = std::max(copy.shape.spans_max, 1024u);
    return far;
  });
}

/// A page list is looked up once for each plane and kept: recycled slots give yesterday's tokens.
void keeps_the_first_page_list(Layer& layer) {
  struct Key {
    const kvspan_memory_t* memory;
    uint64_t offset;
    uint32_t count;
    auto operator<=>(const Key&) const = default;
  };

  struct Kept {
    std::mutex mutex;
    std::map<Key, std::vector<uint32_t>> lists;
  };

  auto kept = std::make_shared<Kept>();
  edit_spans(layer, [kept](kvspan_span_t& span) {
    const std::lock_guard lock(kept->mutex);
    bool changed = false;
    for (kvspan_plane_t* plane : {&span.k, &span.v}) {
      if (plane->page_list == nullptr || plane->page_count == 0 || plane->page_count > 65536) {
        continue;
      }
      const Key key = {plane->memory, plane->offset, plane->page_count};
      const auto [found, fresh] =
          kept->lists.try_emplace(key, plane->page_list, plane->page_list + plane->page_count);
      changed =
          changed || !std::equal(found->second.begin(), found->second.end(), plane->page_list);
      plane->page_list = found->second.data();
    }
    return changed;
  });
}

/// Queries in f16 where f32 operands were promised.
void rounds_queries_to_half(Layer& layer) {
  const auto around = [&layer](
                          auto* queue, const auto* args, auto* submit, auto* error, auto call) {
    if (!readable(args) || args->shape->q_type != KVSPAN_TYPE_F32 ||
        !can_do_now(layer, queue, submit)) {
      return call(args, submit, error);
    }
    kvspan_device_t* const device = owner_of(queue)->device;
    ArgsCopy copy(*args);
    std::vector<kvspan_memory_t*> made;
    for (kvspan_entry_t& entry : copy.entries) {
      const uint64_t bytes = (entry.row_count == 0 ? 0 : entry.row_count - 1) * entry.q.row_stride +
                             (args->shape->q_heads - 1) * entry.q.head_stride +
                             uint64_t{args->shape->head_size_k} * 4;
      Bytes q = read_memory(layer, queue, entry.q.memory, entry.q.offset, bytes);
      round_to_half(q);
      if (!q.empty()) {
        made.push_back(make_memory(layer, device, q));
        entry.q.memory = made.back();
        entry.q.offset = 0;
      }
    }
    const Go go = [&](const kvspan_submit_t* own, kvspan_error_t* out) {
      return call(&copy.args, own, out);
    };
    const kvspan_result_t result =
        spoil(layer, queue, submit, error, go, [&layer] { layer.ran(); });
    for (kvspan_memory_t* memory : made) {
      release_memory(layer, memory);
    }
    return result;
  };
  layer.calls.run = [around, next = layer.calls.run](
                        auto* queue, auto* args, auto* submit, auto* error) {
    return around(queue, args, submit, error, [&](auto* own, auto* sent, auto* out) {
      return next(queue, own, sent, out);
    });
  };
}

/// The output passes through half precision.
void outputs_pass_through_half(Layer& layer) {
  after_output(layer, kWriters, [&layer](auto* queue, const kvspan_attention_args_t& args) {
    change_rows(layer, queue, args, [&](const auto&, auto, auto, float* out, uint32_t size) {
      for (uint32_t d = 0; d < size; ++d) {
        out[d] = kvspan_ref_f32_from_f16(kvspan_ref_f16_from_f32(out[d]));
      }
      layer.ran();
      return true;
    });
  });
}

/// Rows that see nothing divide 0 by 0.
void nothing_visible_gives_nan(Layer& layer) {
  after_output(layer, kWriters, [&layer](auto* queue, const kvspan_attention_args_t& args) {
    change_rows(
        layer,
        queue,
        args,
        [&](const kvspan_entry_t& entry, uint32_t row, uint32_t, float* out, uint32_t size) {
          const bool zero = std::all_of(out, out + size, [](float x) { return x == 0.0F; });
          const uint64_t begin = entry.window_begin != nullptr ? entry.window_begin[row] : 0;
          const bool masked = entry.suffix_mask != nullptr && entry.suffix_mask[row] == 0;
          if (!zero || (begin < entry.visible_end[row] && !masked)) {
            return false;
          }
          std::fill(out, out + size, std::nanf(""));
          layer.ran();
          return true;
        });
  });
}

/// Changes the LSE of every row.
void change_lse(Layer& layer, float (*change)(float lse)) {
  after_output(layer, kWriters, [&layer, change](auto* queue, const auto& args) {
    for (uint32_t i = 0; i < args.entry_count; ++i) {
      const kvspan_entry_t& entry = args.entries[i];
      const uint64_t count = uint64_t{entry.row_count} * args.shape->q_heads;
      if ((args.shape->options & KVSPAN_OPTION_LSE) == 0) {
        continue;
      }
      Bytes lse = read_memory(layer, queue, entry.lse.memory, entry.lse.offset, count * 4);
      for (uint64_t at = 0; at < lse.size() / 4; ++at) {
        store_float(lse, at, change(load_float(lse, at)));
        layer.ran();
      }
      write_memory(layer, queue, entry.lse.memory, entry.lse.offset, lse);
    }
  });
}

void lse_is_in_base_two(Layer& layer) {
  change_lse(layer, [](float lse) { return lse * 1.44269504F; });
}

void lse_has_the_wrong_sign(Layer& layer) {
  change_lse(layer, [](float lse) { return -lse; });
}

void leaves_the_last_row(Layer& layer) {
  edit_args(layer, kWriters, [](ArgsCopy& copy) {
    kvspan_entry_t& entry = copy.entries.back();
    const bool some = entry.row_count > 1;
    entry.row_count -= some ? 1u : 0u;
    return some;
  });
}

/// Rows are written in whole vectors, behind the last element too.
void writes_the_padding_of_rows(Layer& layer) {
  after_output(layer, kWriters, [&layer](auto* queue, const kvspan_attention_args_t& args) {
    const uint64_t size = kvspan_ref_row_bytes(args.shape->out_type, args.shape->head_size_v);
    for (uint32_t i = 0; i < args.entry_count; ++i) {
      const kvspan_entry_t& entry = args.entries[i];
      for (uint32_t row = 0; row < entry.row_count; ++row) {
        const uint32_t last = args.shape->q_heads - 1;
        const uint64_t behind = kvspan_ref_rows_offset(&entry.out, row, last) + size;
        if (entry.out.row_stride >= last * entry.out.head_stride + size + 4) {
          write_memory(layer, queue, entry.out.memory, behind, Bytes(4, 0));
          layer.ran();
        }
      }
    }
  });
}

void empty_attention_never_signals(Layer& layer) {
  layer.calls.run = [&layer, next = layer.calls.run](
                        auto* queue, const auto* args, const auto* submit, auto* error) {
    const bool nothing = args != nullptr && args->struct_size == sizeof *args &&
                         args->entry_count == 0 && submit != nullptr && submit->signal_count != 0;
    if (!nothing || queue == nullptr) {
      return next(queue, args, submit, error);
    }
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  };
}

constexpr Fault kFaults[] = {
    {"swaps_k_and_v_strides", swaps_k_and_v_strides},
    {"reads_the_first_kv_head", reads_the_first_kv_head},
    {"planes_wrap_at_four_gibibytes", planes_wrap_at_four_gibibytes},
    {"keeps_the_first_page_list", keeps_the_first_page_list},
    {"rounds_queries_to_half", rounds_queries_to_half},
    {"outputs_pass_through_half", outputs_pass_through_half},
    {"nothing_visible_gives_nan", nothing_visible_gives_nan},
    {"lse_is_in_base_two", lse_is_in_base_two},
    {"lse_has_the_wrong_sign", lse_has_the_wrong_sign},
    {"leaves_the_last_row", leaves_the_last_row},
    {"writes_the_padding_of_rows", writes_the_padding_of_rows},
    {"empty_attention_never_signals", empty_attention_never_signals},
};

}  // namespace

std::span<const Fault> attention_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
