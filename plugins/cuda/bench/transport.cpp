// SPDX-License-Identifier: Apache-2.0
// P1: pages of K and V, scattered over imported host memory, brought to scattered places of the
// device in groups, one submit of the copy table a group.
#include "pages.hpp"
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace kvspan::cuda_bench {

namespace {

constexpr std::uint64_t kPages = 2560;  // 1.09 GB

struct Pages {
  std::vector<HostMemory> chunks;
  std::vector<std::uint32_t> source;  // [page] shuffled
  std::vector<std::uint32_t> target;
  std::uint64_t page_bytes = 0;
  std::uint64_t chunk_pages = 0;
};

Pages make_pages(const Rig& rig, const bench::RandomPages& random) {
  Pages out;
  out.page_bytes = random.layout().page_bytes;
  out.chunk_pages = (std::uint64_t{64} << 20) / out.page_bytes;
  for (std::uint64_t page = 0; page < kPages; ++page) {
    if (page % out.chunk_pages == 0) {
      out.chunks.push_back(host_memory(rig, out.chunk_pages * out.page_bytes));
    }
    std::byte* const at = out.chunks.back().address + page % out.chunk_pages * out.page_bytes;
    std::memcpy(at, random.page(0, page).data(), out.page_bytes);
    std::memcpy(at, &page, sizeof page);  // no two pages are alike
    out.source.push_back(static_cast<std::uint32_t>(page));
    out.target.push_back(static_cast<std::uint32_t>(page));
  }
  std::mt19937_64 order(1);
  std::shuffle(out.source.begin(), out.source.end(), order);
  std::shuffle(out.target.begin(), out.target.end(), order);
  return out;
}

kvspan_segment_t segment_of(const Pages& pages, const DeviceMemory& device, std::uint64_t index) {
  const std::uint64_t source = pages.source[index];
  return {pages.chunks[source / pages.chunk_pages].memory.get(),
          device.get(),
          source % pages.chunk_pages * pages.page_bytes,
          pages.target[index] * pages.page_bytes,
          pages.page_bytes,
          1,
          0,
          0};
}

// Brings every page back, a chunk at a time, and compares. Returns what was compared.
std::string verify(const Rig& rig, const Pages& pages, const DeviceMemory& device) {
  Line line(rig, KVSPAN_ROLE_DOWNLOAD);
  const HostMemory back = host_memory(rig, kPages * pages.page_bytes);
  const kvspan_segment_t all{
      device.get(), back.memory.get(), 0, 0, kPages * pages.page_bytes, 1, 0, 0};
  line.wait(line.copy({}, {&all, 1}));
  for (std::uint64_t index = 0; index < kPages; ++index) {
    const std::uint64_t source = pages.source[index];
    const std::byte* const sent = pages.chunks[source / pages.chunk_pages].address +
                                  source % pages.chunk_pages * pages.page_bytes;
    const std::byte* const came = back.address + pages.target[index] * pages.page_bytes;
    if (std::memcmp(sent, came, pages.page_bytes) != 0) {
      throw Failure(fmt::format("page {} arrived with other bytes", source));
    }
  }
  return fmt::format("memcmp of {} pages", kPages);
}

std::vector<Row> transport(const Bench& bench, std::uint64_t group) {
  const Pages pages = make_pages(bench.rig, bench.pages.of("A"));
  const DeviceMemory device = device_memory(bench.rig, kPages * pages.page_bytes);
  Line line(bench.rig, KVSPAN_ROLE_UPLOAD);
  line.wait(line.fill(device, kPages * pages.page_bytes, 0xa5));
  std::vector<double> seconds;
  bench::CpuTime cpu;
  constexpr int kRuns = 7;
  for (int run = -1; run < kRuns; ++run) {
    const bench::CpuTime before = bench::cpu_time();
    const Clock::time_point start = Clock::now();
    kvspan_point_t last{};
    for (std::uint64_t first = 0; first < kPages; first += group) {
      std::vector<kvspan_segment_t> segments;
      for (std::uint64_t index = first; index < std::min(kPages, first + group); ++index) {
        segments.push_back(segment_of(pages, device, index));
      }
      last = line.copy({}, segments);
    }
    line.wait(last);
    if (run >= 0) {
      seconds.push_back(seconds_since(start));
      const bench::CpuTime after = bench::cpu_time();
      cpu.process += after.process - before.process;
      cpu.thread += after.thread - before.thread;
    }
  }
  Row row;
  row.id = "P1";
  row.what = fmt::format("scattered pages groups of {}", group);
  row.seconds = spread_of(seconds);
  row.bytes = kPages * pages.page_bytes;
  row.value = static_cast<double>(row.bytes) / row.seconds.median / bench.limits.link_up;
  row.unit = "of L";
  row.floor = 0.95;
  row.goal = 0.975;
  row.check = verify(bench.rig, pages, device);
  row.details = {{"gbytes_s", static_cast<double>(row.bytes) / row.seconds.median * 1e-9},
                 {"cpu_us_page_process", cpu.process / (kRuns * kPages) * 1e6},
                 {"cpu_us_page_thread", cpu.thread / (kRuns * kPages) * 1e6}};
  return {row};
}

}  // namespace

void add_transport(std::vector<Task>& tasks) {
  for (const std::uint64_t group : {16U, 32U, 64U}) {
    tasks.push_back({"P1",
                     fmt::format("scattered pages groups of {}", group),
                     [group](const Bench& bench) { return transport(bench, group); }});
  }
}

}  // namespace kvspan::cuda_bench
