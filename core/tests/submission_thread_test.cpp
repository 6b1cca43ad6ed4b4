// SPDX-License-Identifier: Apache-2.0
// A session behind a thread gives the bits of the same calls without one; what fails there is told
// to every later call of the step; a cancellation by a third thread leaves a session that works.
#include "kvspan/core/session/submission_thread.hpp"

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kTokens = 150;
constexpr std::uint32_t kChunk = 11;
constexpr std::uint64_t kPrompt = 110;

SessionOptions streaming_options(const Backend& backend, std::uint32_t page_tokens) {
  SessionOptions options = small_options();
  options.geometry.page_tokens = page_tokens;
  options.context_tokens = kTokens;
  options.prefill_rows_max = options.prefill_rows_fixed = kChunk;
  options.stream.group_pages = 1;
  options.arena_bytes = plan(plan_request(backend, options))->minimum_arena_bytes + 3000;
  return options;
}

// Rows and outputs of every layer, so that nobody waits inside a step.
class Buffers {
 public:
  Buffers(const Backend& backend, const SessionOptions& options)
      : layers_(options.geometry.layers) {
    for (const LayerGeometry& layer : layers_) {
      q_.push_back(make_buffer(backend, kChunk, layer.q_heads, layer.head_size_k));
      k_.push_back(make_buffer(backend, kChunk, layer.kv_heads, layer.head_size_k));
      v_.push_back(make_buffer(backend, kChunk, layer.kv_heads, layer.head_size_v));
      out_.push_back(make_buffer(backend, kChunk, layer.q_heads, layer.head_size_v));
    }
  }

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(layers_.size()); }

  void fill(std::uint64_t token, std::uint32_t rows) {
    for (std::uint32_t layer = 0; layer < count(); ++layer) {
      std::uint64_t what = 0;
      for (const Buffer* buffer : {&q_[layer], &k_[layer], &v_[layer]}) {
        const std::uint64_t size = std::uint64_t{buffer->heads} * buffer->head_size;
        for (std::uint64_t index = 0; index < rows * size; ++index) {
          buffer->data[index] = noise(what, layer, token + index / size, index % size, 7);
        }
        ++what;
      }
    }
  }

  [[nodiscard]] WriteRows write(std::uint32_t layer) const {
    return {k_[layer].rows(), v_[layer].rows(), {}};
  }

  [[nodiscard]] AttendRows attend(std::uint32_t layer) const {
    AttendRows rows;
    rows.q = q_[layer].rows();
    rows.out = out_[layer].rows();
    rows.scale = 0.3F;
    return rows;
  }

  void read(std::uint32_t rows, Outputs& outputs) const {
    for (const Buffer& out : out_) {
      outputs.emplace_back(out.data, out.row(rows));
    }
  }

 private:
  std::vector<LayerGeometry> layers_;
  std::vector<Buffer> q_;
  std::vector<Buffer> k_;
  std::vector<Buffer> v_;
  std::vector<Buffer> out_;
};

// The step at token `at`: its rows and phase.
std::uint32_t rows_at(std::uint64_t at) {
  return at < kPrompt ? kChunk : 1;
}

Phase phase_at(std::uint64_t at) {
  return at < kPrompt ? Phase::prefill : Phase::decode;
}

// A layer's calls: what is waited for, the point or the ticket of its outputs.
Result<kvspan_point_t> layer(Session& session, std::uint32_t layer, const Buffers& buffers) {
  auto written = session.write(layer, buffers.write(layer));
  return written ? session.attend(layer, buffers.attend(layer))
                 : Result<kvspan_point_t>(tl::unexpected(std::move(written).error()));
}

Result<SubmissionThread::Ticket> layer(SubmissionThread& thread,
                                       std::uint32_t layer,
                                       const Buffers& buffers) {
  return thread.layer(layer, buffers.write(layer), buffers.attend(layer));
}

// The same of a session and of one in a thread.
template <class Stepped>
Result<void> step(Stepped& stepped, Buffers& buffers, std::uint64_t at, Outputs& outputs) {
  const std::uint32_t rows = rows_at(at);
  buffers.fill(at, rows);
  const StepRows part{0, rows};
  if (auto begun = stepped.begin_step({&part, 1}, phase_at(at)); !begun) {
    return begun;
  }
  decltype(layer(stepped, 0, buffers)) last;
  for (std::uint32_t index = 0; index < buffers.count(); ++index) {
    last = layer(stepped, index, buffers);
    if (!last) {
      return tl::unexpected(std::move(last).error());
    }
  }
  if (auto waited = stepped.wait(*last); !waited) {
    return waited;
  }
  buffers.read(rows, outputs);
  return stepped.commit({&rows, 1});
}

template <class Stepped>
Outputs decoded(Stepped& stepped, Buffers& buffers) {
  Outputs outputs;
  for (std::uint64_t at = 0; at < kTokens; at += rows_at(at)) {
    const auto done = step(stepped, buffers, at, outputs);
    EXPECT_TRUE(done.has_value()) << at << ": " << done.error().message;
    if (!done) {
      break;
    }
  }
  return outputs;
}

Session open(const Backend& backend, const SessionOptions& options) {
  auto session = Session::open(backend, options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  EXPECT_TRUE(session->add_sequence().has_value());
  return std::move(*session);
}

class OnBackend : public testing::TestWithParam<const char*> {
 protected:
  StubRig rig_{StubRig::Plugin{GetParam()}};
  SessionOptions options_ =
      streaming_options(rig_.backend(), std::string(GetParam()) == "cpu" ? 32 : 8);
};

TEST_P(OnBackend, GivesTheBitsOfTheSameCalls) {
  Buffers buffers(rig_.backend(), options_);
  Session direct = open(rig_.backend(), options_);
  const Outputs expected = decoded(direct, buffers);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value()) << thread.error().message;
  const Outputs outputs = decoded(*thread, buffers);
  ASSERT_EQ(outputs.size(), expected.size());
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    ASSERT_EQ(outputs[index], expected[index]) << "output " << index;
  }
  EXPECT_GT(thread->session().counters().streamed_pages, 0U);
  EXPECT_EQ(thread->session().tokens(0).value(), direct.tokens(0).value());
}

TEST_P(OnBackend, AFailedLayerIsToldToEveryLaterCallOfItsStep) {
  Buffers buffers(rig_.backend(), options_);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value());
  Outputs outputs;
  ASSERT_TRUE(step(*thread, buffers, 0, outputs).has_value());
  const StepRows part{0, kChunk};
  ASSERT_TRUE(thread->begin_step({&part, 1}, Phase::prefill).has_value());
  const auto first = thread->layer(1, buffers.write(1), buffers.attend(1));  // 0 was left out
  ASSERT_TRUE(first.has_value());
  const auto point = thread->point(*first);
  ASSERT_FALSE(point.has_value());
  EXPECT_EQ(point.error().code, Errc::invalid_argument);
  EXPECT_EQ(thread->layer(0, buffers.write(0), buffers.attend(0)).error().message,
            point.error().message);
  EXPECT_EQ(thread->wait(*first).error().message, point.error().message);
  const std::uint32_t rows = kChunk;
  EXPECT_EQ(thread->commit({&rows, 1}).error().message, point.error().message);
  EXPECT_EQ(thread->session().tokens(0).value(), kChunk);
  EXPECT_TRUE(step(*thread, buffers, kChunk, outputs).has_value());
}

// An engine that asked for nothing of the step is told by the next one, once.
TEST_P(OnBackend, AFailureThatNobodyWasToldOfIsTheNextStepsAnswer) {
  Buffers buffers(rig_.backend(), options_);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value());
  const StepRows part{0, kChunk};
  ASSERT_TRUE(thread->begin_step({&part, 1}, Phase::prefill).has_value());
  ASSERT_TRUE(thread->layer(1, buffers.write(1), buffers.attend(1)).has_value());
  const auto told = thread->begin_step({&part, 1}, Phase::prefill);
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Errc::invalid_argument);
  Outputs outputs;
  EXPECT_TRUE(step(*thread, buffers, 0, outputs).has_value());
}

TEST_P(OnBackend, TicketsAreOfTheOpenStep) {
  Buffers buffers(rig_.backend(), options_);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value());
  EXPECT_EQ(thread->point(1).error().code, Errc::invalid_argument);
  Outputs outputs;
  ASSERT_TRUE(step(*thread, buffers, 0, outputs).has_value());
  const StepRows part{0, kChunk};
  ASSERT_TRUE(thread->begin_step({&part, 1}, Phase::prefill).has_value());
  EXPECT_EQ(thread->point(1).error().code, Errc::invalid_argument);
  const auto ticket = thread->layer(0, buffers.write(0), buffers.attend(0));
  ASSERT_TRUE(ticket.has_value());
  EXPECT_TRUE(thread->point(*ticket).has_value());
  EXPECT_EQ(thread->point(*ticket + 1).error().code, Errc::invalid_argument);
  const std::uint32_t all = kChunk;
  for (int refused = 0; refused < 9; ++refused) {  // layers are missing
    EXPECT_EQ(thread->commit({&all, 1}).error().code, Errc::invalid_argument);
  }
  EXPECT_NE(thread->point(*ticket)->fence, nullptr) << "calls take no point's place";
  EXPECT_EQ(thread->begin_step({&part, 1}, Phase::prefill).error().code, Errc::busy);
  EXPECT_TRUE(thread->point(*ticket).has_value()) << "the step is still open";
  thread->session().cancel_step();
}

// Whatever is under way when it ends: the rest of a step is submitted, and nothing leaks (the
// sanitizer's part).
TEST_P(OnBackend, EndsInTheMidstOfAStep) {
  Buffers buffers(rig_.backend(), options_);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value());
  Outputs outputs;
  ASSERT_TRUE(step(*thread, buffers, 0, outputs).has_value());
  const StepRows part{0, kChunk};
  ASSERT_TRUE(thread->begin_step({&part, 1}, Phase::prefill).has_value());
  for (std::uint32_t layer = 0; layer < buffers.count(); ++layer) {
    ASSERT_TRUE(thread->layer(layer, buffers.write(layer), buffers.attend(layer)).has_value());
  }
}

TEST_P(OnBackend, CancelledByAThirdThreadItGoesOn) {
  Buffers buffers(rig_.backend(), options_);
  Session direct = open(rig_.backend(), options_);
  const Outputs expected = decoded(direct, buffers);
  auto thread = SubmissionThread::start(open(rig_.backend(), options_));
  ASSERT_TRUE(thread.has_value());
  std::atomic<bool> stop{false};
  std::atomic<int> steps{0};
  std::thread canceller([&] {
    for (int seen = 0; !stop.load();) {
      if (steps.load() > seen + 2) {  // so that it gets on
        seen = steps.load();
        thread->cancel();
      }
      std::this_thread::yield();
    }
  });
  Outputs outputs;
  int cancelled = 0;
  for (std::uint64_t at = 0; at < kTokens;) {
    Outputs now;
    const auto done = step(*thread, buffers, at, now);
    ++steps;
    cancelled += done ? 0 : 1;
    ASSERT_TRUE(done || done.error().code == Errc::cancelled) << done.error().message;
    const std::uint64_t tokens = thread->session().tokens(0).value();
    if (tokens > at) {
      outputs.insert(outputs.end(), now.begin(), now.end());
    } else if (tokens < at) {  // earlier commits fell
      std::uint64_t kept = 0;
      for (std::uint64_t of = 0; of < tokens; of += rows_at(of)) {
        kept += buffers.count();
      }
      outputs.resize(kept);
    }
    at = tokens;
  }
  stop = true;
  canceller.join();
  EXPECT_GT(cancelled, 0);
  ASSERT_EQ(outputs.size(), expected.size());
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    ASSERT_EQ(outputs[index], expected[index]) << "output " << index;
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, OnBackend, testing::Values("stub", "cpu"));

}  // namespace
}  // namespace kvspan::test
