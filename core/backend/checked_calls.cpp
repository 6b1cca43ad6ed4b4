// SPDX-License-Identifier: Apache-2.0
// Check, then call. Read next: kvspan/sdk/validate.hpp.
#include "checked_calls.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

namespace {

template <class T>
sdk::List<T> list_of(std::span<const T> items) {
  return {items.data(), static_cast<std::uint32_t>(items.size())};
}

}  // namespace

CheckedCalls::CheckedCalls(const Backend& backend,
                           const kvspan_copy_limits_t& limits,
                           MemoryBytes memory_bytes,
                           Checks checks)
    : tables_(backend.tables()),
      memory_alignment_(std::max<std::uint64_t>(backend.info().memory_alignment, 1)),
      limits_(limits),
      memory_bytes_(std::move(memory_bytes)),
      checks_(checks) {}

auto CheckedCalls::context() const {
  sdk::Context made([this](kvspan_memory_t* memory) { return memory_bytes_(memory); });
  made.memory_alignment = memory_alignment_;
  made.limits = &limits_;
  return made;
}

kvspan_result_t CheckedCalls::copy(kvspan_queue_t* queue,
                                   std::span<const kvspan_segment_t> segments,
                                   const kvspan_submit_t* submit,
                                   kvspan_error_t* error) const {
  const auto list = list_of(segments);
  if (checks_ == Checks::calls) {
    if (const kvspan_result_t bad = sdk::check_segments(list, context(), error, "core.copy")) {
      return bad;
    }
  }
  return tables_.copy->copy(queue, list.data, list.count, submit, error);
}

kvspan_result_t CheckedCalls::encode(kvspan_queue_t* queue,
                                     std::span<const kvspan_codec_item_t> items,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) const {
  const auto list = list_of(items);
  if (checks_ == Checks::calls) {
    if (const kvspan_result_t bad = sdk::check_codec_items(list, context(), error, "core.encode")) {
      return bad;
    }
  }
  return tables_.codec->encode(queue, list.data, list.count, submit, error);
}

kvspan_result_t CheckedCalls::run(kvspan_queue_t* queue,
                                  const kvspan_attention_args_t& args,
                                  const kvspan_attention_caps_t& caps,
                                  const kvspan_submit_t* submit,
                                  kvspan_error_t* error) const {
  if (checks_ == Checks::calls) {
    auto checking = context();
    checking.caps = &caps;
    if (const kvspan_result_t bad = sdk::check_run(&args, checking, error, "core.run")) {
      return bad;
    }
  }
  return tables_.attention->run(queue, &args, submit, error);
}

template <class CheckItems>
kvspan_result_t CheckedCalls::check_attention(sdk::AttentionCall call,
                                              const kvspan_attention_args_t& args,
                                              const kvspan_attention_caps_t& caps,
                                              kvspan_error_t* error,
                                              const char* where,
                                              const CheckItems& check_items) const {
  if (checks_ == Checks::none) {
    return KVSPAN_OK;
  }
  auto checking = context();
  checking.caps = &caps;
  const kvspan_result_t bad = sdk::check_attention_args(&args, call, checking, error, where);
  return bad != KVSPAN_OK ? bad : check_items(checking);
}

kvspan_result_t CheckedCalls::advance(kvspan_queue_t* queue,
                                      const kvspan_attention_args_t& args,
                                      const kvspan_attention_caps_t& caps,
                                      std::span<const kvspan_advance_item_t> items,
                                      const kvspan_submit_t* submit,
                                      kvspan_error_t* error) const {
  constexpr const char* kWhere = "core.advance";
  const auto list = list_of(items);
  const kvspan_result_t bad = check_attention(
      sdk::AttentionCall::advance, args, caps, error, kWhere, [&](const auto& checking) {
        return sdk::check_advance_items(list, args, checking, error, kWhere);
      });
  return bad != KVSPAN_OK
             ? bad
             : tables_.attention->advance(queue, &args, list.data, list.count, submit, error);
}

kvspan_result_t CheckedCalls::fold(kvspan_queue_t* queue,
                                   const kvspan_attention_args_t& args,
                                   const kvspan_attention_caps_t& caps,
                                   std::span<const kvspan_fold_item_t> items,
                                   const kvspan_submit_t* submit,
                                   kvspan_error_t* error) const {
  constexpr const char* kWhere = "core.fold";
  const auto list = list_of(items);
  const kvspan_result_t bad = check_attention(
      sdk::AttentionCall::fold, args, caps, error, kWhere, [&](const auto& checking) {
        return sdk::check_fold_items(list, args, checking, error, kWhere);
      });
  return bad != KVSPAN_OK
             ? bad
             : tables_.attention->fold(queue, &args, list.data, list.count, submit, error);
}

kvspan_result_t CheckedCalls::finish(kvspan_queue_t* queue,
                                     const kvspan_attention_args_t& args,
                                     const kvspan_attention_caps_t& caps,
                                     const kvspan_state_t* accumulators,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) const {
  constexpr const char* kWhere = "core.finish";
  const kvspan_result_t bad = check_attention(
      sdk::AttentionCall::finish, args, caps, error, kWhere, [&](const auto& checking) {
        return sdk::check_finish(accumulators, args, checking, error, kWhere);
      });
  return bad != KVSPAN_OK ? bad
                          : tables_.attention->finish(queue, &args, accumulators, submit, error);
}

}  // namespace kvspan
