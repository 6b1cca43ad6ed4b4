// SPDX-License-Identifier: Apache-2.0
// Tuples taken apart. Read next: tuple.hpp.
#include "worker/tuple.hpp"

#include <charconv>
#include <sstream>
#include <utility>

namespace kvspan::conformance {
namespace {

constexpr std::pair<kvspan_type_t, const char*> kTypeNames[] = {{KVSPAN_TYPE_F32, "f32"},
                                                                {KVSPAN_TYPE_F16, "f16"},
                                                                {KVSPAN_TYPE_BF16, "bf16"},
                                                                {KVSPAN_TYPE_Q8_0, "q8_0"},
                                                                {KVSPAN_TYPE_Q5_1, "q5_1"},
                                                                {KVSPAN_TYPE_Q5_0, "q5_0"},
                                                                {KVSPAN_TYPE_Q4_1, "q4_1"},
                                                                {KVSPAN_TYPE_Q4_0, "q4_0"}};

const Tuple& any() {
  static const Tuple tuple;
  return tuple;
}

bool read_size(const std::string& text, std::optional<uint32_t>& out) {
  constexpr uint32_t kMost = 4096;
  uint32_t size = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), size);
  out = size;
  return end.ec == std::errc() && end.ptr == text.data() + text.size() && size != 0 &&
         size <= kMost;
}

bool read_type(const std::string& text, std::optional<kvspan_type_t>& out) {
  kvspan_type_t type = 0;
  const bool known = find_type(text, type);
  out = type;
  return known;
}

}  // namespace

bool find_type(const std::string& name, kvspan_type_t& out) {
  for (const auto& [type, known] : kTypeNames) {
    if (name == known) {
      out = type;
      return true;
    }
  }
  return false;
}

std::string type_name(kvspan_type_t type) {
  for (const auto& [known, name] : kTypeNames) {
    if (known == type) {
      return name;
    }
  }
  return "";
}

std::string read_tuple(const std::string& text, Tuple& out) {
  out = {};
  out.text = text;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    const bool good = key == "k"    ? !out.k_type && read_type(value, out.k_type)
                      : key == "v"  ? !out.v_type && read_type(value, out.v_type)
                      : key == "hd" ? !out.head_size && read_size(value, out.head_size)
                                    : false;
    if (!good) {
      std::string names;
      for (const auto& [type, name] : kTypeNames) {
        names += std::string(names.empty() ? "" : ", ") + name;
      }
      return "--tuple " + text + ": '" + part +
             "' is not understood: write k=TYPE,v=TYPE,hd=SIZE, each at most once, with the "
             "types " +
             names + " and a size from 1 to 4096";
    }
  }
  return out.k_type || out.v_type || out.head_size ? "" : "--tuple " + text + ": it names nothing";
}

const Tuple* tuple_of(const std::vector<Tuple>& tuples, kvspan_type_t k, kvspan_type_t v) {
  for (const Tuple& tuple : tuples) {
    if (tuple.fits(k, v)) {
      return &tuple;
    }
  }
  return tuples.empty() ? &any() : nullptr;
}

const Tuple* tuple_with(const std::vector<Tuple>& tuples, kvspan_type_t type) {
  for (const Tuple& tuple : tuples) {
    if (tuple.k_type.value_or(type) == type || tuple.v_type.value_or(type) == type) {
      return &tuple;
    }
  }
  return tuples.empty() ? &any() : nullptr;
}

}  // namespace kvspan::conformance
