// SPDX-License-Identifier: Apache-2.0
// Read first: both_ways.hpp.
#include "kvspan/bench/both_ways.hpp"

#include "kvspan/bench/line.hpp"

#include <cstring>
#include <utility>
#include <vector>

namespace kvspan::bench {

namespace {

constexpr int kRuns = 7;

// A direction: where its bytes come from and go.
struct Way {
  Line line;
  kvspan_memory_t* from = nullptr;
  kvspan_memory_t* to = nullptr;
  std::vector<double> alone;  // seconds
  std::vector<double> beside;
};

struct Groups {
  std::uint64_t bytes = 0;  // of one
  std::uint64_t count = 0;
};

Result<kvspan_point_t> submit_group(Way& way, const Groups& groups, std::uint64_t index) {
  const std::uint64_t at = index * groups.bytes;
  const kvspan_segment_t segment{way.from, way.to, at, at, groups.bytes, 1, 0, 0};
  return way.line.copy({}, {&segment, 1});
}

// Every group of the ways, in turns; seconds until the last of each.
Result<std::vector<double>> run(const std::vector<Way*>& ways, const Groups& groups) {
  const Clock::time_point start = Clock::now();
  std::vector<kvspan_point_t> last(ways.size());
  for (std::uint64_t index = 0; index < groups.count; ++index) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const auto point = submit_group(*ways[way], groups, index);
      if (!point) {
        return tl::unexpected(point.error());
      }
      last[way] = *point;
    }
  }
  std::vector<double> seconds;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    if (auto waited = ways[way]->line.wait(last[way]); !waited) {
      return tl::unexpected(std::move(waited).error());
    }
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

Result<void> time_ways(Way& up, Way& down, const Groups& groups) {
  for (int turn = -1; turn < kRuns; ++turn) {
    const auto up_alone = run({&up}, groups);
    const auto down_alone = up_alone ? run({&down}, groups) : up_alone;
    const auto both = down_alone ? run({&up, &down}, groups) : down_alone;
    if (!both) {
      return tl::unexpected(both.error());
    }
    if (turn >= 0) {  // the first only warms up
      up.alone.push_back(up_alone->front());
      down.alone.push_back(down_alone->front());
      up.beside.push_back(both->front());
      down.beside.push_back(both->back());
    }
  }
  return {};
}

Error other_bytes(const char* direction) {
  return error_of(
      Errc::internal, std::string("other bytes arrived than were sent ") + direction, "bench");
}

}  // namespace

Result<BothWays> both_ways(const Backend& backend,
                           std::uint64_t group_bytes,
                           std::uint64_t groups) {
  const std::uint64_t bytes = group_bytes * groups;
  auto above = host_memory(backend, bytes);
  auto below = host_memory(backend, bytes);
  auto target = backend.allocate(KVSPAN_MEMORY_DEVICE, bytes);
  auto source = backend.allocate(KVSPAN_MEMORY_DEVICE, bytes);
  auto up_line = Line::create(backend, KVSPAN_ROLE_UPLOAD);
  auto down_line = Line::create(backend, KVSPAN_ROLE_DOWNLOAD);
  for (const Error* const problem : {above ? nullptr : &above.error(),
                                     below ? nullptr : &below.error(),
                                     target ? nullptr : &target.error(),
                                     source ? nullptr : &source.error(),
                                     up_line ? nullptr : &up_line.error(),
                                     down_line ? nullptr : &down_line.error()}) {
    if (problem != nullptr) {
      return tl::unexpected(*problem);
    }
  }
  auto* const words = reinterpret_cast<std::uint64_t*>(above->address);
  for (std::uint64_t index = 0; index < bytes / sizeof *words; ++index) {
    words[index] = (index + 1) * 0x9e3779b97f4a7c15ULL;
  }
  Way up{std::move(*up_line), above->memory.get(), target->get(), {}, {}};
  Way down{std::move(*down_line), source->get(), below->memory.get(), {}, {}};
  const auto moved = [&](Way& way, kvspan_memory_t* from, kvspan_memory_t* to) {
    return way.line.move({from, to, 0, 0, bytes, 1, 0, 0});
  };
  if (auto filled = moved(up, up.from, down.from); !filled) {
    return tl::unexpected(std::move(filled).error());
  }
  if (auto timed = time_ways(up, down, {group_bytes, groups}); !timed) {
    return tl::unexpected(std::move(timed).error());
  }
  if (std::memcmp(above->address, below->address, bytes) != 0) {
    return tl::unexpected(other_bytes("down"));
  }
  std::memset(below->address, 0, bytes);
  if (auto read = moved(down, up.to, down.to); !read) {
    return tl::unexpected(std::move(read).error());
  }
  if (std::memcmp(above->address, below->address, bytes) != 0) {
    return tl::unexpected(other_bytes("up"));
  }
  return BothWays{bytes,
                  spread_of(std::move(up.alone)),
                  spread_of(std::move(down.alone)),
                  spread_of(std::move(up.beside)),
                  spread_of(std::move(down.beside))};
}

}  // namespace kvspan::bench
