// SPDX-License-Identifier: Apache-2.0
// An engine without a model: a session over a random history whose steps write and attend random
// rows, layer after layer. Not here: what is made of the times (decode_steps.hpp).
#pragma once

#include "kvspan/bench/line.hpp"
#include "kvspan/bench/random_pages.hpp"
#include "kvspan/core/session/session.hpp"
#include "kvspan/core/session/submission_thread.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvspan::bench {

// What an engine's device does between a layer's outputs and the next layer's rows. SYNC(engine).
class OtherWork {
 public:
  OtherWork() = default;
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;
  OtherWork(OtherWork&&) = delete;
  OtherWork& operator=(OtherWork&&) = delete;
  virtual ~OtherWork() = default;

  // Submits it behind `outputs`; returns the point that the next layer's rows are there at. Errors:
  // the submit's.
  [[nodiscard]] virtual Result<kvspan_point_t> submit(const kvspan_point_t& outputs) = 0;

  // For a point that submit() returned. Errors: the cause of failed work.
  [[nodiscard]] virtual Result<void> wait(const kvspan_point_t& point) = 0;
};

struct StepCase {
  std::uint32_t layers = 16;
  std::uint64_t tokens = 0;      // of the history before the first step
  std::uint32_t rows_max = 8;    // a step
  std::uint64_t appended = 512;  // tokens that steps may add
  std::uint32_t chunk_rows = 0;  // not 0: prefill steps have exactly so many rows at most
  std::uint64_t arena_bytes = 0;
  StreamOptions stream;
  kvspan_type_t query_type = KVSPAN_TYPE_F32;  // or F16, of the same values rounded
  bool wait_each_layer = false;     // the engine needs a layer's output before it goes on
  double gap_seconds = 0.0;         // what it does then, on the host's clock
  OtherWork* other_work = nullptr;  // behind every layer, on the device; outlives the engine
  bool submission_thread = false;   // the session's calls are made by a thread of core's
};

// What a step has to bring from the host. A page in two splits comes without the padding between
// its planes, so its bytes lie between the two.
struct StepTraffic {
  std::uint64_t pages = 0;
  std::uint64_t bytes_min = 0;  // live rows
  std::uint64_t bytes_max = 0;  // pages
};

class StepEngine {
 public:
  // Opens the session and loads the history. `pages` outlives the engine. Errors: the session's.
  [[nodiscard]] static Result<StepEngine> open(const Backend& backend,
                                               const RandomPages& pages,
                                               const StepCase& asked);

  // One step of `rows` rows, all accepted. Returns its seconds, from begin_step to the last layer's
  // output and commit. Errors: the session's.
  [[nodiscard]] Result<double> step(std::uint32_t rows, Phase phase = Phase::decode);

  // Takes the steps back that went beyond `tokens` tokens. Errors: the session's.
  [[nodiscard]] Result<void> truncate(std::uint64_t tokens);

  // Nothing of it is under way in another thread.
  [[nodiscard]] Session& session() const { return thread_ ? thread_->session() : *session_; }

  // Of the next step.
  [[nodiscard]] StepTraffic traffic() const;

  // Outputs of the last step, [layer, row, head, element]; NaN where nothing was written.
  [[nodiscard]] Result<std::vector<float>> outputs();

 private:
  StepEngine(const Backend& backend,
             const RandomPages& pages,
             const StepCase& asked,
             Session session)
      : backend_(backend),
        pages_(&pages),
        case_(asked),
        session_(std::make_unique<Session>(std::move(session))) {}

  Result<void> load();
  Result<void> place_rows();
  Result<void> layer(std::uint32_t index);
  Result<void> submit(std::uint32_t index, const WriteRows& write, const AttendRows& attend);
  Result<void> wait();

  Backend backend_;
  const RandomPages* pages_;
  StepCase case_;
  HostMemory host_rows_;
  DeviceMemory rows_;
  std::unique_ptr<Session> session_;  // unless a thread has it
  std::unique_ptr<SubmissionThread> thread_;
  SequenceId sequence_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint32_t rows_of_step_ = 0;
  std::uint64_t q_bytes_ = 0;  // of one layer, like those below
  std::uint64_t k_bytes_ = 0;
  std::uint64_t v_bytes_ = 0;
  std::uint64_t out_bytes_ = 0;
  std::uint64_t out_offset_ = 0;  // outputs of all layers lie behind the other rows
  kvspan_point_t last_{};
  SubmissionThread::Ticket last_ticket_ = 0;
  std::vector<kvspan_point_t> ready_;  // what the next layer's rows wait for
};

// What a session for such steps is opened with.
[[nodiscard]] SessionOptions session_options(const RandomPages& pages, const StepCase& asked);

// The arena that holds exactly `resident_pages` pages a layer and what streams the others; all of
// them: what keeps everything resident. Errors: plan()'s.
[[nodiscard]] Result<std::uint64_t> arena_for(const Backend& backend,
                                              const RandomPages& pages,
                                              const StepCase& asked);

// The same steps with everything resident and no gaps, in an arena for them. Errors: plan()'s;
// internal where such an arena still streams.
[[nodiscard]] Result<StepCase> resident_case(const Backend& backend,
                                             const RandomPages& pages,
                                             const StepCase& asked);

}  // namespace kvspan::bench
