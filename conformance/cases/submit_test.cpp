// SPDX-License-Identifier: Apache-2.0
// What a submit promises beside its work, whatever the slot. Waits, failures and full queues:
// fence_test.cpp.
#include "worker/case.hpp"

#include <iterator>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class SubmitTest : public PluginTest {};

KVSPAN_CASE(SubmitTest, EverySignalPointOfASubmitIsReached, "KV-SUBMIT-2") {
  constexpr uint64_t kPatience_ns = 5'000'000'000;
  constexpr uint64_t kValues[] = {1, 7, 1000};
  const kvspan_fence_table_t& fences = *rig().tables().fence;
  Buffer* target = rig().allocate(KVSPAN_MEMORY_DEVICE, 4096);
  kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
  const kvspan_range_t range = {target->memory, 0, 4096};
  for (const char* slot : {"copy", "fill", "encode", "decode"}) {
    for (std::size_t count = 1; count <= std::size(kValues) && !HasFailure(); ++count) {
      SCOPED_TRACE(testing::Message() << slot << ", " << count << " points");
      std::vector<kvspan_point_t> points;
      Submit submit;
      for (std::size_t i = 0; i < count; ++i) {
        points.push_back({rig().fence(), kValues[i]});
        submit.signal(points.back());
      }
      const Calls& calls = rig().calls();
      ASSERT_EQ(*slot == 'c'   ? calls.copy(queue, nullptr, 0, submit.raw(), nullptr)
                : *slot == 'f' ? calls.fill(queue, &range, 3, 1, submit.raw(), nullptr)
                : *slot == 'e' ? calls.encode(queue, nullptr, 0, submit.raw(), nullptr)
                               : calls.decode(queue, nullptr, 0, submit.raw(), nullptr),
                KVSPAN_OK);
      for (const kvspan_point_t& point : points) {
        ASSERT_EQ(fences.wait(rig().device(), &point, 1, KVSPAN_WAIT_ALL, kPatience_ns, nullptr),
                  KVSPAN_OK)
            << "the point at " << point.value;
        uint64_t value = 0;
        EXPECT_EQ(fences.query(point.fence, &value, nullptr), KVSPAN_OK);
        EXPECT_EQ(value, point.value);
      }
    }
  }
}

}  // namespace
}  // namespace kvspan::conformance
