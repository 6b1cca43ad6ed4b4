// SPDX-License-Identifier: Apache-2.0
// Read first: plants.hpp. A filter sees every submit of the session on its way to the device.
#include "plants.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan::sim {

namespace {

constexpr std::uint32_t kCompute = KVSPAN_ROLE_COMPUTE;
constexpr std::uint32_t kUpload = KVSPAN_ROLE_UPLOAD;
constexpr std::uint32_t kDownload = KVSPAN_ROLE_DOWNLOAD;
constexpr std::uint32_t kAnyRole = UINT32_MAX;

// Calls on `role`, or on any with kAnyRole, forget what they wait for on `of`.
class ForgottenWait : public CallFilter {
 public:
  ForgottenWait(std::uint32_t role, std::uint32_t of) : role_(role), of_(of) {}

  void on_submit(Call& call) override {
    if (role_ != kAnyRole && call.role != role_) {
      return;
    }
    std::vector<kvspan_point_t> kept;
    for (std::size_t index = 0; index < call.waits.size(); ++index) {
      if (call.wait_roles[index] != of_) {
        kept.push_back(call.waits[index]);
      }
    }
    call.waits = std::move(kept);
  }

 private:
  std::uint32_t role_;
  std::uint32_t of_;
};

// Anything that is done to a call without knowing others.
class Changed : public CallFilter {
 public:
  explicit Changed(std::function<void(Call&)> change) : change_(std::move(change)) {}

  void on_submit(Call& call) override { change_(call); }

 private:
  std::function<void(Call&)> change_;
};

Plant changed(const char* name, const char* bug, std::uint64_t seed, void (*change)(Call&)) {
  return {name, bug, seed, [change] { return std::make_unique<Changed>(change); }};
}

Plant forgotten(
    const char* name, const char* bug, std::uint64_t seed, std::uint32_t role, std::uint32_t of) {
  return {name, bug, seed, [role, of] { return std::make_unique<ForgottenWait>(role, of); }};
}

// The rows of the page that a truncation cut are thought to be still there.
class StaleGeneration : public CallFilter {
 public:
  void on_truncate() override { cut_ = true; }

  void on_submit(Call& call) override {
    if (cut_ && call.kind == CallKind::encode) {
      call.codec_items.clear();
      cut_ = false;
    }
  }

 private:
  bool cut_ = false;
};

// An object that is forgotten after a refused submit.
class LeakAfterRefusal : public CallFilter {
 public:
  void on_refused(const Call& call) override {
    (void)call;
    leak_ = true;
  }

  bool on_release() override { return !std::exchange(leak_, false); }

 private:
  bool leak_ = false;
};

// After a refusal nobody waits for what is in flight.
class NoDrain : public CallFilter {
 public:
  void on_refused(const Call& call) override {
    (void)call;
    skip_ = true;
  }

  bool on_wait(const kvspan_point_t& point) override {
    (void)point;
    return !skip_;
  }

 private:
  bool skip_ = false;
};

bool is_fetch(const Call& call) {
  return call.kind == CallKind::copy && call.role == kUpload && !call.segments.empty();
}

bool is_publication(const Call& call) {
  return call.kind == CallKind::copy && call.role != kUpload && !call.segments.empty();
}

void add_waits(std::vector<Plant>& all) {
  all.push_back(forgotten("fetch_over_reader",
                          "a ring slot is filled again while attention still reads it",
                          1,
                          kUpload,
                          kCompute));
  all.push_back(forgotten("attend_before_fetch",
                          "attention does not wait for the copy that brings its pages",
                          1,
                          kCompute,
                          kUpload));
  all.push_back(forgotten("publish_before_encode",
                          "rows are sent down before they are encoded",
                          1,
                          kDownload,
                          kCompute));
  all.push_back(forgotten("fetch_before_publish",
                          "a page is fetched before its rows arrived on the host",
                          3,
                          kUpload,
                          kDownload));
  all.push_back(forgotten("encode_over_publish",
                          "a page is written while an earlier copy of it goes down",
                          19,
                          kCompute,
                          kDownload));
  all.push_back(forgotten("engine_point_ignored",
                          "the engine's point for its rows is taken and not waited for",
                          1,
                          kAnyRole,
                          kEngineRole));
  all.push_back({"no_drain_after_failure",
                 "after a refused submit the engine's rows are given back before work ended",
                 1,
                 [] { return std::make_unique<NoDrain>(); }});
}

void add_pages(std::vector<Plant>& all) {
  all.push_back(changed("stale_slot",
                        "a page of a group is not fetched: the slot keeps its last tenant",
                        6,
                        [](Call& call) {
                          if (is_fetch(call) && call.segments.size() > 1) {
                            call.segments.pop_back();
                          }
                        }));
  all.push_back(changed(
      "swapped_pages", "two pages of a group land in each other's slots", 16, [](Call& call) {
        if (is_fetch(call) && call.segments.size() > 1 &&
            call.segments[0].bytes == call.segments[1].bytes) {
          std::swap(call.segments[0].target_offset, call.segments[1].target_offset);
        }
      }));
  all.push_back(
      changed("lost_dirty_row", "the last new row of a page is not sent down", 6, [](Call& call) {
        if (is_publication(call) && call.segments.size() > 2) {
          call.segments.pop_back();
        }
      }));
  all.push_back(
      changed("last_span_dropped", "attention is not shown the last span", 2, [](Call& call) {
        for (EntryCopy& copy : call.entries) {
          if (copy.spans.size() > 1) {
            copy.spans.pop_back();
            copy.lists.pop_back();
            copy.bind();
          }
        }
      }));
  all.push_back(
      {"stale_generation", "rows written again after a truncation are thought to be there", 2, [] {
         return std::make_unique<StaleGeneration>();
       }});
  all.push_back(
      changed("swapped_list", "two entries of a page list change places", 1, [](Call& call) {
        for (EntryCopy& copy : call.entries) {
          for (std::vector<std::uint32_t>& list : copy.lists) {
            if (list.size() > 1) {
              std::swap(list[0], list[1]);
            }
          }
        }
      }));
}

void add_states(std::vector<Plant>& all) {
  all.push_back(
      changed("state_started_again", "a split that goes on begins from nothing", 2, [](Call& call) {
        for (kvspan_advance_item_t& item : call.advance_items) {
          item.flags |= KVSPAN_ITEM_FRESH;
        }
      }));
  all.push_back(changed("folds_swapped", "splits fold in the wrong order", 2, [](Call& call) {
    std::vector<kvspan_fold_item_t>& items = call.fold_items;
    if (items.size() > 2 && items[1].entry == items[2].entry) {
      std::swap(items[1].source, items[2].source);
    }
  }));
  all.push_back(
      changed("part_skipped", "a piece of a split is never walked over", 2, [](Call& call) {
        if (call.advance_items.size() > 1) {
          call.advance_items.pop_back();
        }
      }));
  all.push_back(
      changed("value_repeated", "a submit signals the value of the last one", 1, [](Call& call) {
        for (kvspan_point_t& point : call.signals) {
          if (call.submit_id % 16 == 15) {
            --point.value;
          }
        }
      }));
  all.push_back(
      {"leak_after_refusal", "an object made before a refused submit is not given back", 1, [] {
         return std::make_unique<LeakAfterRefusal>();
       }});
}

}  // namespace

const std::vector<Plant>& plants() {
  static const std::vector<Plant> all = [] {
    std::vector<Plant> made;
    add_waits(made);
    add_pages(made);
    add_states(made);
    return made;
  }();
  return all;
}

}  // namespace kvspan::sim
