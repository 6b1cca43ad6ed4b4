// SPDX-License-Identifier: Apache-2.0
// Manners of a plugin while it works: it prints nothing, leaves the calling thread's signal mask
// and floating point alone, keeps its own threads out of the reach of signals. What close leaves
// behind is checked after every case (rig_open.cpp) and in unload_test.cpp.
#include "worker/case.hpp"
#include "worker/process_state.hpp"

#include <cfenv>
#include <cstdio>
#include <functional>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

/// Descriptors 1 and 2 lead into a file of memory for as long as it lives.
class Caught {
 public:
  Caught() : file_(::memfd_create("printed", 0)) {
    flush();
    for (int fd : {1, 2}) {
      saved_[fd - 1] = ::dup(fd);
      ::dup2(file_, fd);
    }
  }

  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;
  Caught(Caught&&) = delete;
  Caught& operator=(Caught&&) = delete;

  ~Caught() { text(); }

  /// What was printed; ends the catching.
  std::string text() {
    flush();
    for (int fd : {1, 2}) {
      if (saved_[fd - 1] >= 0) {
        ::dup2(saved_[fd - 1], fd);
        ::close(std::exchange(saved_[fd - 1], -1));
      }
    }
    if (file_ >= 0) {
      char bytes[512];
      const ssize_t length = ::pread(file_, bytes, sizeof bytes, 0);
      text_.assign(bytes, length > 0 ? static_cast<std::size_t>(length) : 0);
      ::close(std::exchange(file_, -1));
    }
    return text_;
  }

 private:
  static void flush() { static_cast<void>(std::fflush(nullptr)); }

  int file_;
  int saved_[2] = {-1, -1};
  std::string text_;
};

class MannersTest : public PluginTest {
 protected:
  using Step = std::pair<const char*, std::function<void()>>;

  /// A call of every slot that touches memory or threads, each waited for.
  std::vector<Step> steps();

  void copies(uint32_t role) {
    Lane& lane = rig().lane(role);
    const kvspan_segment_t segment = {
        source_->memory, target_->memory, 0, 0, source_->bytes(), 1, 0, 0};
    Submit submit;
    submit.signal(lane.next());
    EXPECT_EQ(rig().calls().copy(lane.queue, &segment, 1, submit.raw(), nullptr), KVSPAN_OK);
  }

  Buffer* source_ = nullptr;
  Buffer* target_ = nullptr;
};

std::vector<MannersTest::Step> MannersTest::steps() {
  const Tables& t = rig().tables();
  source_ = rig().allocate(KVSPAN_MEMORY_HOST, 65536);
  target_ = rig().allocate(KVSPAN_MEMORY_DEVICE, 65536);
  Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
  const auto encode = [&, this](bool decode) {
    kvspan_codec_item_t item = {};
    item.rows = {source_->memory, 0, 256, 256, KVSPAN_TYPE_F32, 0};
    item.plane.memory = target_->memory;
    item.plane.row_stride = 128;
    item.plane.head_stride = 128;
    item.type = KVSPAN_TYPE_Q8_0;
    item.row_count = 16;
    item.head_count = 1;
    item.head_size = 64;
    EXPECT_EQ(rig().settle(KVSPAN_ROLE_COMPUTE,
                           [&](auto* queue, const auto* submit, auto* error) {
                             return decode ? rig().calls().decode(queue, &item, 1, submit, error)
                                           : rig().calls().encode(queue, &item, 1, submit, error);
                           }),
              KVSPAN_OK);
  };
  return {{"device.open and close",
           [&, this] {
             kvspan_device_t* other = nullptr;
             EXPECT_EQ(t.device->open(rig().plugin_self(), settings().device, &other, nullptr),
                       KVSPAN_OK);
             EXPECT_EQ(t.device->close(other, nullptr), KVSPAN_OK);
           }},
          {"memory.alloc and release",
           [this] { rig().release(rig().allocate(KVSPAN_MEMORY_DEVICE, 65536)); }},
          {"copy.copy, upload", [this] { copies(KVSPAN_ROLE_UPLOAD); }},
          {"fence.wait, upload",
           [this] { EXPECT_EQ(rig().wait(rig().lane(KVSPAN_ROLE_UPLOAD).last()), KVSPAN_OK); }},
          {"copy.copy, download", [this] { copies(KVSPAN_ROLE_DOWNLOAD); }},
          {"fence.wait, download",
           [this] { EXPECT_EQ(rig().wait(rig().lane(KVSPAN_ROLE_DOWNLOAD).last()), KVSPAN_OK); }},
          {"codec.encode", [encode] { encode(false); }},
          {"codec.decode", [encode] { encode(true); }},
          {"copy.copy, refused",
           [&] {
             Submit submit;
             EXPECT_LT(t.copy->copy(lane.queue, nullptr, 1, submit.raw(), nullptr), 0);
           }},
          {"fence.wait, timed out", [&, this] {
             const kvspan_point_t never = {rig().fence(), 1};
             EXPECT_EQ(t.fence->wait(rig().device(), &never, 1, KVSPAN_WAIT_ALL, 1000, nullptr),
                       KVSPAN_TIMEOUT);
           }}};
}

KVSPAN_CASE(MannersTest, NothingIsPrinted, "KV-MANNERS-1 KV-HOST-1") {
  Caught caught;
  for (const Step& step : steps()) {
    step.second();
  }
  reopen("", "");
  EXPECT_EQ(caught.text(), "") << "printed to standard output or error";
}

KVSPAN_CASE(MannersTest, EachCallLeavesTheThreadAsItWas, "KV-MANNERS-4") {
  for (const std::string& change : remembered_process().thread.changes(ThreadState::now())) {
    ADD_FAILURE() << "opening: " << change;
  }
  const std::vector<Step> all = steps();
  for (const bool odd : {false, true}) {
    const int rounding = std::fegetround();
#if defined(__x86_64__)
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | (odd ? 0x8040u : 0u));  // flush to zero, denormals are zero
#endif
    std::fesetround(odd ? FE_UPWARD : rounding);
    for (const Step& step : all) {
      const ThreadState before = ThreadState::now();
      step.second();
      for (const std::string& change : before.changes(ThreadState::now())) {
        ADD_FAILURE() << step.first << ": " << change;
      }
    }
    std::fesetround(rounding);
#if defined(__x86_64__)
    _mm_setcsr(control);
#endif
  }
}

KVSPAN_CASE(MannersTest, EachCallLeavesTheProcessAsItWas, "KV-MANNERS-4") {
  for (const std::string& change : remembered_process().changes(ProcessState::now())) {
    if (change.rfind("KV-MANNERS-3", 0) != 0) {
      ADD_FAILURE() << "loading and opening: " << change;
    }
  }
  for (const Step& step : steps()) {
    const ProcessState before = ProcessState::now();
    step.second();
    for (const std::string& change : before.changes(ProcessState::now())) {
      if (change.rfind("KV-MANNERS-3", 0) != 0) {  // threads and descriptors may come while open
        ADD_FAILURE() << step.first << ": " << change;
      }
    }
  }
}

KVSPAN_CASE(MannersTest, ItsThreadsBlockAllSignals, "KV-MANNERS-5") {
  for (const Step& step : steps()) {
    step.second();
  }
  for (const std::string& thread : threads_that_take_signals(remembered_process())) {
    ADD_FAILURE() << thread << ", and would run the host's signal handlers";
  }
}

}  // namespace
}  // namespace kvspan::conformance
