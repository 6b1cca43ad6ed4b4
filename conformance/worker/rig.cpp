// SPDX-License-Identifier: Apache-2.0
// Memory, queues and waiting for the cases. Opening and closing: rig_open.cpp.
#include "worker/rig.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace kvspan::conformance {
namespace {

constexpr uint64_t kRounding = 4096;  // buffers are whole pages, so that any alignment limit holds

uint64_t rounded(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

kvspan_error_t fresh_error() {
  kvspan_error_t error = {};
  error.struct_size = sizeof error;
  return error;
}

std::string told(kvspan_result_t result, const kvspan_error_t& error) {
  if (result == KVSPAN_OK) {
    return "OK";
  }
  std::ostringstream text;
  text << "result " << result << " from " << error.where << ": " << error.message << " (argument "
       << error.argument << ", field offset " << error.field_offset << ", required "
       << error.required << ", provided " << error.provided << ", reasons 0x" << std::hex
       << error.reasons << ")";
  return text.str();
}

void Buffer::fill_canary(uint64_t seed) {
  constexpr std::size_t kPeriod = 4093;  // prime, so that no stride of a layout falls in step
  Dice dice(seed);
  std::size_t filled = std::min(kPeriod, image.size());
  for (std::size_t i = 0; i < filled; ++i) {
    image[i] = static_cast<uint8_t>(1 + dice.below(255));
  }
  while (filled < image.size()) {
    const std::size_t bytes = std::min(filled, image.size() - filled);
    std::memcpy(image.data() + filled, image.data(), bytes);
    filled += bytes;  // doubles, a multiple of the period until the last time
  }
}

Submit& Submit::wait(kvspan_point_t point) {
  waits_.push_back(point);
  return *this;
}

Submit& Submit::signal(kvspan_point_t point) {
  signals_.push_back(point);
  return *this;
}

Submit& Submit::cancel(const Buffer& word, uint64_t offset) {
  fields.cancel_memory = word.memory;
  fields.cancel_offset = offset;
  return *this;
}

const kvspan_submit_t* Submit::raw() {
  fields.struct_size = sizeof fields;
  fields.wait_count = static_cast<uint32_t>(waits_.size());
  fields.signal_count = static_cast<uint32_t>(signals_.size());
  fields.waits = waits_.data();
  fields.signals = signals_.data();
  return &fields;
}

bool Rig::offers(uint32_t kind) const {
  return kind != KVSPAN_MEMORY_IMPORTED || info_.import_alignment != 0;
}

Buffer* Rig::allocate(uint32_t kind, uint64_t bytes) {
  const uint64_t unit = std::max<uint64_t>(kRounding, info_.import_alignment);
  auto buffer = std::make_unique<Buffer>();
  buffer->kind = kind;
  buffer->image.resize(rounded(std::max<uint64_t>(bytes, 1), unit));
  buffer->fill_canary(buffers_.size() + 77);
  kvspan_error_t error = fresh_error();
  kvspan_result_t result = KVSPAN_OK;
  if (kind == KVSPAN_MEMORY_IMPORTED) {
    void* pages = std::aligned_alloc(unit, buffer->bytes());
    pages_.push_back(pages);
    std::memset(pages, 0xA5, buffer->bytes());
    result = tables().memory->import_host(device_, pages, buffer->bytes(), &buffer->memory, &error);
  } else {
    result = tables().memory->alloc(device_, kind, buffer->bytes(), &buffer->memory, &error);
  }
  if (result != KVSPAN_OK) {
    ADD_FAILURE() << "memory of kind " << kind << ": " << told(result, error);
    return nullptr;
  }
  void* address = nullptr;
  if (kind != KVSPAN_MEMORY_DEVICE || has(KVSPAN_DEVICE_MAP_LOCAL)) {
    result = tables().memory->map(buffer->memory, &address, &error);
    EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  }
  // Device memory is always reached by copies, even where it could be mapped: both ways are needed.
  buffer->mapped = kind == KVSPAN_MEMORY_DEVICE ? nullptr : static_cast<uint8_t*>(address);
  buffers_.push_back(std::move(buffer));
  return buffers_.back().get();
}

void Rig::release(Buffer* buffer) {
  const auto found = std::find_if(
      buffers_.begin(), buffers_.end(), [&](const auto& held) { return held.get() == buffer; });
  if (found == buffers_.end()) {
    return;
  }
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = calls_->release(buffer->memory, &error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  buffers_.erase(found);
}

void Rig::forget(Buffer* buffer) {
  buffers_.erase(
      std::remove_if(
          buffers_.begin(), buffers_.end(), [&](const auto& held) { return held.get() == buffer; }),
      buffers_.end());
}

void Rig::move_bytes(const Buffer& buffer, uint8_t* host, uint64_t bytes, bool up) {
  constexpr uint64_t kStagingBytes = uint64_t{1} << 20;
  if (bytes == 0) {
    return;
  }
  if (buffer.mapped != nullptr) {
    std::memcpy(up ? buffer.mapped : host, up ? host : buffer.mapped, bytes);
    return;
  }
  if (staging_ == nullptr) {
    staging_ = allocate(KVSPAN_MEMORY_HOST, kStagingBytes);
  }
  ASSERT_NE(staging_, nullptr);
  ASSERT_NE(staging_->mapped, nullptr) << "HOST memory that cannot be mapped";
  for (uint64_t at = 0; at < bytes; at += kStagingBytes) {
    kvspan_segment_t segment = {};
    segment.bytes = std::min(kStagingBytes, bytes - at);
    segment.rows = 1;
    segment.source = up ? staging_->memory : buffer.memory;
    segment.target = up ? buffer.memory : staging_->memory;
    segment.source_offset = up ? 0 : at;
    segment.target_offset = up ? at : 0;
    if (up) {
      std::memcpy(staging_->mapped, host + at, segment.bytes);
    }
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = settle(
        up ? KVSPAN_ROLE_UPLOAD : KVSPAN_ROLE_DOWNLOAD,
        [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* out) {
          return tables().copy->copy(queue, &segment, 1, submit, out);  // never broken
        },
        &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
    if (!up) {
      std::memcpy(host + at, staging_->mapped, segment.bytes);
    }
  }
}

void Rig::upload(const Buffer& buffer, uint64_t bytes) {
  const uint64_t count =
      std::min(buffer.bytes(), rounded(std::min(bytes, buffer.bytes()), kRounding));
  move_bytes(buffer, const_cast<uint8_t*>(buffer.image.data()), count, true);
}

Bytes Rig::download(const Buffer& buffer, uint64_t bytes) {
  const uint64_t count =
      std::min(buffer.bytes(), rounded(std::min(bytes, buffer.bytes()), kRounding));
  Bytes found(count);
  move_bytes(buffer, found.data(), count, false);
  return found;
}

::testing::AssertionResult Rig::unchanged(const Buffer& buffer) {
  const Bytes now = download(buffer);
  const auto differs = std::mismatch(now.begin(), now.end(), buffer.image.begin());
  if (differs.first == now.end()) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "byte " << differs.first - now.begin() << " of " << now.size() << " is "
         << int{*differs.first} << ", expected " << int{*differs.second};
}

kvspan_result_t Rig::settle(
    uint32_t role,
    const std::function<kvspan_result_t(kvspan_queue_t*, const kvspan_submit_t*, kvspan_error_t*)>&
        work,
    kvspan_error_t* error) {
  Lane& target = lane(role);
  Submit submit;
  const kvspan_point_t point = target.next();
  submit.signal(point);
  submit.fields.submit_id = point.value;
  const kvspan_result_t result = work(target.queue, submit.raw(), error);
  if (result != KVSPAN_OK) {
    --target.value;
    return result;
  }
  return wait(point, error);
}

kvspan_result_t Rig::wait(kvspan_point_t point, kvspan_error_t* error) const {
  return tables().fence->wait(device_, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, error);
}

kvspan_result_t Rig::fill(const Lane& on,
                          const Buffer& buffer,
                          uint8_t byte,
                          Submit& submit) const {
  const kvspan_range_t range = {buffer.memory, 0, buffer.bytes()};
  return calls().fill(on.queue, &range, byte, 1, submit.raw(), nullptr);
}

kvspan_result_t Rig::copy(const Lane& on,
                          const Buffer& source,
                          const Buffer& target,
                          Submit& submit,
                          kvspan_error_t* error) const {
  const kvspan_segment_t segment = {source.memory, target.memory, 0, 0, source.bytes(), 1, 0, 0};
  return calls().copy(on.queue, &segment, 1, submit.raw(), error);
}

kvspan_fence_t* Rig::fence(uint64_t initial) {
  kvspan_fence_t* made = nullptr;
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = tables().fence->create(device_, initial, &made, &error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  if (result == KVSPAN_OK) {
    fences_.push_back(made);
  }
  return made;
}

void Rig::destroy(kvspan_fence_t* fence) {
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = tables().fence->destroy(fence, &error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  fences_.erase(std::remove(fences_.begin(), fences_.end(), fence), fences_.end());
}

Lane Rig::extra_lane(uint32_t role, uint32_t depth) {
  kvspan_queue_options_t options = {};
  options.struct_size = sizeof options;
  options.role = role;
  options.depth = depth;
  Lane made;
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = tables().queue->create(device_, &options, &made.queue, &error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  made.fence = fence();
  if (result == KVSPAN_OK) {
    extra_lanes_.push_back(made);
  }
  return made;
}

}  // namespace kvspan::conformance
