// SPDX-License-Identifier: Apache-2.0
// A table with a slot that is NULL: not yet written, and nobody noticed.
#include "changed_table.hpp"

const void* change_table(const void* table, uint32_t table_id) noexcept {
  static kvspan_copy_table_t copy;
  if (table_id != KVSPAN_TABLE_COPY) {
    return table;
  }
  copy = *static_cast<const kvspan_copy_table_t*>(table);
  copy.feedback = nullptr;
  return &copy;
}
