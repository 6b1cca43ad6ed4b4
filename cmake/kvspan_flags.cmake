# SPDX-License-Identifier: Apache-2.0
# Language levels, output folders and the code generation flags that the whole tree must share.
# Not here: warnings (kvspan_warnings.cmake) and optimisation levels (CMakePresets.json).
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(KVSPAN_PLUGIN_DIR "${CMAKE_BINARY_DIR}/plugins")

find_program(KVSPAN_CCACHE ccache)
mark_as_advanced(KVSPAN_CCACHE)
if(KVSPAN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${KVSPAN_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KVSPAN_CCACHE}")
endif()

# Paths in failure messages, traces and debug information begin at the tree's root, not at a machine's.
# A debugger finds the sources when it is started there.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>")

# One baseline for every file; faster instruction sets only behind run-time dispatch. Contraction is
# off so that a*b+c has the same bits whether or not the compiler had fused multiply-add in a
# dispatched function.
add_compile_options(-march=x86-64-v2 -ffp-contract=off)

if(KVSPAN_SANITIZE)
  set(kvspan_sanitizers ${KVSPAN_SANITIZE})
  if(NOT kvspan_sanitizers MATCHES "^(address;undefined|thread)$")
    message(FATAL_ERROR
      "KVSPAN_SANITIZE is '${KVSPAN_SANITIZE}': use '', 'address;undefined' or 'thread'")
  endif()
  list(JOIN kvspan_sanitizers "," kvspan_sanitizers)
  add_compile_options(
    -fsanitize=${kvspan_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${kvspan_sanitizers})
endif()

# kvspan_compile_together(<target> [ALWAYS]): a few files at a time as one, since each alone would read
# the same headers for most of its time. Without ALWAYS under a sanitizer only: elsewhere a developer
# changes one of them at a time.
function(kvspan_compile_together target)
  if(KVSPAN_SANITIZE OR "ALWAYS" IN_LIST ARGN)
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ${KVSPAN_UNITY} UNITY_BUILD_BATCH_SIZE 7)
  endif()
endfunction()

# kvspan_compile_quickly(<target>): under the address sanitizer, without optimisation. For tests and
# for glue whose speed nobody feels: optimising it is half of such a build's time. Not under the
# thread sanitizer, where optimising costs little and its lack makes the tests slow.
function(kvspan_compile_quickly target)
  if(KVSPAN_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()
