// SPDX-License-Identifier: Apache-2.0
// Attention arguments copied to be changed, and outputs changed after they were written.
#include "kvspan/sdk/reference/span.h"

#include "edits.hpp"

#include <cstring>

namespace kvspan::faults {

ArgsCopy::ArgsCopy(const kvspan_attention_args_t& from)
    : args(from), shape(*from.shape), entries(from.entries, from.entries + from.entry_count) {
  for (const kvspan_entry_t& entry : entries) {
    Arrays& own = arrays.emplace_back();
    const auto take = [&](auto& target, const auto* source, uint32_t count) {
      if (source != nullptr) {
        target.assign(source, source + count);
      }
    };
    take(own.spans, entry.spans, entry.span_count);
    take(own.visible_end, entry.visible_end, entry.row_count);
    take(own.window_begin, entry.window_begin, entry.row_count);
    take(own.suffix_mask, entry.suffix_mask, entry.row_count);
    take(own.positions, entry.positions, entry.row_count);
  }
  connect();
}

void ArgsCopy::connect() {
  const auto give = [](const auto& own) { return own.empty() ? nullptr : own.data(); };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].spans = give(arrays[i].spans);
    entries[i].span_count = static_cast<uint32_t>(arrays[i].spans.size());
    entries[i].visible_end = give(arrays[i].visible_end);
    entries[i].window_begin = give(arrays[i].window_begin);
    entries[i].suffix_mask = give(arrays[i].suffix_mask);
    entries[i].positions = give(arrays[i].positions);
  }
  args.shape = &shape;
  args.entries = entries.data();
}

bool readable(const kvspan_attention_args_t* args) {
  if (args == nullptr || args->struct_size != sizeof *args || args->shape == nullptr ||
      args->shape->struct_size != sizeof *args->shape ||
      args->entry_count > args->shape->entries_max || args->entry_count == 0 ||
      args->entries == nullptr) {
    return false;
  }
  for (uint32_t i = 0; i < args->entry_count; ++i) {
    const kvspan_entry_t& entry = args->entries[i];
    if (entry.row_count > args->shape->rows_max || entry.span_count > args->shape->spans_max ||
        (entry.spans == nullptr && entry.span_count != 0) || entry.visible_end == nullptr) {
      return false;
    }
  }
  return true;
}

void edit_args(Layer& layer, uint32_t slots, const ArgsEdit& edit) {
  const auto changed = [&layer, edit](const kvspan_attention_args_t* args, const auto& call) {
    if (!readable(args)) {
      return call(args);
    }
    ArgsCopy copy(*args);
    if (!edit(copy)) {
      return call(args);
    }
    copy.connect();
    const kvspan_result_t result = call(&copy.args);
    if (result == KVSPAN_E_INVALID_ARG) {
      return call(args);
    }
    layer.ran();
    return result;
  };
  Calls& calls = layer.calls;
  if ((slots & kRun) != 0) {
    calls.run = [changed, next = calls.run](auto* queue, auto* args, auto* submit, auto* error) {
      return changed(args, [&](const auto* own) { return next(queue, own, submit, error); });
    };
  }
  if ((slots & kAdvance) != 0) {
    calls.advance =
        [changed, next = calls.advance](
            auto* queue, auto* args, auto* items, auto count, auto* submit, auto* error) {
          return changed(
              args, [&](const auto* own) { return next(queue, own, items, count, submit, error); });
        };
  }
  if ((slots & kFold) != 0) {
    calls.fold = [changed, next = calls.fold](
                     auto* queue, auto* args, auto* items, auto count, auto* submit, auto* error) {
      return changed(
          args, [&](const auto* own) { return next(queue, own, items, count, submit, error); });
    };
  }
  if ((slots & kFinish) != 0) {
    calls.finish = [changed, next = calls.finish](
                       auto* queue, auto* args, auto* states, auto* submit, auto* error) {
      return changed(args,
                     [&](const auto* own) { return next(queue, own, states, submit, error); });
    };
  }
}

void after_output(Layer& layer, uint32_t slots, const AfterOutput& after) {
  Calls& calls = layer.calls;
  const auto spoilt = [&layer, after](
                          auto* queue, auto* args, auto* submit, auto* error, const Go& go) {
    return readable(args) ? spoil(layer, queue, submit, error, go, [&] { after(queue, *args); })
                          : go(submit, error);
  };
  if ((slots & kRun) != 0) {
    calls.run = [spoilt, next = calls.run](auto* queue, auto* args, auto* submit, auto* error) {
      return spoilt(queue, args, submit, error, [&](const auto* own, auto* out) {
        return next(queue, args, own, out);
      });
    };
  }
  if ((slots & kFinish) != 0) {
    calls.finish = [spoilt, next = calls.finish](
                       auto* queue, auto* args, auto* states, auto* submit, auto* error) {
      return spoilt(queue, args, submit, error, [&](const auto* own, auto* out) {
        return next(queue, args, states, own, out);
      });
    };
  }
}

void change_rows(
    Layer& layer,
    kvspan_queue_t* queue,
    const kvspan_attention_args_t& args,
    const std::function<bool(const kvspan_entry_t&, uint32_t, uint32_t, float*, uint32_t)>& see) {
  const uint32_t size = args.shape->head_size_v;
  if (args.shape->out_type != KVSPAN_TYPE_F32) {
    return;
  }
  for (uint32_t i = 0; i < args.entry_count; ++i) {
    const kvspan_entry_t& entry = args.entries[i];
    for (uint32_t row = 0; row < entry.row_count; ++row) {
      for (uint32_t head = 0; head < args.shape->q_heads; ++head) {
        const uint64_t offset = kvspan_ref_rows_offset(&entry.out, row, head);
        Bytes bytes = read_memory(layer, queue, entry.out.memory, offset, uint64_t{size} * 4);
        if (bytes.empty()) {
          return;
        }
        std::vector<float> values(size);
        std::memcpy(values.data(), bytes.data(), bytes.size());
        if (see(entry, row, head, values.data(), size)) {
          std::memcpy(bytes.data(), values.data(), bytes.size());
          write_memory(layer, queue, entry.out.memory, offset, bytes);
        }
      }
    }
  }
}

uint64_t u_bytes(const kvspan_attention_args_t& args, uint32_t entry) {
  return uint64_t{args.entries[entry].row_count} * args.shape->q_heads * args.shape->head_size_v *
         4;
}

uint64_t ml_bytes(const kvspan_attention_args_t& args, uint32_t entry) {
  return uint64_t{args.entries[entry].row_count} * args.shape->q_heads * 2 * 4;
}

}  // namespace kvspan::faults
