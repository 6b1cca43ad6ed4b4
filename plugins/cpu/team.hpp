// SPDX-License-Identifier: Apache-2.0
// The threads that share one attention submit: units of work are handed out one at a time to
// whoever is free, each thread with its own scratch. Which thread does a unit never changes a bit
// of it. Nobody spins: helpers sleep between jobs. Not here: what a unit is (attention/work.cpp).
#pragma once

#include "attention/kernel.hpp"
#include "host.hpp"
#include "thread.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kvspan::cpu {

inline constexpr uint32_t kThreadsMax = 256;

// One job: units 0..count-1, in any order. unit() may run on several threads at once.
struct Job {
  uint64_t count;
  void (*unit)(void* context, uint64_t index, Scratch& scratch);
  void* context;
  // Set by the host to make the team hand out no further units, or nullptr.
  const uint32_t* cancel_word;
};

enum class JobEnd { complete, cancelled };

class Team {
 public:
  explicit Team(const Host& host) : host_(host) {}

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  Team(Team&&) = delete;
  Team& operator=(Team&&) = delete;
  ~Team();

  // Reserves scratch for `threads` and starts threads - 1 helpers; the thread that calls run() is
  // the last. False: no memory for one thread; a helper that cannot start only makes the team
  // smaller.
  [[nodiscard]] bool start(uint32_t threads);

  // Does all units and returns. One job runs at a time; a second caller waits for the first.
  JobEnd run(const Job& job);

  [[nodiscard]] uint32_t threads() const { return helper_count_ + 1; }

  [[nodiscard]] uint64_t scratch_bytes() const { return scratch_.bytes() + helpers_.bytes(); }

 private:
  struct Helper {
    Thread thread;
    Team* team = nullptr;
    Scratch scratch{};
  };

  static void helper_main(void* argument);
  void help(Scratch& scratch);
  void work(const Job& job, Scratch& scratch);

  const Host& host_;
  std::mutex one_job_;
  std::mutex mutex_;                  // guards job_, round_, open_, busy_, stop_
  std::condition_variable wake_;      // helpers: a new round, or stop
  std::condition_variable finished_;  // run(): no helper is busy
  Job job_{};
  uint64_t round_ = 0;
  bool open_ = false;  // the round still takes helpers
  bool stop_ = false;
  uint32_t busy_ = 0;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> cancelled_{false};
  Block scratch_;
  Block helpers_;
  uint32_t helper_count_ = 0;
  Scratch own_{};
};

}  // namespace kvspan::cpu
