# SPDX-License-Identifier: Apache-2.0
# cmake -D COMPILER=... -D INCLUDES=<folder|folder...> -D HEADERS=<folder> -P compile_fail.cmake
# 1. Each *.cpp beside this file compiles with KVSPAN_MISUSE=0; with 1 the compiler refuses every
#    line that ends in `// expect: <word>`, in a message with that word.
# 2. No declaration of core's headers returns a Result without [[nodiscard]]: what 1 shows for a few
#    functions holds for all.
cmake_minimum_required(VERSION 3.25)

set(flags -std=c++20 -fsyntax-only -Wall -Wextra -Werror=unused-result)
string(REPLACE "|" ";" includes "${INCLUDES}") # a list that survives the command line of a test
foreach(include IN LISTS includes)
  if(include AND NOT include STREQUAL "/usr/include")
    list(APPEND flags "-I${include}")
  endif()
endforeach()
set(failures 0)
set(refusals 0)

macro(report text)
  message(STATUS "FAILED: ${text}")
  math(EXPR failures "${failures} + 1")
endmacro()

file(GLOB sources "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
foreach(source IN LISTS sources)
  cmake_path(GET source FILENAME name)
  foreach(misuse IN ITEMS 0 1)
    execute_process(COMMAND "${COMPILER}" ${flags} -DKVSPAN_MISUSE=${misuse} "${source}"
      RESULT_VARIABLE result_${misuse} ERROR_VARIABLE output_${misuse})
  endforeach()
  if(NOT result_0 EQUAL 0)
    report("${name} does not compile even without its misuse:\n${output_0}")
  endif()
  if(result_1 EQUAL 0)
    report("${name} compiles with its misuse")
  endif()
  file(READ "${source}" text)
  string(REGEX REPLACE "[][;]" " " text "${text}") # characters that CMake's lists know
  string(REPLACE "\n" ";" lines "${text}")
  set(number 0)
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "// expect: ([a-z]+)")
      math(EXPR refusals "${refusals} + 1")
      set(word "${CMAKE_MATCH_1}")
      if(NOT output_1 MATCHES "${name}:${number}:[0-9]+: error:[^\n]*${word}")
        report("${name}:${number} is not refused with '${word}':\n${output_1}")
      endif()
    endif()
  endforeach()
endforeach()

set(head "^ *(static |friend |virtual |inline |constexpr )*")
file(GLOB_RECURSE headers "${HEADERS}/*.hpp")
foreach(header IN LISTS headers)
  file(STRINGS "${header}" bare REGEX "${head}((kvspan::)?Result|tl::expected)<.*>+ [a-z_:]+\\(")
  if(bare)
    report("${header}: not [[nodiscard]]: ${bare}")
  endif()
endforeach()

list(LENGTH headers header_count)
message(STATUS "${refusals} refusals, ${header_count} headers, ${failures} failures")
if(failures GREATER 0 OR refusals LESS 8 OR header_count LESS 7)
  message(FATAL_ERROR "core.compile_fail: see above")
endif()
