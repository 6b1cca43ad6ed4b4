// SPDX-License-Identifier: Apache-2.0
// The mutations of calls.hpp, one a few lines each.
#include "worker/calls.hpp"

#include "kvspan/sdk/loader.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

namespace kvspan::conformance {

namespace {

constexpr std::pair<const char*, Mutation> kMutationNames[] = {
    {"nudge_scale", Mutation::nudge_scale},
    {"swap_strides", Mutation::swap_strides},
    {"nudge_advance", Mutation::nudge_advance},
    {"reveal_dead", Mutation::reveal_dead},
    {"hide_token", Mutation::hide_token},
    {"skip_waits", Mutation::skip_waits},
    {"short_encode", Mutation::short_encode},
    {"long_copy", Mutation::long_copy},
    {"signal_early", Mutation::signal_early},
    {"swallow_errors", Mutation::swallow_errors},
    {"leak_memory", Mutation::leak_memory},
    {"stale_page", Mutation::stale_page},
    {"drop_span", Mutation::drop_span}};

/// Where the last of several spans begins, or the last page of a single one that lists its pages:
/// core hands in one span a call.
uint64_t seen_without_the_last(const std::vector<kvspan_span_t>& spans) {
  if (spans.empty()) {
    return UINT64_MAX;
  }
  const kvspan_span_t& last = spans.back();
  if (spans.size() > 1) {
    return last.first_token;
  }
  return last.k.page_list == nullptr
             ? UINT64_MAX
             : last.first_token + uint64_t{last.k.page_count - 1} * last.k.page_tokens;
}

}  // namespace

bool find_mutation(const std::string& name, Mutation& out) {
  out = Mutation::none;
  for (const auto& [known, mutation] : kMutationNames) {
    if (name == known) {
      out = mutation;
    }
  }
  return name.empty() || out != Mutation::none;
}

std::vector<std::string> mutation_names() {
  std::vector<std::string> names;
  for (const auto& [known, mutation] : kMutationNames) {
    names.emplace_back(known);
  }
  return names;
}

Tables tables_of(const sdk::Plugin& plugin) {
  return {plugin.device(),
          plugin.memory(),
          plugin.queue(),
          plugin.fence(),
          plugin.copy(),
          plugin.codec(),
          plugin.attention(),
          plugin.debug()};
}

template <class Work>
kvspan_result_t Calls::submitting(const kvspan_submit_t* submit, Work&& work) const {
  if (mutation_ == Mutation::swallow_errors) {
    static_cast<void>(work(submit));
    return KVSPAN_OK;
  }
  if (submit == nullptr ||
      (mutation_ != Mutation::skip_waits && mutation_ != Mutation::signal_early)) {
    return work(submit);
  }
  kvspan_submit_t changed = *submit;
  if (mutation_ == Mutation::skip_waits) {
    changed.wait_count = 0;
    return work(&changed);
  }
  changed.signal_count = 0;
  const kvspan_result_t result = work(&changed);
  for (uint32_t i = 0; result == KVSPAN_OK && i < submit->signal_count; ++i) {
    const kvspan_point_t& point = submit->signals[i];
    static_cast<void>(tables_.fence->signal(point.fence, point.value, nullptr));
  }
  return result;
}

template <class Work>
kvspan_result_t Calls::attending(const kvspan_attention_args_t* args, Work&& work) const {
  const bool entries = mutation_ == Mutation::swap_strides || mutation_ == Mutation::reveal_dead ||
                       mutation_ == Mutation::hide_token || mutation_ == Mutation::drop_span;
  if (args == nullptr || (!entries && mutation_ != Mutation::nudge_scale)) {
    return work(args);
  }
  kvspan_attention_args_t changed = *args;
  if (mutation_ == Mutation::nudge_scale) {
    changed.scale *= 1.0005F;
    return work(&changed);
  }
  std::vector<kvspan_entry_t> copies(args->entries, args->entries + args->entry_count);
  std::vector<std::vector<kvspan_span_t>> spans;
  std::vector<std::vector<uint64_t>> ends;
  for (kvspan_entry_t& entry : copies) {
    spans.emplace_back(entry.spans, entry.spans + entry.span_count);
    ends.emplace_back(entry.visible_end, entry.visible_end + entry.row_count);
    if (mutation_ == Mutation::swap_strides) {
      for (kvspan_span_t& span : spans.back()) {
        std::swap(span.k.head_stride, span.v.head_stride);
        std::swap(span.k.row_stride, span.v.row_stride);
      }
    } else if (mutation_ == Mutation::drop_span) {
      const uint64_t most = seen_without_the_last(spans.back());
      for (uint64_t& end : ends.back()) {
        end = std::min(end, most);
      }
    } else if (!ends.back().empty()) {
      uint64_t& end = ends.back().back();
      end = mutation_ == Mutation::reveal_dead ? end + 1 : (end == 0 ? 0 : end - 1);
      if (end > entry.token_total) {
        entry.token_total = end;
        if (!spans.back().empty()) {
          spans.back().back().token_count += 1;
        }
      }
    }
    entry.spans = spans.back().data();
    entry.visible_end = ends.back().data();
  }
  changed.entries = copies.data();
  return work(&changed);
}

kvspan_result_t Calls::copy(kvspan_queue_t* queue,
                            const kvspan_segment_t* segments,
                            uint32_t count,
                            const kvspan_submit_t* submit,
                            kvspan_error_t* error) const {
  std::vector<kvspan_segment_t> other;
  if (mutation_ == Mutation::long_copy && segments != nullptr && count != 0) {
    other.assign(segments, segments + count);
    other.back().bytes += other.back().bytes != 0 ? 1u : 0u;
    segments = other.data();
  }
  if (mutation_ == Mutation::stale_page && segments != nullptr) {
    const std::lock_guard<std::mutex> lock(targets_->mutex);
    std::copy_if(segments, segments + count, std::back_inserter(other), [this](const auto& one) {
      return targets_->known.insert({one.target, one.target_offset}).second;
    });
    segments = other.data();
    count = static_cast<uint32_t>(other.size());
  }
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.copy->copy(queue, segments, count, changed, error);
  });
}

kvspan_result_t Calls::fill(kvspan_queue_t* queue,
                            const kvspan_range_t* range,
                            uint64_t pattern,
                            uint32_t pattern_bytes,
                            const kvspan_submit_t* submit,
                            kvspan_error_t* error) const {
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.copy->fill(queue, range, pattern, pattern_bytes, changed, error);
  });
}

kvspan_result_t Calls::encode(kvspan_queue_t* queue,
                              const kvspan_codec_item_t* items,
                              uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) const {
  std::vector<kvspan_codec_item_t> shorter;
  if (mutation_ == Mutation::short_encode && items != nullptr && count != 0) {
    shorter.assign(items, items + count);
    shorter.back().row_count -= shorter.back().row_count != 0 ? 1u : 0u;
    items = shorter.data();
  }
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.codec->encode(queue, items, count, changed, error);
  });
}

kvspan_result_t Calls::decode(kvspan_queue_t* queue,
                              const kvspan_codec_item_t* items,
                              uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) const {
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.codec->decode(queue, items, count, changed, error);
  });
}

kvspan_result_t Calls::run(kvspan_queue_t* queue,
                           const kvspan_attention_args_t* args,
                           const kvspan_submit_t* submit,
                           kvspan_error_t* error) const {
  return attending(args, [&](const kvspan_attention_args_t* changed_args) {
    return submitting(submit, [&](const kvspan_submit_t* changed) {
      return tables_.attention->run(queue, changed_args, changed, error);
    });
  });
}

kvspan_result_t Calls::advance(kvspan_queue_t* queue,
                               const kvspan_attention_args_t* args,
                               const kvspan_advance_item_t* items,
                               uint32_t count,
                               const kvspan_submit_t* submit,
                               kvspan_error_t* error) const {
  return attending(args, [&](const kvspan_attention_args_t* changed_args) {
    kvspan_attention_args_t nudged = {};
    if (mutation_ == Mutation::nudge_advance && changed_args != nullptr) {
      nudged = *changed_args;
      nudged.scale = std::nextafter(nudged.scale, 2.0F * nudged.scale);
      changed_args = &nudged;
    }
    return submitting(submit, [&](const kvspan_submit_t* changed) {
      return tables_.attention->advance(queue, changed_args, items, count, changed, error);
    });
  });
}

kvspan_result_t Calls::fold(kvspan_queue_t* queue,
                            const kvspan_attention_args_t* args,
                            const kvspan_fold_item_t* items,
                            uint32_t count,
                            const kvspan_submit_t* submit,
                            kvspan_error_t* error) const {
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.attention->fold(queue, args, items, count, changed, error);
  });
}

kvspan_result_t Calls::finish(kvspan_queue_t* queue,
                              const kvspan_attention_args_t* args,
                              const kvspan_state_t* accumulators,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) const {
  return submitting(submit, [&](const kvspan_submit_t* changed) {
    return tables_.attention->finish(queue, args, accumulators, changed, error);
  });
}

kvspan_result_t Calls::release(kvspan_memory_t* memory, kvspan_error_t* error) const {
  return mutation_ == Mutation::leak_memory ? KVSPAN_OK : tables_.memory->release(memory, error);
}

}  // namespace kvspan::conformance
