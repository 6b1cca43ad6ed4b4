// SPDX-License-Identifier: Apache-2.0
// What the shell is told for each kind of failure.
#include "exit_code.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvspan::host {
namespace {

int code_of(Errc code) {
  return exit_code(Error{code, "a sentence"});
}

TEST(ExitCode, WrongInputIsTwo) {
  for (const Errc code :
       {Errc::invalid_argument, Errc::unsupported, Errc::bad_file, Errc::too_large, Errc::io}) {
    EXPECT_EQ(code_of(code), 2) << name(code);
  }
}

TEST(ExitCode, MissingOrTooSmallHereIsThree) {
  for (const Errc code :
       {Errc::not_found, Errc::version, Errc::host_memory, Errc::device_memory, Errc::workspace}) {
    EXPECT_EQ(code_of(code), 3) << name(code);
  }
}

TEST(ExitCode, CancelledIsWhatShellsExpectOfCtrlC) {
  EXPECT_EQ(code_of(Errc::cancelled), 130);
}

TEST(ExitCode, WhatBrokeWhileWorkingIsOne) {
  for (const Errc code : {Errc::device_lost,
                          Errc::wait_failed,
                          Errc::internal,
                          Errc::busy,
                          Errc::timeout,
                          Errc::queue_full}) {
    EXPECT_EQ(code_of(code), 1) << name(code);
  }
  EXPECT_EQ(exit_code(Error{static_cast<Errc>(9999), "of a later version"}), 1);
}

TEST(ExitCode, SomethingMissingInsideAFileMakesTheFileWrong) {
  const Error changed = as_bad_file(Error{Errc::not_found, "no metadata", 3, 2, 1, "model"});
  EXPECT_EQ(changed.code, Errc::bad_file);
  EXPECT_EQ(exit_code(changed), kExitWrongInput);
  EXPECT_EQ(changed.message, "no metadata");
  EXPECT_EQ(changed.missing, 1U);
  EXPECT_EQ(as_bad_file(Error{Errc::host_memory, "no memory"}).code, Errc::host_memory);
}

}  // namespace
}  // namespace kvspan::host
