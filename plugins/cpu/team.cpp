// SPDX-License-Identifier: Apache-2.0
// Read first: team.hpp.
#include "team.hpp"

#include <cstring>

namespace kvspan::cpu {

Team::~Team() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  auto* const helpers = reinterpret_cast<Helper*>(helpers_.data());
  for (uint32_t i = 0; i < helper_count_; ++i) {
    helpers[i].~Helper();  // joins
  }
}

bool Team::start(uint32_t threads) {
  const uint64_t each = Scratch::bytes();
  scratch_ = Block::of(host_, each * threads);
  if (scratch_.data() == nullptr) {
    return false;
  }
  std::memset(scratch_.data(), 0, scratch_.bytes());  // pages are faulted in now, not in a step
  own_ = Scratch::bind(scratch_.data());
  helpers_ = Block::of(host_, sizeof(Helper) * (threads - 1));
  auto* const helpers = reinterpret_cast<Helper*>(helpers_.data());
  if (threads > 1 && helpers == nullptr) {
    return false;
  }
  for (uint32_t i = 0; i + 1 < threads; ++i) {
    Helper* const helper = new (helpers + i) Helper;
    helper->team = this;
    helper->scratch = Scratch::bind(scratch_.data() + each * (i + 1));
    if (!helper->thread.start(helper_main, helper)) {
      helper->~Helper();
      host_.log(KVSPAN_LOG_WARNING,
                "cpu: %u of %u threads could be started; attention is slower, not different",
                i + 1,
                threads);
      break;
    }
    ++helper_count_;
  }
  return true;
}

void Team::helper_main(void* argument) {
  auto* const helper = static_cast<Helper*>(argument);
  helper->team->help(helper->scratch);
}

void Team::help(Scratch& scratch) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || (open_ && round_ != seen); });
    if (stop_) {
      return;
    }
    seen = round_;
    const Job job = job_;
    ++busy_;
    lock.unlock();
    work(job, scratch);
    lock.lock();
    if (--busy_ == 0) {
      finished_.notify_one();
    }
  }
}

void Team::work(const Job& job, Scratch& scratch) {
  for (;;) {
    const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= job.count) {
      return;
    }
    if (job.cancel_word != nullptr && __atomic_load_n(job.cancel_word, __ATOMIC_ACQUIRE) != 0) {
      cancelled_.store(true, std::memory_order_relaxed);
      return;
    }
    job.unit(job.context, index, scratch);
  }
}

JobEnd Team::run(const Job& job) {
  const std::lock_guard one(one_job_);
  next_.store(0, std::memory_order_relaxed);
  cancelled_.store(false, std::memory_order_relaxed);
  const bool shared = job.count > 1 && helper_count_ > 0;
  if (shared) {
    {
      const std::lock_guard lock(mutex_);
      job_ = job;
      ++round_;
      open_ = true;
    }
    wake_.notify_all();
  }
  work(job, own_);
  if (shared) {
    std::unique_lock lock(mutex_);
    open_ = false;  // whoever is still asleep is not needed any more
    finished_.wait(lock, [&] { return busy_ == 0; });
  }
  return cancelled_.load(std::memory_order_relaxed) ? JobEnd::cancelled : JobEnd::complete;
}

}  // namespace kvspan::cpu
