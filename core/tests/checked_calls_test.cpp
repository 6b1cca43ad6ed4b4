// SPDX-License-Identifier: Apache-2.0
// What core checks before a plugin sees a call: a mistake is a value that names the field, and the
// session goes on once the step is given up. The rules themselves are tested with the SDK.
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

namespace kvspan::test {
namespace {

class CheckedCallsTest : public ::testing::Test {
 protected:
  void open(Checks checks) {
    options_ = small_options();
    options_.arena_bytes = kResidentArena;
    options_.checks = checks;
    auto session = Session::open(rig_.backend(), options_);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    session_.emplace(std::move(*session));
    const auto sequence = session_->add_sequence();
    ASSERT_TRUE(sequence.has_value());
    sequence_ = *sequence;
    rows_ = make_buffer(rig_.backend(), 4, 4, 16);
    rows_.heads = 2;
    begin();
  }

  void begin() {
    const StepRows step[] = {{sequence_, 2}};
    ASSERT_TRUE(session_->begin_step(step, Phase::prefill).has_value());
  }

  WriteRows right() const {
    WriteRows write;
    write.k = rows_.rows();
    write.v = rows_.rows();
    write.v.row_stride /= 2;
    write.v.head_stride /= 2;
    return write;
  }

  StubRig rig_;
  SessionOptions options_;
  std::optional<Session> session_;
  SequenceId sequence_ = 0;
  Buffer rows_;
};

TEST_F(CheckedCallsTest, ARightCallGoesThrough) {
  open(Checks::calls);
  EXPECT_TRUE(session_->write(0, right()).has_value());
  session_->cancel_step();
}

TEST_F(CheckedCallsTest, AWrongFieldIsNamedAndTheSessionGoesOn) {
  struct Mistake {
    const char* word;
    Errc code;
    void (*make)(WriteRows&);
  };

  const Mistake mistakes[] = {
      {"stride", Errc::invalid_argument, [](WriteRows& write) { write.k.row_stride = 2; }},
      {"offset", Errc::invalid_argument, [](WriteRows& write) { write.k.offset = UINT64_MAX - 7; }},
      {"memory", Errc::invalid_argument, [](WriteRows& write) { write.v.memory = nullptr; }},
      {"type 77", Errc::unsupported, [](WriteRows& write) { write.v.type = 77; }},
  };
  open(Checks::calls);
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.word);
    WriteRows write = right();
    mistake.make(write);
    const auto written = session_->write(0, write);
    ASSERT_FALSE(written.has_value());
    EXPECT_EQ(written.error().code, mistake.code) << written.error().message;
    EXPECT_NE(written.error().message.find(mistake.word), std::string::npos)
        << written.error().message;
    session_->cancel_step();
    begin();
    EXPECT_TRUE(session_->write(0, right()).has_value());
    session_->cancel_step();
    begin();
  }
  session_->cancel_step();
}

TEST_F(CheckedCallsTest, AnEngineMayDoWithout) {
  open(Checks::none);
  EXPECT_TRUE(session_->write(0, right()).has_value());
  session_->cancel_step();
}

}  // namespace
}  // namespace kvspan::test
