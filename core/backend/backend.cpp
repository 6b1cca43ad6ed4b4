// SPDX-License-Identifier: Apache-2.0
// Backend: calls of the mandatory tables that are not submits, with failures as values.
#include "kvspan/core/backend/backend.hpp"

#include "kvspan/core/layout/kv_type.hpp"

#include <algorithm>
#include <string>

namespace kvspan {

kvspan_error_t empty_error() {
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  return error;
}

DeviceMemory::~DeviceMemory() {
  if (memory_ != nullptr) {
    // BUSY here would be a bug of an owner that did not drain; the device's close reports what is
    // still alive.
    (void)table_->release(memory_, nullptr);
  }
}

Result<DeviceMemory> Backend::allocate(std::uint32_t kind, std::uint64_t size_bytes) const {
  kvspan_memory_t* memory = nullptr;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = tables_.memory->alloc(device_, kind, size_bytes, &memory, &error);
  if (result != KVSPAN_OK) {
    const bool local = kind == KVSPAN_MEMORY_DEVICE;
    return tl::unexpected(
        from_abi(result, error, local ? "allocating device memory" : "allocating host memory"));
  }
  return DeviceMemory(tables_.memory, memory, size_bytes);
}

Result<DeviceMemory> Backend::import_host(void* address, std::uint64_t size_bytes) const {
  kvspan_memory_t* memory = nullptr;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result =
      tables_.memory->import_host(device_, address, size_bytes, &memory, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "importing host pages"));
  }
  return DeviceMemory(tables_.memory, memory, size_bytes);
}

Result<void*> Backend::map(const DeviceMemory& memory) const {
  void* address = nullptr;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = tables_.memory->map(memory.get(), &address, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "mapping host memory"));
  }
  return address;
}

Result<kvspan_copy_limits_t> Backend::copy_limits() const {
  kvspan_copy_limits_t limits{};
  limits.struct_size = sizeof limits;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = tables_.copy->limits(device_, &limits, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "asking for the limits of copies"));
  }
  return limits;
}

std::uint64_t copy_alignment(const kvspan_copy_limits_t& limits) {
  return std::max({limits.source_alignment,
                   limits.target_alignment,
                   limits.bytes_alignment,
                   limits.pitch_alignment,
                   std::uint64_t{1}});
}

namespace {

std::string type_name(kvspan_type_t id) {
  const auto type = kv_type(id);
  return type ? std::string(type->name) : "type " + std::to_string(id);
}

std::string reasons_text(std::uint32_t reasons) {
  struct Word {
    std::uint32_t bit;
    const char* text;
  };

  static constexpr Word kWords[] = {{KVSPAN_WHY_K_TYPE, "K type"},
                                    {KVSPAN_WHY_V_TYPE, "V type"},
                                    {KVSPAN_WHY_PAIR, "this pair of types"},
                                    {KVSPAN_WHY_HEAD_SIZE, "head size"},
                                    {KVSPAN_WHY_BLOCK, "quant block"},
                                    {KVSPAN_WHY_GROUP, "query heads a KV head"},
                                    {KVSPAN_WHY_ROWS, "rows"},
                                    {KVSPAN_WHY_ROW_TYPE, "query or output type"},
                                    {KVSPAN_WHY_OPTION, "an option"},
                                    {KVSPAN_WHY_ERROR_CLASS, "error class"},
                                    {KVSPAN_WHY_MEMORY_KIND, "memory kind"},
                                    {KVSPAN_WHY_SPANS, "spans"},
                                    {KVSPAN_WHY_TOKENS, "tokens"},
                                    {KVSPAN_WHY_ENTRIES, "entries"}};
  std::string text;
  for (const Word& word : kWords) {
    if ((reasons & word.bit) != 0) {
      text += text.empty() ? "" : ", ";
      text += word.text;
    }
  }
  return text.empty() ? "no reason given" : text;
}

Error unsupported_shape(const kvspan_attention_shape_t& shape,
                        const kvspan_attention_caps_t& caps) {
  std::string message =
      "the backend has no native attention for K " + type_name(shape.k_type) + " x V " +
      type_name(shape.v_type) + ", head size " + std::to_string(shape.head_size_k) + "/" +
      std::to_string(shape.head_size_v) + ", " + std::to_string(shape.q_heads) + " query over " +
      std::to_string(shape.kv_heads) + " KV heads (refused: " + reasons_text(caps.reasons) + ")";
  if (caps.nearest_head_size_k != 0) {
    message += "; K " + type_name(caps.nearest_k_type) + " x V " + type_name(caps.nearest_v_type) +
               " with head size " + std::to_string(caps.nearest_head_size_k) + "/" +
               std::to_string(caps.nearest_head_size_v) + " would work";
  }
  return error_of(Errc::unsupported, std::move(message), "attention");
}

}  // namespace

Result<kvspan_attention_caps_t> Backend::query(const kvspan_attention_shape_t& shape) const {
  if (tables_.attention == nullptr) {
    return tl::unexpected(
        error_of(Errc::unsupported,
                 "the backend offers no attention table, so it can keep KV but not "
                 "attend to it; use a backend that does",
                 "attention"));
  }
  kvspan_attention_caps_t caps{};
  caps.struct_size = sizeof caps;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = tables_.attention->query(device_, &shape, &caps, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "asking what attention is offered"));
  }
  if (caps.level < KVSPAN_LEVEL_NATIVE) {
    return tl::unexpected(unsupported_shape(shape, caps));
  }
  return caps;
}

}  // namespace kvspan
