// SPDX-License-Identifier: Apache-2.0
// A table whose size leaves out its last slot.
#include "changed_table.hpp"

#include <cstddef>

const void* change_table(const void* table, uint32_t table_id) noexcept {
  static kvspan_fence_table_t fence;
  if (table_id != KVSPAN_TABLE_FENCE) {
    return table;
  }
  fence = *static_cast<const kvspan_fence_table_t*>(table);
  fence.struct_size = offsetof(kvspan_fence_table_t, destroy);
  return &fence;
}
