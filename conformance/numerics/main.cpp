// SPDX-License-Identifier: Apache-2.0
// kvspan-numerics: how near a backend's attention comes to double precision, a line for each pair
// of K and V types, head size and error class that it tells apart: the oracle and the bounds are
// those of the cases (cases/oracle.hpp). Exit status: 0 all within their bounds, 1 one is not,
// 2 wrong options, 3 the plugin does not open or refuses a pair.
#include "cases/oracle.hpp"
#include "worker/tuple.hpp"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace kvspan::conformance {
namespace {

using Line = nlohmann::ordered_json;

constexpr uint32_t kHeadSizes[] = {64, 128, 256};
constexpr uint64_t kTokens = 700;  // several splits and tiles, the last ones begun
constexpr uint32_t kRows = 3;
constexpr uint64_t kHistoryBytes = uint64_t{8} << 20;  // histories, rows, outputs

struct Asked {
  Settings settings;
  std::string json;
  std::string commit = "unknown";
};

struct Errors {
  double most = 0;  // largest |error| over the bound's share of the largest |V|
  double rms = 0;   // root of the NMSE over that of the bound
};

// Both as parts of what the error class allows: 1 is just allowed.
Errors errors_of(const Output& got, const Expected& want, const Bound& bound) {
  const std::vector<float> values = values_of(got, KVSPAN_TYPE_F32);
  double largest = 0;
  double error2 = 0;
  double want2 = 0;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    const double error = std::fabs(double{values[i]} - want.out[i]);
    largest = std::isnan(error) ? INFINITY : std::max(largest, error);
    error2 += error * error;
    want2 += want.out[i] * want.out[i];
  }
  const double rms = std::sqrt(error2 / want2 / bound.nmse);
  return {largest / (bound.most * want.v_max), std::isnan(rms) ? INFINITY : rms};
}

class Table {
 public:
  explicit Table(const Asked& asked) : asked_(asked), rig_(Rig::open(asked.settings)) {
    if (rig_ != nullptr) {
      arenas_ = std::make_unique<Arenas>(*rig_, kHistoryBytes);
    }
  }

  bool opened() const { return rig_ != nullptr; }

  std::string device() const { return rig_->info().name; }

  void close() { rig_->close(); }

  void measure(Line& lines) {
    for (const uint32_t head_size : kHeadSizes) {
      for (const kvspan_type_t k_type : kTypes) {
        for (const kvspan_type_t v_type : kTypes) {
          uint32_t before = UINT32_MAX;
          for (const uint32_t asked : {KVSPAN_ERROR_E0, KVSPAN_ERROR_E1}) {
            Scene scene = scene_of(k_type, v_type, head_size, asked);
            if (scene.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
              refused_ += asked == KVSPAN_ERROR_E1 ? 1 : 0;
            } else if (scene.caps.error_class != before) {
              before = scene.caps.error_class;
              lines.push_back(line_of(scene));
            }
          }
        }
      }
    }
  }

  uint32_t refused() const { return refused_; }

  double worst() const { return worst_; }

 private:
  Scene scene_of(kvspan_type_t k_type, kvspan_type_t v_type, uint32_t head_size, uint32_t asked) {
    Scene scene;
    scene.geometry.k_type = k_type;
    scene.geometry.v_type = v_type;
    scene.geometry.head_size_k = scene.geometry.head_size_v = head_size;
    scene.geometry.kv_heads = 2;
    scene.geometry.q_heads = 4;
    scene.shape = shape_of(scene.geometry);
    scene.shape.error_class = asked;
    scene.scale = 1.0F / std::sqrt(static_cast<float>(head_size));
    scene.caps = ask(*rig_, scene.shape);
    return scene;
  }

  // The worse of one call and of parts.
  Line line_of(Scene& scene) {
    const Geometry& geometry = scene.geometry;
    Dice dice(asked_.settings, geometry.k_type * 100 + geometry.v_type + geometry.head_size_k);
    const History history = History::random(geometry, kTokens, dice);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, kTokens, kRows, dice);
    scene.sequences = {sequence};
    const Expected want = expect(scene, sequence);
    const Bound bound = bound_of(scene.caps, scene.shape);
    Errors errors;
    const kvspan_attention_caps_t& caps = scene.caps;
    arenas_->make_room(kHistoryBytes + caps.run_workspace_bytes + caps.advance_workspace_bytes +
                       (caps.split_count + 1ULL) *
                           (caps.state_u_bytes + caps.state_ml_bytes + 1024));
    for (const bool parts : {false, true}) {
      arenas_->reset();
      const auto pieces =
          random_pieces(kTokens, caps.span_granule, 1u << KVSPAN_MEMORY_DEVICE, dice);
      const Placement placement(*arenas_, history, pieces, {}, Poison::nan, dice);
      scene.sequences[0].spans = placement.spans();
      Stage stage(*arenas_, scene, dice);
      kvspan_error_t error = fresh_error();
      const kvspan_result_t result = parts ? stage.by_parts(dice, &error) : stage.run(&error);
      EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
      const Errors these = result == KVSPAN_OK ? errors_of(stage.outputs().at(0), want, bound)
                                               : Errors{INFINITY, INFINITY};
      errors = {std::max(errors.most, these.most), std::max(errors.rms, these.rms)};
    }
    worst_ = std::max({worst_, errors.most, errors.rms});
    return {{"k", type_name(geometry.k_type)},
            {"v", type_name(geometry.v_type)},
            {"head_size", geometry.head_size_k},
            {"class", "E" + std::to_string(scene.caps.error_class)},
            {"max_of_bound", errors.most},
            {"rms_of_bound", errors.rms}};
  }

  const Asked& asked_;
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<Arenas> arenas_;
  uint32_t refused_ = 0;
  double worst_ = 0;
};

int run(const Asked& asked) {
  Table table(asked);
  if (!table.opened()) {
    return 3;
  }
  Line out;
  out["commit"] = asked.commit;
  out["device"] = table.device();
  out["seed"] = asked.settings.seed;
  out["tokens"] = kTokens;
  out["rows"] = kRows;
  out["bounds"] = "1 is just allowed: |error| over the largest |V|, and root of the NMSE";
  Line lines = Line::array();
  table.measure(lines);
  table.close();
  out["refused_pairs"] = table.refused();
  out["worst"] = table.worst();
  const std::size_t count = lines.size();
  out["lines"] = std::move(lines);
  if (!asked.json.empty()) {
    std::ofstream(asked.json) << out.dump(1) << '\n';
  }
  const bool failed = testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  std::printf("%zu lines, %u pairs refused, worst %.3f of its bound, seed %llu%s\n",
              count,
              table.refused(),
              table.worst(),
              static_cast<unsigned long long>(asked.settings.seed),
              failed ? ", calls failed" : "");
  return table.refused() != 0 ? 3 : table.worst() <= 1.0 && !failed ? 0 : 1;
}

int run_command_line(int count, char** arguments) {
  CLI::App app{"How near a backend's attention comes to double precision, pair by pair"};
  Asked asked;
  app.add_option("--plugin", asked.settings.plugin_path, "kvspan-<name>.so")->required();
  app.add_option("--device", asked.settings.device, "Index (0)");
  app.add_option("--seed", asked.settings.seed, "Of every random choice (0)");
  app.add_option("--json", asked.json, "File for the table");
  app.add_option("--commit", asked.commit, "Written into it");
  CLI11_PARSE(app, count, arguments);
  adopt(asked.settings);
  return run(asked);
}

}  // namespace
}  // namespace kvspan::conformance

int main(int count, char** arguments) {
  try {
    return kvspan::conformance::run_command_line(count, arguments);
  } catch (const std::exception& failed) {  // what ends a case, where it is no case
    static_cast<void>(std::fprintf(stderr, "error: %s\n", failed.what()));
    return 3;
  }
}
