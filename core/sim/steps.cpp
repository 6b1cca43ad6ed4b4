// SPDX-License-Identifier: Apache-2.0
// Steps: begin, write and attend layer after layer, read the outputs, commit.
#include "runner.hpp"
#include "windows.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::sim {

// The session's longest chunk, or less where the context ends.
void Runner::step(const Op& op, bool give_up) {
  StepStyle style;
  style.phase = op.how % 2 == 0 ? Phase::decode : Phase::prefill;
  style.wait_each_layer = op.how / 2 % 3 == 0;
  style.wait_later = op.how / 2 % 3 == 1;
  const std::uint32_t layers = static_cast<std::uint32_t>(options_.geometry.layers.size());
  if (give_up) {
    style.give_up = 1 + op.extra % (2 * layers);
  } else {
    style.rejected = op.extra % 4 == 0 ? op.extra / 4 % 4 : 0;
  }
  const Plan& plan = session_->plan();
  const std::uint32_t most = style.phase == Phase::decode ? plan.decode_rows : plan.prefill_rows;
  std::vector<std::pair<Life*, std::uint32_t>> parts;
  for (std::size_t index = 0; index < lives_.size(); ++index) {
    const bool wanted = op.who % 4 == 0 || (op.who >> (2 + index) & 1U) != 0;
    if (lives_[index] == nullptr || !wanted) {
      continue;
    }
    const std::uint64_t room = options_.context_tokens - lives_[index]->tokens();
    const auto rows =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + (op.rows + index) % most, room));
    if (rows != 0) {
      parts.emplace_back(lives_[index].get(), rows);
    }
  }
  if ((op.how & 64U) != 0) {
    std::reverse(parts.begin(), parts.end());
  }
  if (!parts.empty()) {
    (void)do_step(parts, style);
  }
}

// Everything that every sequence has is read once more; nothing is kept. One at a time where the
// context has no room for another row: those are cut by a token first.
void Runner::verify() {
  for (std::size_t index = 0; index < lives_.size() && !stop(); ++index) {
    Life* const life = lives_[index].get();
    if (life == nullptr) {
      continue;
    }
    if (life->tokens() == options_.context_tokens && life->cut_limit() == options_.context_tokens) {
      continue;  // it ends a page, and windows have left the page before
    }
    if (life->tokens() == options_.context_tokens) {
      if (called("truncate", Strict::no, [&] {
            return session_->truncate(life->sequence(), life->tokens() - 1);
          })) {
        life->truncate(life->tokens() - 1);
      }
    }
    StepStyle style;
    style.rejected = UINT32_MAX;
    (void)do_step({{life, 1}}, style);
  }
}

std::optional<kvspan_point_t> Runner::fill(std::uint32_t layer, Set& set) {
  set.rows->spoil_outputs(layer);
  const kvspan_range_t inputs = set.rows->inputs(layer);
  if (writes_.queue == nullptr) {
    device_.host_access(inputs.memory, inputs.offset, inputs.offset + inputs.bytes, true);
    set.rows->fill(layer, set.parts);
    return std::nullopt;
  }
  // The engine's own kernel will have written them when the point is reached.
  Call call;
  call.kind = CallKind::engine;
  call.engine_writes.push_back(inputs);
  call.engine_work = [rows = set.rows.get(), layer, parts = set.parts] {
    rows->fill(layer, parts);
  };
  submit_to(writes_, std::move(call));
  return kvspan_point_t{writes_.fence, writes_.value};
}

void Runner::consume(std::uint32_t layer, Set& set, const kvspan_point_t& point) {
  if (reads_.queue == nullptr) {
    return;
  }
  Call call;
  call.kind = CallKind::engine;
  call.waits.push_back(point);
  call.engine_reads.push_back(set.rows->outputs(layer));
  call.engine_work = [rows = set.rows.get(), layer, parts = set.parts] {
    rows->check(layer, parts);
  };
  submit_to(reads_, std::move(call));
  set.consumed = true;
}

// Work behind a point that fell settles as failed, and its timeline is of no use any more.
void Runner::consumed(Set& set) {
  if (!set.consumed || device_.lost()) {
    return;
  }
  set.consumed = false;
  device_.empty(*queue_of(reads_.queue));
  if (fence_of(reads_.fence)->failed != KVSPAN_OK) {
    drop_line(reads_);
    make_line(reads_);
  }
}

// Outputs that nobody read yet; false: they did not come.
bool Runner::read(Set& set) {
  while (!set.open.empty()) {
    const Open open = set.open.front();
    const std::uint64_t failures = tally_.failures;
    const bool reached = wait(open.point);
    if (tally_.failures != failures || stop()) {
      return false;
    }
    if (reached) {
      const kvspan_range_t range = set.rows->outputs(open.layer);
      device_.host_access(range.memory, range.offset, range.offset + range.bytes, false);
      set.rows->check(open.layer, set.parts);
    }
    set.open.erase(set.open.begin());
  }
  return true;
}

bool Runner::layer_of(std::uint32_t layer, Set& set, const StepStyle& style, std::uint32_t* calls) {
  const auto gives_up = [&] {
    if (style.give_up != 0 && ++*calls == style.give_up) {
      session_->cancel_step();
      for (Set& other : sets_) {
        other.open.clear();  // drained: but their outputs are not asked for any more
      }
      return true;
    }
    return stop();
  };
  const std::optional<kvspan_point_t> ready = fill(layer, set);
  const std::span<const kvspan_point_t> points =
      ready ? std::span<const kvspan_point_t>(&*ready, 1) : std::span<const kvspan_point_t>();
  WriteRows write;
  write.k = set.rows->k(layer);
  write.v = set.rows->v(layer);
  write.ready = points;
  if (!called("write", Strict::cancel, [&] { return session_->write(layer, write); }) ||
      gives_up()) {
    return false;
  }
  AttendRows attend;
  attend.q = set.rows->q(layer);
  attend.out = set.rows->out(layer);
  attend.scale = 1.0F / static_cast<float>(options_.geometry.layers[layer].head_size_k);
  attend.ready = points;
  const auto point =
      called("attend", Strict::cancel, [&] { return session_->attend(layer, attend); });
  if (!point) {
    return false;
  }
  set.open.push_back({layer, *point});
  old_points_.push_back(*point);
  check_slots(session_->counters());
  if (style.wait_later) {
    consume(layer, set, *point);
  }
  return !gives_up() && (!style.wait_each_layer || read(set));
}

bool Runner::do_step(const std::vector<std::pair<Life*, std::uint32_t>>& parts,
                     const StepStyle& style) {
  Set& set = sets_[next_set_];
  next_set_ = (next_set_ + 1) % sets_.size();
  if (!read(set)) {
    return false;
  }
  consumed(set);
  std::vector<StepRows> rows;
  rows.reserve(parts.size());
  for (const auto& [life, count] : parts) {
    rows.push_back({life->sequence(), count});
  }
  (void)device_.take_downloads();
  const Counters before = session_->counters();
  if (!called("begin_step", Strict::yes, [&] { return session_->begin_step(rows, style.phase); })) {
    return false;
  }
  check_begun();
  const std::uint32_t generation = ++generation_;
  set.parts.clear();
  std::uint32_t first_row = 0;
  for (const auto& [life, count] : parts) {
    auto all = life->with(count, generation);
    const std::uint64_t total = life->tokens() + count;
    const std::uint32_t number = device_.expect({life->stream(), all, total});
    set.parts.push_back(
        {life->stream(), life->tokens(), first_row, count, generation, number, std::move(all)});
    first_row += count;
  }
  std::uint32_t calls = 0;
  for (std::uint32_t layer = 0; layer < options_.geometry.layers.size(); ++layer) {
    if (stop() || !layer_of(layer, set, style, &calls)) {
      return false;
    }
  }
  if (!style.wait_later && !read(set)) {
    return false;
  }
  commit(parts, style, generation, before);
  return !stop();
}

void Runner::commit(const std::vector<std::pair<Life*, std::uint32_t>>& parts,
                    const StepStyle& style,
                    std::uint32_t generation,
                    const Counters& before) {
  std::vector<std::uint32_t> accepted;
  accepted.reserve(parts.size());
  for (const auto& [life, count] : parts) {
    accepted.push_back(count - std::min(count, style.rejected));
  }
  if (!called("commit", Strict::cancel, [&] { return session_->commit(accepted); })) {
    return;
  }
  ++tally_.steps;
  const std::vector<std::shared_ptr<Ending>> copies = device_.take_downloads();
  check_counted(parts, before);
  for (std::size_t index = 0; index < parts.size(); ++index) {
    Life& life = *parts[index].first;
    life.commit(accepted[index], generation, copies);
    life.limit_cuts(cut_limit(options_, life.tokens()));
  }
}

// The session's counters against the pages that the step's rows see.
void Runner::check_counted(const std::vector<std::pair<Life*, std::uint32_t>>& parts,
                           const Counters& before) {
  const std::uint64_t page = options_.geometry.page_tokens;
  std::uint64_t seen = 0;
  std::uint64_t streamed = 0;
  for (std::size_t layer = 0; layer < options_.geometry.layers.size(); ++layer) {
    const std::uint64_t window = options_.geometry.layers[layer].window_tokens;
    const Plan& plan = session_->plan();
    const bool whole = rolls(options_, plan, layer, std::max(plan.prefill_rows, plan.decode_rows));
    for (const auto& [life, count] : parts) {
      const std::uint64_t first = life->tokens();
      const std::uint64_t begin =
          window == 0 || first + 1 <= window ? 0 : (first + 1 - window) / page;
      const std::uint64_t end = (first + count + page - 1) / page;
      seen += end - begin;
      const std::uint64_t complete = first / page;
      const std::uint64_t from =
          whole ? complete : std::max<std::uint64_t>(begin, plan.resident_pages[layer]);
      streamed += complete > from ? complete - from : 0;
    }
  }
  const Counters now = session_->counters();
  tally_.streamed_pages += streamed;
  if (now.attended_pages - before.attended_pages != seen ||
      now.streamed_pages - before.streamed_pages != streamed) {
    trouble_.report("pages",
                    "the step sees " + std::to_string(seen) + " pages, " +
                        std::to_string(streamed) + " of them streamed, and counted " +
                        std::to_string(now.attended_pages - before.attended_pages) + " and " +
                        std::to_string(now.streamed_pages - before.streamed_pages));
  }
}

}  // namespace kvspan::sim
