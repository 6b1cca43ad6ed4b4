// SPDX-License-Identifier: Apache-2.0
// A tuple of K type, V type and head size, as --tuple names it: what a run is about when it is not
// about all of them. Not here: which cases look at it (takes_tuple in case.hpp).
#ifndef KVSPAN_CONFORMANCE_WORKER_TUPLE_H
#define KVSPAN_CONFORMANCE_WORKER_TUPLE_H

#include "kvspan/types.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvspan::conformance {

/// The types that K and V may have, those of rows first.
inline constexpr kvspan_type_t kTypes[] = {KVSPAN_TYPE_F32,
                                           KVSPAN_TYPE_F16,
                                           KVSPAN_TYPE_BF16,
                                           KVSPAN_TYPE_Q8_0,
                                           KVSPAN_TYPE_Q5_1,
                                           KVSPAN_TYPE_Q5_0,
                                           KVSPAN_TYPE_Q4_1,
                                           KVSPAN_TYPE_Q4_0};

struct Tuple {
  std::string text;  // as it was written
  std::optional<kvspan_type_t> k_type;
  std::optional<kvspan_type_t> v_type;
  std::optional<uint32_t> head_size;  // of K and V alike

  bool fits(kvspan_type_t k, kvspan_type_t v) const {
    return k_type.value_or(k) == k && v_type.value_or(v) == v;
  }
};

/// Reads "k=q8_0,v=q4_0,hd=128", any of the three, each once. Returns what is wrong with it, or "".
std::string read_tuple(const std::string& text, Tuple& out);

/// The first tuple that such a pair fits; one that fits everything where there are no tuples; NULL
/// when the pair is not asked for. Points into `tuples` or at something that lives for ever.
const Tuple* tuple_of(const std::vector<Tuple>& tuples, kvspan_type_t k, kvspan_type_t v);

/// The same for one type, as K or as V.
const Tuple* tuple_with(const std::vector<Tuple>& tuples, kvspan_type_t type);

/// "q8_0" to its number and back; false for a name that there is not, "" for such a number.
bool find_type(const std::string& name, kvspan_type_t& out);
std::string type_name(kvspan_type_t type);

}  // namespace kvspan::conformance

#endif
