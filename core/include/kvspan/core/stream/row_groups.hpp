// SPDX-License-Identifier: Apache-2.0
// Rows of a step grouped by their split length S, so that a row's bits do not depend on the rows
// beside it, and the walk of a group's splits over tokens that arrive piece by piece. Pure
// functions of counts.
#pragma once

#include <cstdint>
#include <vector>

namespace kvspan {

struct RowGroupRequest {
  std::uint64_t first_token =
      0;  // committed tokens: row r is token first_token + r and sees up to itself
  std::uint32_t rows = 0;
  std::uint64_t window_tokens = 0;  // 0 = all; else a row sees this many tokens, itself included
  std::uint32_t splits = 1;         // N
  std::uint32_t granule = 1;
  std::uint32_t unit = 1;  // tokens; of long splits, see split_tokens()
};

// Rows [first_row, first_row + rows) with one S.
struct RowGroup {
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;
  std::uint64_t split_tokens = 0;   // S
  std::uint64_t visible_begin = 0;  // first token that any row sees, rounded down to the granule
  std::uint64_t visible_end = 0;    // past the last token that any row sees
};

// Splits that some row of a group sees.
[[nodiscard]] inline std::uint64_t split_count(const RowGroup& group) {
  return (group.visible_end - 1) / group.split_tokens - group.visible_begin / group.split_tokens +
         1;
}

[[nodiscard]] std::vector<RowGroup> row_groups(const RowGroupRequest& request);

// Tokens [begin, end) of split `split`, to be advanced in one item.
struct SplitPart {
  std::uint64_t split = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool first = false;  // starts the split's state
  bool last = false;   // the split is complete after it
};

// Cuts the tokens [begin, end) that became available into parts of splits, in ascending order. Ends
// are rounded up to the granule inside [0, total_tokens), as the ABI wants items cut.
[[nodiscard]] std::vector<SplitPart> split_parts(const RowGroup& group,
                                                 std::uint64_t begin,
                                                 std::uint64_t end,
                                                 std::uint32_t granule,
                                                 std::uint64_t total_tokens);

}  // namespace kvspan
