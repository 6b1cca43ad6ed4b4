// SPDX-License-Identifier: Apache-2.0
// The loop of an engine: begin, forward (which writes and attends layer by layer), commit.
#include "generation.hpp"

#include "model/matmul.hpp"
#include "model/sampler.hpp"
#include "streamed_attention.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace kvspan::host {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double resident_share(const Counters& counters) {
  return counters.attended_pages == 0 ? 1.0
                                      : static_cast<double>(counters.resident_attended_pages) /
                                            static_cast<double>(counters.attended_pages);
}

// What one run holds.
class Run {
 public:
  Run(const GenerationRequest& request,
      Session session,
      const std::function<void(const Progress&)>& progress,
      const std::function<bool()>& interrupted)
      : request_(request),
        session_(std::move(session)),
        progress_(progress),
        interrupted_(interrupted),
        logits_(request.model->geometry().vocabulary) {}

  Result<void> prepare(const Backend& backend, model::ThreadTeam& team) {
    const Plan& plan = session_.plan();
    model::EvaluatorOptions options;
    options.rows_max = std::max(plan.prefill_rows, plan.decode_rows);
    options.isa = model::matmul_isa_best();
    auto evaluator = model::Evaluator::create(*request_.model, team, options);
    if (!evaluator) {
      return tl::unexpected(std::move(evaluator).error());
    }
    evaluator_ = std::make_unique<model::Evaluator>(std::move(*evaluator));
    auto attention =
        StreamedAttention::create(backend, session_, request_.model->geometry(), options.rows_max);
    if (!attention) {
      return tl::unexpected(std::move(attention).error());
    }
    attention_ = std::move(*attention);
    return {};
  }

  Result<GenerationResult> go() {
    const Clock::time_point start = Clock::now();
    if (auto done = prefill(start); !done) {
      return tl::unexpected(std::move(done).error());
    }
    result_.prefill_seconds = seconds_since(start);
    const std::uint64_t prefill_bytes = session_.counters().streamed_bytes;
    const Clock::time_point decode_start = Clock::now();
    if (!result_.interrupted) {
      if (auto done = decode(decode_start); !done) {
        return tl::unexpected(std::move(done).error());
      }
    }
    result_.decode_seconds = seconds_since(decode_start);
    result_.history_tokens = position_;
    result_.counters = session_.counters();
    result_.decode_streamed_bytes = result_.counters.streamed_bytes - prefill_bytes;
    result_.plan = session_.plan();
    return std::move(result_);
  }

 private:
  // One step of the session over `tokens`; logits of its last row if wanted.
  enum class Logits : std::uint8_t { none, last };

  Result<void> step(std::span<const std::uint32_t> tokens, Phase phase, Logits wanted) {
    const auto rows = static_cast<std::uint32_t>(tokens.size());
    if (auto begun = attention_->begin(rows, phase); !begun) {
      return begun;
    }
    const std::uint32_t last = rows - 1;
    model::Chunk chunk;
    chunk.tokens = tokens;
    chunk.first_position = position_;
    std::span<float> logits;
    if (wanted == Logits::last) {
      chunk.logit_rows = {&last, 1};
      logits = logits_;
    }
    if (auto done = evaluator_->forward(chunk, *attention_, logits); !done) {
      session_.cancel_step();
      return done;
    }
    position_ += rows;
    return attention_->commit();
  }

  void tell(std::string_view phase,
            std::uint64_t done,
            std::uint64_t total,
            std::uint64_t timed_tokens,
            Clock::time_point start) const {
    if (progress_) {
      progress_({phase,
                 done,
                 total,
                 timed_tokens,
                 seconds_since(start),
                 resident_share(session_.counters())});
    }
  }

  bool stop() {
    result_.interrupted = interrupted_ && interrupted_();
    return result_.interrupted;
  }

  Result<void> prefill(Clock::time_point start) {
    const std::span<const std::uint32_t> prompt = request_.prompt;
    const std::size_t chunk = session_.plan().prefill_rows;
    while (position_ < prompt.size() && !stop()) {
      const std::size_t rows = std::min(chunk, prompt.size() - position_);
      const bool last = position_ + rows == prompt.size();
      auto done =
          step(prompt.subspan(position_, rows), Phase::prefill, last ? Logits::last : Logits::none);
      if (!done) {
        return done;
      }
      tell("prefill", position_, prompt.size(), position_, start);
    }
    return {};
  }

  Result<void> decode(Clock::time_point start) {
    for (std::uint32_t index = 0; index < request_.tokens && !stop(); ++index) {
      const auto id = model::greedy_token(logits_);
      if (!id) {
        return tl::unexpected(id.error());
      }
      result_.ids.push_back(*id);
      result_.logits.insert(result_.logits.end(), logits_.begin(), logits_.end());
      tell("decode", index + 1, request_.tokens, index, start);
      const auto& stops = request_.stop_ids;
      const bool ended = std::find(stops.begin(), stops.end(), *id) != stops.end();
      if (ended || index + 1 == request_.tokens) {
        break;
      }
      if (auto done = step({&*id, 1}, Phase::decode, Logits::last); !done) {
        return done;
      }
      ++result_.decode_steps;
    }
    return {};
  }

  const GenerationRequest& request_;
  Session session_;
  const std::function<void(const Progress&)>& progress_;
  const std::function<bool()>& interrupted_;
  std::unique_ptr<model::Evaluator> evaluator_;
  std::unique_ptr<StreamedAttention> attention_;
  std::vector<float> logits_;  // [vocabulary]
  std::uint64_t position_ = 0;
  GenerationResult result_;
};

}  // namespace

Result<GenerationResult> generate(const Backend& backend,
                                  model::ThreadTeam& team,
                                  const GenerationRequest& request,
                                  const std::function<void(const Progress&)>& progress,
                                  const std::function<bool()>& interrupted) {
  auto session = Session::open(backend, request.session);
  if (!session) {
    return tl::unexpected(std::move(session).error());
  }
  Run run(request, std::move(*session), progress, interrupted);
  if (auto prepared = run.prepare(backend, team); !prepared) {
    return tl::unexpected(std::move(prepared).error());
  }
  return run.go();
}

}  // namespace kvspan::host
