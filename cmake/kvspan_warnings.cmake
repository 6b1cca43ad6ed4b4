# SPDX-License-Identifier: Apache-2.0
# kvspan::warnings: link it PRIVATE into every target of ours. Warnings are errors in developer mode
# only, so that somebody else's newer compiler does not break their build of us.
add_library(kvspan_warnings INTERFACE)
add_library(kvspan::warnings ALIAS kvspan_warnings)
target_compile_options(kvspan_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wswitch-enum
  $<$<BOOL:${KVSPAN_DEVELOPER_MODE}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wdocumentation>)
