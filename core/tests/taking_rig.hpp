// SPDX-License-Identifier: Apache-2.0
// The stub with a prepare() in front that says it takes device memory for itself, as much as a test
// makes of what it is asked for. One at a time: slots have no place for whose they are. Read first:
// stub_rig.hpp.
#pragma once

#include "stub_rig.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace kvspan::test {

class TakingRig {
 public:
  using Takes = std::function<std::uint64_t(const kvspan_prepare_t& request)>;

  explicit TakingRig(Takes takes) {
    inner_ = rig_.backend().tables();
    takes_ = std::move(takes);
    taken_ = calls_ = 0;
    refused_ = false;
    device_ = *inner_.device;
    device_.prepare = prepare;
    BackendTables tables = inner_;
    tables.device = &device_;
    backend_.emplace(tables, rig_.backend().device(), rig_.backend().info());
  }

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  // What the last prepare() took.
  [[nodiscard]] static std::uint64_t taken() { return taken_; }

  [[nodiscard]] static std::uint64_t calls() { return calls_; }

  // From now on prepare() is refused.
  static void refuse() { refused_ = true; }

 private:
  static kvspan_result_t prepare(kvspan_device_t* device,
                                 const kvspan_prepare_t* request,
                                 kvspan_prepared_t* out,
                                 kvspan_error_t* error) noexcept {
    if (refused_) {
      return KVSPAN_E_UNSUPPORTED;
    }
    const kvspan_result_t result = inner_.device->prepare(device, request, out, error);
    ++calls_;
    taken_ = takes_(*request);
    out->device_bytes = taken_;
    return result;
  }

  inline static BackendTables inner_;
  inline static Takes takes_;
  inline static std::uint64_t taken_ = 0;
  inline static std::uint64_t calls_ = 0;
  inline static bool refused_ = false;

  StubRig rig_;
  kvspan_device_table_t device_{};
  std::optional<Backend> backend_;
};

}  // namespace kvspan::test
