// SPDX-License-Identifier: Apache-2.0
// Waiting in the destructor is what makes a completion a proof: a fence that failed says nothing
// about the work behind it, so then the lanes are drained.
#include "kvspan/core/memory/completion.hpp"

#include "memory/guarded_call.hpp"

#include <string>
#include <utility>

namespace kvspan {
namespace {

Error nothing_recorded() {
  return Error{
      Errc::invalid_argument,
      "a completion of nothing cannot be waited for; submit the work, then record its end"};
}

}  // namespace

Result<void> wait_until(const Lanes& lanes, const Moment& moment) {
  Result<void> outcome;
  for (const LaneId lane : kLanes) {
    if (moment.of(lane) != 0) {
      if (auto reached = lanes.wait(lane, moment.of(lane)); !reached && outcome) {
        outcome = std::move(reached);
      }
    }
  }
  return outcome;
}

Completion::Completion(Completion&& other) noexcept
    : lanes_(other.lanes_),
      hazard_(std::exchange(other.hazard_, {})),
      recorded_(std::exchange(other.recorded_, false)),
      host_sees_(std::exchange(other.host_sees_, false)) {}

Completion& Completion::operator=(Completion&& other) noexcept {
  if (this != &other) {
    finish();
    lanes_ = other.lanes_;
    hazard_ = std::exchange(other.hazard_, {});
    recorded_ = std::exchange(other.recorded_, false);
    host_sees_ = std::exchange(other.host_sees_, false);
  }
  return *this;
}

Completion::~Completion() {
  finish();
}

void Completion::finish() noexcept {
  const auto wait = [this] { return wait_until(*lanes_, hazard_.before_write()); };
  if (recorded_ && !is_over() && !guarded_call("waiting for the end of work", wait)) {
    (void)lanes_->drain();  // sticky errors only: then nothing of the device runs any more
  }
}

Result<void> Completion::check(const Moment& end) const {
  for (const LaneId lane : kLanes) {
    if (end.of(lane) > lanes_->last(lane)) {
      return tl::unexpected(Error{Errc::invalid_argument,
                                  "value " + std::to_string(end.of(lane)) +
                                      " has not been handed out, the last one is " +
                                      std::to_string(lanes_->last(lane)) + "; submit first"});
    }
  }
  return {};
}

Result<void> Completion::record(const Moment& end) {
  if (recorded_) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "a completion is recorded once; make another for other work"});
  }
  if (auto known = check(end); !known) {
    return known;
  }
  hazard_.written = end;
  recorded_ = true;
  return {};
}

Result<Moment> Completion::before_read(const Lanes& consumer) const {
  if (!recorded_) {
    return tl::unexpected(nothing_recorded());
  }
  if (&consumer != lanes_) {
    return tl::unexpected(Error{Errc::unsupported,
                                "a completion of other lanes means nothing on these; settle it on "
                                "the host, then submit"});
  }
  return hazard_.before_read();
}

Result<void> Completion::add_reader(const Moment& end) {
  if (!recorded_) {
    return tl::unexpected(nothing_recorded());
  }
  if (auto known = check(end); !known) {
    return known;
  }
  hazard_.read.merge(end);
  return {};
}

Result<void> Completion::settle() {
  if (!recorded_) {
    return tl::unexpected(nothing_recorded());
  }
  if (host_sees_) {
    return {};
  }
  Result<void> reached = wait_until(*lanes_, hazard_.written);
  host_sees_ = reached.has_value();
  return reached;
}

bool Completion::is_over() const {
  const Moment all = hazard_.before_write();
  for (const LaneId lane : kLanes) {
    if (all.of(lane) != 0 && lanes_->reached(lane) < all.of(lane)) {
      return false;
    }
  }
  return true;
}

}  // namespace kvspan
