// SPDX-License-Identifier: Apache-2.0
// Read first: proof.hpp. What the process holds is sampled where it holds the same each time: when
// a session has closed and the device is idle.
#include "kvspan/bench/spread.hpp"

#include "holdings.hpp"
#include "proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace kvspan::cuda_proof {

namespace {

using bench::Clock;
using bench::seconds_since;
using cuda_bench::Failure;
using cuda_bench::take;

constexpr std::uint32_t kLayers = 3;
constexpr std::uint32_t kSequences = 3;
constexpr std::uint32_t kPrefillRows = 96;
constexpr std::uint64_t kSpan = 600;  // tokens behind the loaded ones that rows are known for

struct KnownText {
  Text text;
  std::vector<std::uint64_t> hashes;  // [token - loaded_tokens]
};

// A session for a while, and what happens to it.
class Stretch {
 public:
  Stretch(const Rig& rig,
          const Material& material,
          const std::vector<KnownText>& texts,
          Dice& dice,
          Counts& out)
      : material_(material),
        texts_(texts),
        dice_(dice),
        out_(out),
        engine_(rig, material, drawn(rig, material)) {
    add(kSequences);
  }

  void run(std::uint64_t operations) {
    for (std::uint64_t index = 0; index < operations; ++index) {
      const std::uint64_t dice = dice_.below(100);
      if (dice < 55) {
        decode();
      } else if (dice < 70) {
        prompt();
      } else if (dice < 80) {
        truncate();
      } else if (dice < 87) {
        exchange();
      } else if (dice < 95) {
        place();
      } else {
        give_up();
      }
      ++out_["operations"].get_ref<std::int64_t&>();
    }
    out_["streamed_pages"] = out_.value("streamed_pages", std::uint64_t{0}) +
                             engine_.session().counters().streamed_pages;
  }

 private:
  struct Live {
    SequenceId sequence;
    const KnownText* text;
  };

  // Little is resident, or half, or all of it.
  EngineCase drawn(const Rig& /*rig*/, const Material& material) {
    std::uint64_t longest = 0;
    for (const KnownText& known : texts_) {
      longest = std::max(longest, known.text.loaded_tokens);
    }
    EngineCase with;
    with.layers = kLayers;
    with.sequences = kSequences;
    with.context_tokens = longest + kSpan;
    with.prefill_rows = kPrefillRows;
    const std::uint64_t pages = with.context_tokens / material.page_tokens();
    const std::uint64_t share = dice_.below(5);  // 0, 1, 2, 3 quarters, or everything
    if (share < 4) {
      with.moves = true;
      with.stream.group_pages = static_cast<std::uint32_t>(dice_.between(1, 16));
      with.stream.resident_pages_max = static_cast<std::uint32_t>(pages * share / 4);
    }
    return with;
  }

  void add(std::uint32_t count) {
    for (std::uint32_t index = 0; index < count; ++index) {
      const KnownText& known = texts_[dice_.below(texts_.size())];
      live_.push_back({engine_.add(known.text), &known});
    }
  }

  void note(const char* what) { ++out_["of_those"][what].get_ref<std::int64_t&>(); }

  [[nodiscard]] std::uint64_t tokens(const Live& of) {
    return take(engine_.session().tokens(of.sequence), "asking for tokens");
  }

  void make_room(const Live& of, std::uint64_t rows) {
    if (tokens(of) + rows > of.text->text.loaded_tokens + kSpan) {
      take(engine_.session().truncate(of.sequence, of.text->text.loaded_tokens), "truncating");
    }
  }

  // Some sequences, 1 to 8 rows each.
  void decode() {
    std::vector<StepRows> parts;
    std::vector<std::uint64_t> expected;
    for (const Live& of : live_) {
      if (!parts.empty() && dice_.below(2) == 0) {
        continue;
      }
      const std::uint64_t rows = dice_.between(1, kDecodeRows);
      make_room(of, rows);
      const auto from = of.text->hashes.begin() +
                        static_cast<std::ptrdiff_t>(tokens(of) - of.text->text.loaded_tokens);
      parts.push_back({of.sequence, static_cast<std::uint32_t>(rows)});
      expected.insert(expected.end(), from, from + static_cast<std::ptrdiff_t>(rows));
    }
    take(engine_.step(parts, Phase::decode), "a step");
    if (engine_.row_hashes() != expected) {
      throw Failure(fmt::format("other bits in a step of {} sequences", parts.size()));
    }
    out_["rows_compared"] = out_.value("rows_compared", std::uint64_t{0}) + expected.size();
    note("steps");
  }

  void prompt() {
    const Live& of = live_[dice_.below(live_.size())];
    const auto rows = static_cast<std::uint32_t>(dice_.between(1, kPrefillRows));
    make_room(of, rows);
    take(engine_.step(of.sequence, rows, Phase::prefill), "a prompt");
    note("prompts");
  }

  void truncate() {
    const Live& of = live_[dice_.below(live_.size())];
    const std::uint64_t to = dice_.between(of.text->text.loaded_tokens, tokens(of));
    take(engine_.session().truncate(of.sequence, to), "truncating");
    note("truncations");
  }

  void exchange() {
    const std::size_t index = dice_.below(live_.size());
    engine_.remove(live_[index].sequence);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    add(1);
    note("sequences_exchanged");
  }

  // Pages from one side to the other, in the same arena; nothing where it holds everything.
  void place() {
    const Plan& plan = engine_.session().plan();
    if (plan.mode != PlanMode::streaming) {
      return;
    }
    Placement to{plan.ring_slots, plan.group_pages, {}};
    to.group_pages = static_cast<std::uint32_t>(dice_.between(1, 8));
    to.ring_slots = std::max(2U, to.group_pages) + static_cast<std::uint32_t>(dice_.below(8));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      to.resident_pages.push_back(dice_.below(plan.pages_a_sequence + 1));
    }
    while (!replaced(plan, kSequences, to)) {
      to.group_pages = std::max(1U, to.group_pages / 2);
      to.ring_slots = std::max(2U, to.ring_slots / 2);
      for (std::uint64_t& pages : to.resident_pages) {
        pages = pages * 3 / 4;
      }
    }
    take(engine_.session().place(to), "placing");
    note("placements");
  }

  // A step that the engine gives up in its middle.
  void give_up() {
    const Live& of = live_[dice_.below(live_.size())];
    make_room(of, 1);
    const StepRows part{of.sequence, 1};
    take(engine_.session().begin_step({&part, 1}, Phase::decode), "beginning a step");
    engine_.session().cancel_step();
    note("steps_given_up");
  }

  const Material& material_;
  const std::vector<KnownText>& texts_;
  Dice& dice_;
  Counts& out_;
  Engine engine_;
  std::vector<Live> live_;
};

std::vector<KnownText> known_texts(const Rig& rig, const Material& material) {
  std::vector<KnownText> texts;
  const std::uint64_t page = material.page_tokens();
  for (const Text& text : {Text{3, 24 * page + page / 2}, Text{4, 5 * page}, Text{5, 0}}) {
    texts.push_back({text, undisturbed(rig, material, kLayers, text, kSpan + kDecodeRows)});
  }
  return texts;
}

}  // namespace

void prove_soak(const Asked& asked, Counts& out) {
  const Rig rig(asked.plugin);
  const Material material = Material::make(asked.small);
  const std::vector<KnownText> texts = known_texts(rig, material);
  Dice dice(asked.seed + 1);
  out["operations"] = std::int64_t{0};
  for (const char* const what :
       {"steps", "prompts", "truncations", "sequences_exchanged", "placements", "steps_given_up"}) {
    out["of_those"][what] = std::int64_t{0};
  }
  std::vector<Holdings> samples;
  std::uint64_t sessions = 0;
  const auto begin = Clock::now();
  while (seconds_since(begin) < asked.soak_seconds) {
    Stretch(rig, material, texts, dice, out).run(dice.between(20, 80));
    samples.push_back(holdings(rig));
    out["sessions"] = ++sessions;
    out["seconds"] = seconds_since(begin);
  }
  judge_flat(samples, {}, out["held"]);
}

}  // namespace kvspan::cuda_proof
