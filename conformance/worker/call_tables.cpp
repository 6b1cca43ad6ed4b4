// SPDX-License-Identifier: Apache-2.0
// Slots that find the Calls of the moment. Read next: call_tables.hpp.
#include "worker/call_tables.hpp"

namespace kvspan::conformance {
namespace {

const Calls*& current() {
  static const Calls* calls = nullptr;
  return calls;
}

/// The slot of a table that calls a method of Calls of the same arguments.
template <auto Method>
struct Through;

template <class... A, kvspan_result_t (Calls::*Method)(A...) const>
struct Through<Method> {
  static kvspan_result_t KVSPAN_CALL slot(A... arguments) noexcept {
    return (current()->*Method)(arguments...);
  }
};

}  // namespace

CallTables::CallTables(const Calls& calls)
    : memory_(*calls.tables().memory),
      copy_(*calls.tables().copy),
      codec_(*calls.tables().codec),
      tables_(calls.tables()) {
  current() = &calls;
  memory_.release = Through<&Calls::release>::slot;
  copy_.copy = Through<&Calls::copy>::slot;
  copy_.fill = Through<&Calls::fill>::slot;
  codec_.encode = Through<&Calls::encode>::slot;
  codec_.decode = Through<&Calls::decode>::slot;
  tables_.memory = &memory_;
  tables_.copy = &copy_;
  tables_.codec = &codec_;
  if (tables_.attention != nullptr) {
    attention_ = *tables_.attention;
    attention_.run = Through<&Calls::run>::slot;
    attention_.advance = Through<&Calls::advance>::slot;
    attention_.fold = Through<&Calls::fold>::slot;
    attention_.finish = Through<&Calls::finish>::slot;
    tables_.attention = &attention_;
  }
}

CallTables::~CallTables() {
  current() = nullptr;
}

}  // namespace kvspan::conformance
