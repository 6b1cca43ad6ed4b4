# SPDX-License-Identifier: Apache-2.0
# kvspan_add_test(<part.noun> SOURCES <file>... LINKS <target>... [LABELS <label>...] [TIMEOUT <s>]
# [ENV <A=b>...] [INCLUDES <folder>...] [ONE_THREAD])
#   One GoogleTest executable <part_noun>_test and one ctest entry <part.noun>; label `unit` unless
#   told, 120 s. main() comes from GTest::gmock_main; link nothing of GoogleTest yourself. INCLUDES:
#   folders of private headers. ONE_THREAD: neither the test nor what it tests starts a thread, so the
#   thread sanitizer, which could see nothing in it, does without it: the target is not there then.
# kvspan_register_test(<name> COMMAND <command>... [LABELS ...] [TIMEOUT s] [ENV ...])
#   The same for a command that is no GoogleTest executable. Exit code 77 means skipped (say why on
#   a line that begins `SKIPPED:`).
#
# Tests may read three variables: KVSPAN_TEST_DATA (data/), KVSPAN_TEST_PLUGINS (built plugins) and
# KVSPAN_TEST_BIN (built executables). GoogleTest cases are reported one by one to
# test-reports/<name>.xml of the build folder, where tools/test_summary.py counts them: ctest alone
# would count an executable full of skipped cases as passed.
#
# Labels: unit property e2e-small run under every preset's tests; e2e-large only in optimised
# builds; tidy, abi and package only in the dev preset. smoke: beside property, on what a sanitizer
# sees with a tenth of the rounds. conformance: the suite over a plugin outside this tree
# (kvspan_add_conformance_test.cmake).

set(KVSPAN_PYTHON /usr/bin/python3) # the system's, for every test that is a script

function(kvspan_register_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS;ENV")
  if(NOT DEFINED arg_COMMAND OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvspan_register_test(<name> COMMAND ...): got '${ARGV}'")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(KVSPAN_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set(environment
    "KVSPAN_TEST_DATA=${kvspan_SOURCE_DIR}/data"
    "KVSPAN_TEST_PLUGINS=${KVSPAN_PLUGIN_DIR}"
    "KVSPAN_TEST_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-14"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1"
    ${arg_ENV})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "${environment}"
    LABELS "${arg_LABELS}"
    TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77)
endfunction()

function(kvspan_add_test name)
  cmake_parse_arguments(
    PARSE_ARGV 1 arg "ONE_THREAD" "TIMEOUT" "SOURCES;LINKS;LABELS;ENV;INCLUDES")
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvspan_add_test(<part.noun> SOURCES ... LINKS ...): got '${ARGV}'")
  endif()
  if(NOT name MATCHES "^[a-z0-9_]+(\\.[a-z0-9_]+)+$")
    message(FATAL_ERROR "kvspan_add_test: '${name}' is no lower-case part.noun")
  endif()
  if(arg_ONE_THREAD AND KVSPAN_SANITIZE STREQUAL "thread")
    return()
  endif()
  string(REPLACE "." "_" target "${name}_test")
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE
    ${arg_LINKS} kvspan::warnings GTest::gmock GTest::gmock_main GTest::gtest)
  target_include_directories(${target} PRIVATE ${arg_INCLUDES})
  kvspan_compile_quickly(${target})
  target_compile_definitions(${target} PRIVATE
    KVSPAN_TEST_SANITIZED=$<IF:$<BOOL:${KVSPAN_SANITIZE}>,1,0>)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  kvspan_register_test(${name}
    COMMAND ${target}
    LABELS ${arg_LABELS}
    TIMEOUT ${arg_TIMEOUT}
    ENV "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/test-reports/${name}.xml" ${arg_ENV})
endfunction()
