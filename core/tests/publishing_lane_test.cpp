// SPDX-License-Identifier: Apache-2.0
// Which queue sends new rows down: the one that encoded them where a decode step streams beside
// them, else one of their own.
#include "decode_options.hpp"
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace kvspan::test {
namespace {

// A plugin of which the queues are seen that rows are encoded on, and that they go down on.
class QueueRig : public WatchedRig {
 public:
  QueueRig() : WatchedRig("stub", [](std::span<const kvspan_segment_t>) {}) {
    down().clear();
    encoded().clear();
    copies().copy = copy;
    attention().run = run;
    attention().finish = finish;
  }

  [[nodiscard]] static std::size_t downs() { return down().size(); }

  // Of all copies down since the last forget(): on a queue that attends.
  [[nodiscard]] static bool beside_attention() { return down() == encoded(); }

  static void forget() {
    down().clear();
    encoded().clear();
  }

 private:
  static kvspan_result_t copy(kvspan_queue_t* queue,
                              const kvspan_segment_t* segments,
                              std::uint32_t count,
                              const kvspan_submit_t* submit,
                              kvspan_error_t* error) noexcept {
    if (count != 0 && segments[0].source == arena()) {
      down().insert(queue);
    }
    return inner().copy->copy(queue, segments, count, submit, error);
  }

  static kvspan_result_t run(kvspan_queue_t* queue,
                             const kvspan_attention_args_t* args,
                             const kvspan_submit_t* submit,
                             kvspan_error_t* error) noexcept {
    encoded().insert(queue);
    return inner().attention->run(queue, args, submit, error);
  }

  static kvspan_result_t finish(kvspan_queue_t* queue,
                                const kvspan_attention_args_t* args,
                                const kvspan_state_t* accumulators,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error) noexcept {
    encoded().insert(queue);
    return inner().attention->finish(queue, args, accumulators, submit, error);
  }

  using Queues = std::set<kvspan_queue_t*>;

  static Queues& down() {
    static Queues queues;
    return queues;
  }

  static Queues& encoded() {
    static Queues queues;
    return queues;
  }
};

// Steps of one phase behind 30 pages, with `resident` pages resident, if some: 12 are all that the
// window's layer sees.
void step(std::uint32_t resident, Phase phase, bool beside_attention) {
  SCOPED_TRACE(std::to_string(resident) + " resident pages, " + name(phase));
  const QueueRig rig;
  SessionOptions options = decode_options(1, 2200);
  options.stream.resident_pages_max = resident;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const kvspan_memory_t* const arena = WatchedRig::arena();
  const SequenceId sequence = *session->add_sequence();
  ASSERT_TRUE(session->load(sequence, 30 * 64, random_page).has_value());
  Engine engine(rig.backend(), *session, options, 1);
  WatchedRig::set_arena(arena);
  const std::uint64_t before = session->counters().streamed_pages;
  QueueRig::forget();
  for (int number = 0; number < 3; ++number) {
    ASSERT_TRUE(engine.step({{sequence, 7, *session->tokens(sequence), 1}}, phase, nullptr));
  }
  EXPECT_EQ(session->counters().streamed_pages != before, resident != UINT32_MAX);
  EXPECT_GT(QueueRig::downs(), 0U);
  EXPECT_EQ(QueueRig::beside_attention(), beside_attention);
}

TEST(PublishingLane, IsTheEncodersWhereADecodeStepStreams) {
  step(0, Phase::decode, true);
  step(12, Phase::decode, true);  // also the layer's that is all resident
  step(UINT32_MAX, Phase::decode, false);
  step(0, Phase::prefill, false);
}

}  // namespace
}  // namespace kvspan::test
