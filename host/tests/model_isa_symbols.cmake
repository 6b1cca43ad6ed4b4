# SPDX-License-Identifier: Apache-2.0
# Looks at the objects of the three matrix product units: every symbol that the linker may share
# between units must carry the unit's own Eigen namespace. Otherwise a copy compiled for AVX-512
# could serve a baseline processor.
# Usage: cmake -DNM=<nm> -DOBJECTS=<object|object|...> -P model_isa_symbols.cmake
string(REPLACE "|" ";" objects "${OBJECTS}")
list(LENGTH objects count)
if(NOT count EQUAL 3)
  message(FATAL_ERROR "three objects are expected, not '${OBJECTS}'")
endif()
foreach(object IN LISTS objects)
  if(NOT object MATCHES "matmul_(v2|avx2|avx512)\\.cpp")
    message(FATAL_ERROR "'${object}' is none of the matrix product units")
  endif()
  set(isa "${CMAKE_MATCH_1}")
  execute_process(
    COMMAND "${NM}" --defined-only "${object}"
    OUTPUT_VARIABLE listing
    COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${listing}")
  set(own 0)
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^[0-9a-f]* ([A-Za-z]) (.*)$")
      continue()
    endif()
    set(kind "${CMAKE_MATCH_1}")
    set(symbol "${CMAKE_MATCH_2}")
    if(symbol MATCHES "kvspan_eigen_${isa}|matmul_tile_${isa}")
      math(EXPR own "${own} + 1")
    elseif(kind MATCHES "^[VWuTDBR]$"
           AND NOT symbol MATCHES "^(DW\\.ref\\.__gxx_personality_v0|__asan_|__odr_asan)")
      message(FATAL_ERROR "${object} shares '${symbol}' (${kind}) with units for other processors")
    endif()
  endforeach()
  if(own EQUAL 0)
    message(FATAL_ERROR "${object} has no symbol of its own: is this the right file?")
  endif()
endforeach()
message(STATUS "${count} objects share nothing")
