# SPDX-License-Identifier: Apache-2.0
# kvspan::warnings: link it PRIVATE into every target of ours. Warnings are errors in developer mode
# only, so that somebody else's newer compiler does not break their build of us.
add_library(kvspan_warnings INTERFACE)
add_library(kvspan::warnings ALIAS kvspan_warnings)
target_compile_options(kvspan_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wswitch-enum
  $<$<BOOL:${KVSPAN_DEVELOPER_MODE}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wdocumentation>
  # g++ 12 at -O3 sees overlaps inside std::string that cannot be (its bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict>)
