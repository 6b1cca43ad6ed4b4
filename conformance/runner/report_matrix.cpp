// SPDX-License-Identifier: Apache-2.0
// Tables of capabilities. Read next: report_matrix.hpp.
#include "report_matrix.hpp"

#include "report_facts.hpp"
#include "worker_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace kvspan::runner {

namespace {

using nlohmann::json;

std::uint64_t number(const json& object, const char* key) {
  const auto field = object.find(key);
  return field != object.end() && field->is_number_unsigned() ? field->get<std::uint64_t>() : 0;
}

json part(const json& probe, const char* key) {
  const auto field = probe.is_object() ? probe.find(key) : probe.end();
  return probe.is_object() && field != probe.end() ? *field : json();
}

// In the order of first appearance.
class Axis {
 public:
  std::size_t index(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) {
      return static_cast<std::size_t>(found - names_.begin());
    }
    names_.push_back(name);
    return names_.size() - 1;
  }

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// A cell: the level as a word, the rest as a hint.
std::string cell(const json& line) {
  const std::string level = text_field(line, "level").empty() ? "?" : text_field(line, "level");
  return fmt::format(
      "<td class=\"level-{0}\" data-k=\"{1}\" data-v=\"{2}\" title=\"error class E{3}, N = {4}, "
      "workspace {5} bytes, reasons {6:#x}\">{0}</td>",
      escaped(level),
      escaped(text_field(line, "k")),
      escaped(text_field(line, "v")),
      number(line, "error_class"),
      number(line, "split_count"),
      number(line, "workspace_bytes"),
      number(line, "reasons"));
}

struct Sheet {
  Axis rows;
  Axis columns;
  std::map<std::pair<std::size_t, std::size_t>, std::string> cells;
};

std::string sheet_html(const Sheet& sheet, const std::string& caption) {
  std::string out = fmt::format(
      "<table class=\"matrix\"><caption>{}</caption>\n<tr><th scope=\"col\">K \\ V</th>",
      escaped(caption));
  for (const std::string& column : sheet.columns.names()) {
    out += fmt::format("<th scope=\"col\">{}</th>", escaped(column));
  }
  out += "</tr>\n";
  for (std::size_t row = 0; row < sheet.rows.names().size(); ++row) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", escaped(sheet.rows.names()[row]));
    for (std::size_t column = 0; column < sheet.columns.names().size(); ++column) {
      const auto found = sheet.cells.find({row, column});
      out += found != sheet.cells.end() ? found->second : "<td>not asked</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string attention_html(const json& lines) {
  if (!lines.is_array() || lines.empty()) {
    return "<p>The probe names no attention: the plugin offers no attention table, or has no "
           "device here.</p>\n";
  }
  Axis sizes;
  std::vector<Sheet> sheets;
  for (const json& line : lines) {
    if (!line.is_object()) {
      continue;
    }
    const std::uint64_t k = number(line, "head_size_k");
    const std::uint64_t v = number(line, "head_size_v");
    const std::size_t size =
        sizes.index(k == v ? fmt::format("head size {}", k)
                           : fmt::format("head size {} for K, {} for V", k, v));
    sheets.resize(std::max(sheets.size(), size + 1));
    Sheet& sheet = sheets[size];
    const auto place = std::pair(sheet.rows.index(text_field(line, "k")),
                                 sheet.columns.index(text_field(line, "v")));
    sheet.cells[place] = cell(line);
  }
  std::string out;
  for (std::size_t i = 0; i < sheets.size(); ++i) {
    out += sheet_html(sheets[i], sizes.names()[i]);
  }
  return "<div class=\"matrices\">" + out + "</div>\n";
}

// One line of name and level each.
std::string levels_html(const json& levels, const char* caption) {
  if (!levels.is_object() || levels.empty()) {
    return {};
  }
  std::string out = fmt::format("<table class=\"matrix\"><caption>{}</caption>\n", caption);
  for (const auto& [key, value] : levels.items()) {
    const std::string level = value.is_string() ? value.get<std::string>() : value.dump();
    out += fmt::format("<tr><th scope=\"row\">{0}</th><td class=\"level-{1}\">{1}</td></tr>\n",
                       escaped(key),
                       escaped(level));
  }
  return out + "</table>\n";
}

std::string codec_html(const json& lines) {
  if (!lines.is_array() || lines.empty()) {
    return {};
  }
  std::string out =
      "<table class=\"matrix\"><caption>Codec</caption>\n<tr><th scope=\"col\">rows</th>"
      "<th scope=\"col\">type</th><th scope=\"col\">head size</th><th scope=\"col\">encode</th>"
      "<th scope=\"col\">decode</th></tr>\n";
  for (const json& line : lines) {
    if (!line.is_object()) {
      continue;
    }
    out += fmt::format(
        "<tr><td>{0}</td><td>{1}</td><td>{2}</td><td class=\"level-{3}\">{3}</td>"
        "<td class=\"level-{4}\">{4}</td></tr>\n",
        escaped(text_field(line, "row_type")),
        escaped(text_field(line, "type")),
        number(line, "head_size"),
        escaped(text_field(line, "encode")),
        escaped(text_field(line, "decode")));
  }
  return "<details><summary>Codec, type by type</summary>" + out + "</table></details>\n";
}

std::string device_html(const json& probe) {
  const json device = part(probe, "device");
  if (!device.is_object()) {
    return {};
  }
  std::string out = "<table class=\"facts\"><caption>Device</caption>\n";
  for (const auto& [key, value] : device.items()) {
    out += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n",
                       escaped(key),
                       escaped(value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return "<details><summary>Device, as it describes itself</summary>" + out +
         "</table></details>\n";
}

}  // namespace

std::string matrix_html(const json& probe) {
  return attention_html(part(probe, "attention")) + "<div class=\"matrices\">" +
         levels_html(part(probe, "attention_options"), "Options") +
         levels_html(part(probe, "row_classes"), "Row classes") + "</div>\n" +
         codec_html(part(probe, "codec")) + device_html(probe);
}

}  // namespace kvspan::runner
