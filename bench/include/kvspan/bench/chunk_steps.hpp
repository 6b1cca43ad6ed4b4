// SPDX-License-Identifier: Apache-2.0
// Timed chunks of a prompt behind a history of which a part is on the host, beside the same chunks
// with everything resident; bytes are counted in both directions and outputs compared in the same
// run.
#pragma once

#include "kvspan/bench/step_engine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::bench {

// One timed chunk, streamed and resident.
struct Chunk {
  std::uint64_t context = 0;  // tokens before it
  double seconds = 0.0;
  double resident_seconds = 0.0;
  std::uint64_t streamed_bytes = 0;  // up
  std::uint64_t streamed_pages = 0;
  std::uint64_t published_bytes = 0;  // down
};

struct ChunkTimes {
  Plan plan;  // of the streamed session
  std::vector<Chunk> chunks;
  std::string check;  // what was compared, in words
};

// Chunks follow each other, so that what one has brought ahead is the next one's. Both sessions
// take turns, so that what else a machine does meets both; the first chunk of a turn is not timed:
// its ring was filled meanwhile.
struct ChunkTurns {
  std::uint32_t turns = 3;
  std::uint32_t timed = 3;  // chunks a turn

  [[nodiscard]] std::uint32_t chunks() const { return turns * (timed + 1); }
};

// Chunks of `asked.chunk_rows` rows from `asked.tokens` tokens on, in a session of `asked`, whose
// `appended` holds them, and a resident one, open at once. Errors: the sessions'; internal where a
// page that is not resident does not come up exactly once a chunk, a row does not go down exactly
// once, or outputs of a turn's last chunk differ from the resident run's.
[[nodiscard]] Result<ChunkTimes> time_chunks(const Backend& backend,
                                             const RandomPages& pages,
                                             const StepCase& asked,
                                             const ChunkTurns& turns);

}  // namespace kvspan::bench
