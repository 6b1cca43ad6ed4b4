// SPDX-License-Identifier: Apache-2.0
// Random submits over several queues against a model: fills and copies between slots, ordered by
// wait points wherever two queues meet, some of them planted to fail. The model knows from the
// submits alone what every fence and every byte must be in the end, in whatever order work ran.
// Not here: rules one by one (fence_test.cpp).
#include "worker/case.hpp"

#include <algorithm>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint64_t kSlotBytes = 256;
constexpr uint32_t kPlaces = 6;
constexpr uint32_t kLanes = 4;

class FenceRandom : public PluginTest {
 protected:
  /// A submit, and what must become of it.
  struct Op {
    kvspan_fence_t* fence;
    uint32_t lane;
    kvspan_result_t fate;
    bool settled = false;
  };

  /// The last writer of a slot, the readers since then, and what it holds (-1: anything).
  struct Slot {
    std::vector<std::size_t> writers;
    std::vector<std::size_t> readers;
    int value = -1;
  };

  /// Many seeds, with planted failures or without.
  void play_all(bool faults);
  void play(uint64_t seed, bool faults);
  void submit_one(Dice& dice, bool faults);
  void look(Dice& dice);
  void drain();
  void check_memory();

  std::vector<Op> ops_;
  std::vector<Slot> slots_;
  std::vector<Lane> lanes_;
  Buffer* memory_ = nullptr;
};

void FenceRandom::drain() {
  for (Op& op : ops_) {
    if (!op.settled) {
      kvspan_error_t error = fresh_error();
      const kvspan_result_t result = rig().wait({op.fence, 1}, &error);
      ASSERT_EQ(result, op.fate) << told(result, error);
      op.settled = true;
    }
  }
  for (Slot& slot : slots_) {
    slot.writers.clear();
    slot.readers.clear();
  }
}

void FenceRandom::look(Dice& dice) {
  if (ops_.empty()) {
    return;
  }
  const Op& op = ops_[dice.below(ops_.size())];
  uint64_t value = 7;
  const kvspan_result_t queried = rig().tables().fence->query(op.fence, &value, nullptr);
  const kvspan_point_t point = {op.fence, 1};
  const kvspan_result_t waited = rig().tables().fence->wait(
      rig().device(), &point, 1, KVSPAN_WAIT_ALL, dice.hit(2) ? 0 : 20'000, nullptr);
  if (op.fate == KVSPAN_OK) {
    ASSERT_EQ(queried, KVSPAN_OK);
    ASSERT_LE(value, 1u);
    ASSERT_TRUE(waited == KVSPAN_OK || (waited == KVSPAN_TIMEOUT && value == 0)) << waited;
    ASSERT_TRUE(!op.settled || value == 1);
  } else {
    ASSERT_EQ(value, 0u);
    ASSERT_TRUE(queried == KVSPAN_OK || queried == op.fate) << queried;
    ASSERT_TRUE(waited == op.fate || waited == KVSPAN_TIMEOUT) << waited;
  }
}

void FenceRandom::submit_one(Dice& dice, bool faults) {
  Op op = {rig().fence(), static_cast<uint32_t>(dice.below(kLanes)), KVSPAN_OK};
  const auto target = static_cast<uint32_t>(dice.below(kPlaces));
  const auto source = static_cast<uint32_t>(dice.below(kPlaces));
  const bool copies = dice.hit(2) && source != target && slots_[source].value >= 0;
  std::vector<std::size_t> before = slots_[target].writers;
  before.insert(before.end(), slots_[target].readers.begin(), slots_[target].readers.end());
  if (copies) {
    before.insert(before.end(), slots_[source].writers.begin(), slots_[source].writers.end());
  }
  Submit submit;
  for (const std::size_t other : before) {
    // A wait inside one queue is redundant, unless it carries a failure on.
    if (ops_[other].lane != op.lane || ops_[other].fate != KVSPAN_OK || dice.hit(2)) {
      submit.wait({ops_[other].fence, 1});
      op.fate = ops_[other].fate == KVSPAN_OK ? op.fate : KVSPAN_E_WAIT_FAILED;
    }
  }
  submit.signal({op.fence, 1});
  submit.fields.submit_id = ops_.size() + 1;
  if (faults && op.fate == KVSPAN_OK && dice.hit(12)) {
    ASSERT_EQ(rig().tables().debug->fault(
                  rig().device(), KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_INTERNAL, nullptr),
              KVSPAN_OK);
    op.fate = KVSPAN_E_INTERNAL;
  }
  const auto byte = static_cast<int>(1 + dice.below(200));
  kvspan_queue_t* queue = lanes_[op.lane].queue;
  kvspan_error_t error = fresh_error();
  kvspan_result_t result = KVSPAN_OK;
  if (copies) {
    const kvspan_segment_t segment = {memory_->memory,
                                      memory_->memory,
                                      source * kSlotBytes,
                                      target * kSlotBytes,
                                      kSlotBytes,
                                      1,
                                      0,
                                      0};
    result = rig().calls().copy(queue, &segment, 1, submit.raw(), &error);
  } else {
    const kvspan_range_t range = {memory_->memory, target * kSlotBytes, kSlotBytes};
    result =
        rig().calls().fill(queue, &range, static_cast<uint64_t>(byte), 1, submit.raw(), &error);
  }
  ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
  const std::size_t index = ops_.size();
  ops_.push_back(op);
  const int written = copies ? slots_[source].value : byte;
  const bool untouched = op.fate == KVSPAN_E_WAIT_FAILED && rig().has(KVSPAN_DEVICE_FAIL_STOPS);
  if (!untouched) {
    slots_[target].value = op.fate == KVSPAN_OK ? written : -1;
  }
  slots_[target].writers = {index};
  slots_[target].readers.clear();
  if (copies) {
    slots_[source].readers.push_back(index);
  }
}

void FenceRandom::check_memory() {
  const Bytes now = rig().download(*memory_);
  for (uint32_t slot = 0; slot < kPlaces; ++slot) {
    for (uint64_t i = 0; i < kSlotBytes && slots_[slot].value >= 0; ++i) {
      ASSERT_EQ(now[slot * kSlotBytes + i], slots_[slot].value) << "slot " << slot << " byte " << i;
    }
  }
  ASSERT_TRUE(std::equal(now.begin() + kPlaces * kSlotBytes,
                         now.end(),
                         memory_->image.begin() + kPlaces * kSlotBytes));
}

void FenceRandom::play(uint64_t seed, bool faults) {
  Dice dice(settings(), seed);
  ops_.clear();
  slots_.assign(kPlaces, {});
  rig().upload(*memory_);
  const uint64_t length = dice.between(4, 30);
  for (uint64_t i = 0; i < length && !HasFatalFailure(); ++i) {
    submit_one(dice, faults);
    if (!HasFatalFailure() && dice.hit(3)) {
      look(dice);
    }
    if (!HasFatalFailure() && dice.hit(faults ? 6 : 20)) {
      drain();
    }
  }
  if (!HasFatalFailure()) {
    drain();
  }
  if (!HasFatalFailure()) {
    check_memory();
  }
  for (const Op& op : ops_) {
    rig().destroy(op.fence);
  }
}

void FenceRandom::play_all(bool faults) {
  memory_ = rig().allocate(KVSPAN_MEMORY_DEVICE, 4096);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes_.push_back(rig().extra_lane(lane % KVSPAN_ROLE_COUNT));
  }
  for (uint64_t seed = 1; seed <= cases(settings(), 200, 30) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    play(seed, faults);
  }
}

KVSPAN_CASE(FenceRandom,
            EveryOrderOfWorkGivesTheModelsBytes,
            "KV-QUEUE-1 KV-SUBMIT-9",
            needs::queues_eight) {
  play_all(false);
}

KVSPAN_CASE(FenceRandom,
            FailuresReachExactlyWhatWaitsForThem,
            "KV-SUBMIT-2 KV-SUBMIT-3 KV-DEBUG-1",
            needs::fault_submit,
            needs::queues_eight) {
  play_all(true);
}

}  // namespace
}  // namespace kvspan::conformance
