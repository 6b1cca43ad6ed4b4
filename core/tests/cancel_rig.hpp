// SPDX-License-Identifier: Apache-2.0
// A plugin whose submits are seen before it gets them, and which may be made deaf to cancel words,
// as a backend of KVSPAN_CANCEL_NONE is; and a step whose rows nobody wants, call by call. One rig
// at a time: slots have no place for whose they are. Read first: stub_rig.hpp, engine_rig.hpp.
#pragma once

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace kvspan::test {

class CancelRig {
 public:
  explicit CancelRig(const std::map<std::string, std::string>& options) : rig_(options) { wrap(); }

  explicit CancelRig(const StubRig::Plugin& plugin) : rig_(plugin) { wrap(); }

  CancelRig(const CancelRig&) = delete;
  CancelRig& operator=(const CancelRig&) = delete;
  CancelRig(CancelRig&&) = delete;
  CancelRig& operator=(CancelRig&&) = delete;

  ~CancelRig() { state().seen = {}; }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  // Whether the plugin is given no cancel word from now on.
  void set_deaf(bool deaf) { state().deaf = deaf; }

  // Called with every submit from now on that has something to do: a drain's empty copy has not.
  void on_submit(std::function<void()> seen) { state().seen = std::move(seen); }

 private:
  void wrap() {
    state().inner = rig_.backend().tables();
    state().deaf = false;
    state().seen = {};
    copy_ = *state().inner.copy;
    copy_.copy = copy;
    codec_ = *state().inner.codec;
    codec_.encode = encode;
    attention_ = *state().inner.attention;
    attention_.run = run;
    attention_.advance = advance;
    attention_.fold = fold;
    attention_.finish = finish;
    BackendTables tables = state().inner;
    tables.copy = &copy_;
    tables.codec = &codec_;
    tables.attention = &attention_;
    backend_.emplace(tables, rig_.backend().device(), rig_.backend().info());
  }

  // What the plugin is given in place of `submit`.
  static kvspan_submit_t heard(const kvspan_submit_t& submit) {
    if (state().seen) {
      state().seen();
    }
    kvspan_submit_t out = submit;
    out.cancel_memory = state().deaf ? nullptr : submit.cancel_memory;
    return out;
  }

  static kvspan_result_t copy(kvspan_queue_t* queue,
                              const kvspan_segment_t* segments,
                              std::uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) noexcept {
    if (count == 0) {
      return state().inner.copy->copy(queue, segments, count, submit, error);
    }
    const kvspan_submit_t given = heard(*submit);
    return state().inner.copy->copy(queue, segments, count, &given, error);
  }

  static kvspan_result_t encode(kvspan_queue_t* queue,
                                const kvspan_codec_item_t* items,
                                std::uint32_t count,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error) noexcept {
    const kvspan_submit_t given = heard(*submit);
    return state().inner.codec->encode(queue, items, count, &given, error);
  }

  static kvspan_result_t run(kvspan_queue_t* queue,
                             const kvspan_attention_args_t* args,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) noexcept {
    const kvspan_submit_t given = heard(*submit);
    return state().inner.attention->run(queue, args, &given, error);
  }

  static kvspan_result_t advance(kvspan_queue_t* queue,
                                 const kvspan_attention_args_t* args,
                                 const kvspan_advance_item_t* items,
                                 std::uint32_t count,
                                 const kvspan_submit_t* submit,
                                 kvspan_error_t* error) noexcept {
    const kvspan_submit_t given = heard(*submit);
    return state().inner.attention->advance(queue, args, items, count, &given, error);
  }

  static kvspan_result_t fold(kvspan_queue_t* queue,
                              const kvspan_attention_args_t* args,
                              const kvspan_fold_item_t* items,
                              std::uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) noexcept {
    const kvspan_submit_t given = heard(*submit);
    return state().inner.attention->fold(queue, args, items, count, &given, error);
  }

  static kvspan_result_t finish(kvspan_queue_t* queue,
                                const kvspan_attention_args_t* args,
                                const kvspan_state_t* accumulators,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error) noexcept {
    const kvspan_submit_t given = heard(*submit);
    return state().inner.attention->finish(queue, args, accumulators, &given, error);
  }

  // Of the one rig that there is: slots have no place for whose they are.
  struct State {
    BackendTables inner{};
    std::function<void()> seen;
    bool deaf = false;
  };

  static State& state() {
    static State all;
    return all;
  }

  StubRig rig_;
  kvspan_copy_table_t copy_{};
  kvspan_codec_table_t codec_{};
  kvspan_attention_table_t attention_{};
  std::optional<Backend> backend_;
};

// Begin, then write, attend and wait of two layers, then commit.
inline constexpr int kCallsOfAStep = 8;

// A prefill step of small_options() whose rows hold nothing that anybody compares. The session
// outlives it.
class AstrayStep {
 public:
  AstrayStep(const Backend& backend, Session& session, StepRows part)
      : session_(session), part_(part), rows_(make_buffer(backend, part.rows, 4, 32)) {}

  AstrayStep(const AstrayStep&) = delete;
  AstrayStep& operator=(const AstrayStep&) = delete;
  AstrayStep(AstrayStep&&) = delete;
  AstrayStep& operator=(AstrayStep&&) = delete;

  // Nothing that is in flight names the rows any more.
  ~AstrayStep() { session_.cancel_step(); }

  // The step's call `at`, after those before it.
  Result<void> call(int at) {
    if (at == 0) {
      return session_.begin_step({&part_, 1}, Phase::prefill);
    }
    if (at == kCallsOfAStep - 1) {
      return session_.commit({&part_.rows, 1});
    }
    const auto layer = static_cast<std::uint32_t>((at - 1) / 3);
    if (at % 3 == 1) {
      WriteRows write;
      write.k = write.v = rows_.rows();
      return session_.write(layer, write);
    }
    if (at % 3 == 0) {
      return session_.wait(point_);
    }
    AttendRows attend;
    attend.q = attend.out = rows_.rows();
    attend.scale = 1.0F;
    const auto point = session_.attend(layer, attend);
    point_ = point.value_or(kvspan_point_t{});
    return point ? Result<void>() : tl::unexpected(point.error());
  }

  // Of the last attend.
  [[nodiscard]] kvspan_point_t point() const { return point_; }

 private:
  Session& session_;
  StepRows part_;
  Buffer rows_;
  kvspan_point_t point_{};
};

}  // namespace kvspan::test
