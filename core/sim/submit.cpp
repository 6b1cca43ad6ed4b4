// SPDX-License-Identifier: Apache-2.0
// Work comes in: its points are judged, every byte that it will touch (touch.cpp) is checked
// against whatever may still be touching it, and it joins its queue.
#include "device.hpp"

#include <algorithm>

namespace kvspan::sim {

namespace {

constexpr const char* kRoles[] = {"compute", "upload", "download"};

std::string who(const Queue& queue, CallKind kind) {
  return std::string(name(kind)) + " on the " + (queue.engine ? "engine's" : kRoles[queue.role]) +
         " queue";
}

template <class T>
bool counts_down(std::uint32_t& left, std::uint64_t& fired, T code, T* out) {
  if (left == 0 || --left != 0) {
    return false;
  }
  ++fired;
  *out = code;
  return true;
}

// Rows on their way to the history.
bool goes_down(const Call& call) {
  return std::any_of(call.segments.begin(), call.segments.end(), [](const auto& segment) {
    return memory_of(segment.target)->kind != KVSPAN_MEMORY_DEVICE;
  });
}

}  // namespace

kvspan_result_t Device::refuses_object() {
  kvspan_result_t planted = lost_ ? KVSPAN_E_DEVICE_LOST : KVSPAN_OK;
  if (!engine_ && !lost_) {
    (void)counts_down(faults.object_in, fired, KVSPAN_E_HOST_MEMORY, &planted);
  }
  return planted;
}

// A cancel word has always room.
bool Device::has_host_bytes(std::uint64_t bytes) const {
  return engine_ || bytes <= sizeof(std::uint32_t) || host_bytes_ + bytes <= host_bytes_max_;
}

bool Device::check_points(const Queue& queue, const Call& call) {
  for (const kvspan_point_t& point : call.waits) {
    const Fence& fence = *fence_of(point.fence);
    if (point.value > std::max(fence.promised, fence.value) && fence.failed == KVSPAN_OK) {
      trouble_.report("fence",
                      who(queue, call.kind) + " waits for value " + std::to_string(point.value) +
                          ", which no submit signals");
      return false;
    }
  }
  for (const kvspan_point_t& point : call.signals) {
    const Fence& fence = *fence_of(point.fence);
    if (point.value <= std::max(fence.promised, fence.value)) {
      trouble_.report("fence",
                      who(queue, call.kind) + " signals value " + std::to_string(point.value) +
                          " of a fence that was promised " + std::to_string(fence.promised));
      return false;
    }
    if (fence.promised > fence.value && fence.failed == KVSPAN_OK &&
        fence.signaller != queue.place) {
      trouble_.report("fence", who(queue, call.kind) + " signals a fence of another queue");
      return false;
    }
  }
  return true;
}

// Nothing larger than the session told prepare().
bool Device::check_prepared(const Call& call) {
  std::uint64_t spans = 0;
  std::uint64_t lists = 0;
  for (const EntryCopy& copy : call.entries) {
    spans += copy.spans.size();
    for (const kvspan_span_t& span : copy.spans) {
      lists += span.k.page_count + span.v.page_count;
    }
  }
  const bool fits = call.segments.size() <= prepared.segments_max &&
                    call.codec_items.size() <= prepared.codec_items_max &&
                    call.advance_items.size() <= prepared.attention_items_max &&
                    call.fold_items.size() <= prepared.attention_items_max &&
                    spans <= prepared.spans_max && lists <= prepared.page_list_max;
  if (!fits) {
    trouble_.report("prepared",
                    std::string(name(call.kind)) + " with " + std::to_string(call.segments.size()) +
                        " segments, " + std::to_string(call.codec_items.size()) + " rows, " +
                        std::to_string(call.advance_items.size() + call.fold_items.size()) +
                        " items, " + std::to_string(spans) + " spans, " + std::to_string(lists) +
                        " list entries is larger than what was prepared");
  }
  return fits;
}

void Device::name_memories(Work& work) {
  const auto note = [&work](const kvspan_memory_t* handle) {
    if (handle == nullptr) {
      return;
    }
    Memory* const memory = memory_of(handle);
    ++memory->named;
    for (auto& [known, count] : work.names) {
      if (known == memory) {
        ++count;
        return;
      }
    }
    work.names.emplace_back(memory, 1U);
  };
  const Call& call = work.call;
  note(call.cancel_memory);
  for (const kvspan_segment_t& segment : call.segments) {
    note(segment.source);
    note(segment.target);
  }
  for (const kvspan_codec_item_t& item : call.codec_items) {
    note(item.rows.memory);
    note(item.plane.memory);
  }
  for (const EntryCopy& copy : call.entries) {
    note(copy.entry.q.memory);
    note(copy.entry.out.memory);
    for (const kvspan_span_t& span : copy.spans) {
      note(span.k.memory);
    }
  }
  for (const kvspan_advance_item_t& item : call.advance_items) {
    note(item.state.memory);
  }
  for (const kvspan_fold_item_t& item : call.fold_items) {
    note(item.source.memory);
  }
  for (const kvspan_range_t& range : call.engine_writes) {
    note(range.memory);
  }
  for (const kvspan_range_t& range : call.engine_reads) {
    note(range.memory);
  }
  for (const std::vector<kvspan_point_t>* const points : {&call.waits, &call.signals}) {
    for (const kvspan_point_t& point : *points) {
      Fence& fence = *fence_of(point.fence);
      ++fence.named;
      fence.named_by_engine += work.engine ? 1U : 0U;
    }
  }
}

// Behind the queue's last work, behind what the host has seen, behind the points.
void Device::order(Queue& queue, Work& work) {
  work.known = queue.last;
  work.known.join(host_);
  for (const kvspan_point_t& point : work.call.waits) {
    for (const Signalled& signal : fence_of(point.fence)->signals) {
      if (signal.value >= point.value) {
        work.known.join(signal.known);
        break;
      }
    }
  }
  work.number = ++numbers_[queue.place];
  work.known.works[queue.place] = work.number;
  queue.last = work.known;
  for (const kvspan_point_t& point : work.call.signals) {
    Fence& fence = *fence_of(point.fence);
    fence.promised = point.value;
    fence.signaller = queue.place;
    fence.role = queue.engine ? kEngineRole : queue.role;
    fence.signals.push_back({point.value, work.known});
  }
}

void Device::touch(Work& work,
                   const Queue& queue,
                   Memory* memory,
                   std::uint64_t begin,
                   std::uint64_t end,
                   bool writes) {
  if (begin >= end) {
    return;
  }
  if (end > memory->bytes) {
    trouble_.report("range",
                    who(queue, work.call.kind) + " leaves its memory of " +
                        std::to_string(memory->bytes) + " bytes");
    dead_ = true;
    return;
  }
  const Access* const other = memory->accesses.conflict(begin, end, writes, work.known);
  if (other != nullptr) {
    std::string other_name = "a work that is gone";
    for (const auto& candidate : queues) {
      if (candidate->place == other->queue) {
        other_name = std::string("work of the ") +
                     (candidate->engine ? "engine's" : kRoles[candidate->role]) + " queue";
      }
    }
    trouble_.report("order",
                    who(queue, work.call.kind) + (writes ? " writes" : " reads") + " bytes [" +
                        std::to_string(begin) + ", " + std::to_string(end) + ") of a memory of " +
                        std::to_string(memory->bytes) + " bytes, which " + other_name +
                        (other->writes ? " may still write" : " may still read"));
  }
  memory->accesses.add({begin, end, queue.place, work.number, writes});
  if (memory == arena && writes && queue.role == KVSPAN_ROLE_UPLOAD) {
    ring.fill(begin, end, work.order);
  } else if (memory == arena && !writes &&
             (work.call.kind == CallKind::run || work.call.kind == CallKind::advance)) {
    ring.read(begin, end);
  }
}

kvspan_result_t Device::submit(Queue& queue, Call call, kvspan_error_t* error) {
  if (dead_) {
    return refuse(error, KVSPAN_E_DEVICE_LOST, "the simulation ended");
  }
  kvspan_result_t losing = KVSPAN_OK;
  if (!engine_ && counts_down(faults.lost_in, fired, KVSPAN_E_DEVICE_LOST, &losing)) {
    lose();
  }
  if (lost_) {
    return refuse(error, KVSPAN_E_DEVICE_LOST, "the device is lost");
  }
  if (queue.works.size() >= queue.depth) {
    return refuse(error, KVSPAN_E_QUEUE_FULL, "the queue is full");
  }
  ++submits;
  works += engine_ || (call.kind == CallKind::copy && call.segments.empty()) ? 0U : 1U;
  call.role = queue.role;
  for (const kvspan_point_t& point : call.waits) {
    call.wait_roles.push_back(fence_of(point.fence)->role);
  }
  if (filter() != nullptr) {
    filter()->on_submit(call);
  }
  kvspan_result_t planted = KVSPAN_OK;
  if (!engine_ && counts_down(faults.submit_in, fired, faults.submit_code, &planted)) {
    if (filter() != nullptr) {
      filter()->on_refused(call);
    }
    return refuse(error, planted, "a planted refusal");
  }
  if (!check_points(queue, call) || (!engine_ && !check_prepared(call))) {
    return refuse(error, KVSPAN_E_UNSUPPORTED, "the contract was broken");
  }
  auto work = std::make_unique<Work>();
  work->call = std::move(call);
  work->order = submits;
  work->engine = queue.engine;
  work->ending = std::make_shared<Ending>();
  if (!engine_ && (!faults.work_publishes || goes_down(work->call))) {
    (void)counts_down(faults.work_in, works_fired, faults.work_code, &work->planted);
  }
  order(queue, *work);
  touch_copy(*work, queue);
  touch_encode(*work, queue);
  touch_attention(*work, queue);
  for (const kvspan_range_t& range : work->call.engine_writes) {
    touch(*work, queue, memory_of(range.memory), range.offset, range.offset + range.bytes, true);
  }
  for (const kvspan_range_t& range : work->call.engine_reads) {
    touch(*work, queue, memory_of(range.memory), range.offset, range.offset + range.bytes, false);
  }
  if (dead_) {
    return refuse(error, KVSPAN_E_DEVICE_LOST, "the simulation ended");
  }
  name_memories(*work);
  if (goes_down(work->call)) {
    downloads_.push_back(work->ending);
  }
  queue.works.push_back(std::move(work));
  start_ready();
  return KVSPAN_OK;
}

}  // namespace kvspan::sim
