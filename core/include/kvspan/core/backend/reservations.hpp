// SPDX-License-Identifier: Apache-2.0
// What the sessions of one device have asked prepare() for. A device knows one request, the last:
// so each new one holds all that live sessions asked for, and what they were promised stays true.
// Not here: what a session asks for (session/open.cpp). Read next: backend.hpp.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/kvspan.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace kvspan {

// One session's largest submits. limits.shapes and limits.shape_count are not looked at.
struct ReservedSubmits {
  kvspan_prepare_t limits{};
  std::vector<kvspan_attention_shape_t> shapes;
};

// Of one device; copies of a Backend share it. Thread class: ANY.
class Reservations {
 public:
  // `owner` will make submits up to `asked`, in place of what it asked for before. Returns the
  // bytes of device memory that the backend took for that, beyond what it had taken for the other
  // owners: 0 where theirs suffices, and then the device is not asked. What an owner that is gone
  // left on the device counts only while others' submits in flight keep it there. Nothing is
  // changed by an error. Errors: prepare()'s own; `busy` while submits of another owner are in
  // flight and more is needed: wait for them and try again.
  [[nodiscard]] Result<std::uint64_t> reserve(const kvspan_device_table_t& table,
                                              kvspan_device_t* device,
                                              const void* owner,
                                              const ReservedSubmits& asked);

  // What reserve() would answer an owner that comes now, though none does. Errors: as reserve().
  [[nodiscard]] Result<std::uint64_t> ask(const kvspan_device_table_t& table,
                                          kvspan_device_t* device,
                                          const ReservedSubmits& asked);

  // The owner makes no more submits. The device keeps what it has until somebody reserves more.
  void release(const void* owner);

 private:
  struct Owner {
    ReservedSubmits asked;
    std::uint64_t before_bytes = 0;  // held when the owner came
  };

  [[nodiscard]] ReservedSubmits of_others(const void* owner) const;
  [[nodiscard]] Result<void> prepare(const kvspan_device_table_t& table,
                                     kvspan_device_t* device,
                                     ReservedSubmits all);
  [[nodiscard]] Result<void> make_ready(const kvspan_device_table_t& table,
                                        kvspan_device_t* device,
                                        ReservedSubmits all,
                                        bool alone);

  std::mutex mutex_;
  std::map<const void*, Owner> owners_;
  ReservedSubmits held_;  // what the device was asked for last
  std::uint64_t device_bytes_ = 0;
  std::uint64_t owned_bytes_ = 0;  // of those, with the newest owner
  const void* newest_ = nullptr;
};

}  // namespace kvspan
