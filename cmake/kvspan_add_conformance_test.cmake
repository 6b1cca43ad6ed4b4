# SPDX-License-Identifier: Apache-2.0
# kvspan_add_conformance_test(<plugin> [NAME <noun>] [PROFILES <profile>...] [OPTIONS <key=value>...]
# [ARGS <argument>...] [TIMEOUT <s>])
#   The ctest entry conformance.<noun>: the installed kvspan-conformance over the built plugin, green
#   when no rule fails. <plugin> is the name that kvspan_add_plugin() was given, or its target.
#   PROFILES  core copy attention stream; all when none is named
#   OPTIONS   of the plugin, as the operator would set them
#   ARGS      anything else that `kvspan-conformance --help` lists: --waivers, --seed, --shard
#   NAME      for a second entry of the same plugin; the plugin's name unless told
#   TIMEOUT   of the whole run in seconds (900)
# The reports lie in conformance/<noun>/ of the build folder: report.html, junit.xml, results.jsonl.
# Installed with the package.

function(kvspan_add_conformance_test plugin)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;TIMEOUT" "PROFILES;OPTIONS;ARGS")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "kvspan_add_conformance_test(<plugin> [NAME n] [PROFILES p...] "
      "[OPTIONS k=v...] [ARGS a...] [TIMEOUT s]): got '${ARGV}'")
  endif()
  string(REGEX REPLACE "^kvspan-" "" noun "${plugin}")
  set(target kvspan-${noun})
  if(NOT TARGET ${target})
    message(FATAL_ERROR "kvspan_add_conformance_test(${plugin}): there is no target ${target}: "
      "call kvspan_add_plugin(${noun} ...) first")
  endif()
  if(NOT kvspan_CONFORMANCE)
    message(FATAL_ERROR "kvspan_add_conformance_test(${plugin}): the installed package has no "
      "kvspan-conformance: install one that was built with KVSPAN_CONFORMANCE=ON")
  endif()
  if(NOT CMAKE_TESTING_ENABLED)
    message(WARNING "kvspan_add_conformance_test(${plugin}): testing is off here, so no test is "
      "added: call enable_testing() before")
    return()
  endif()
  if(arg_NAME)
    set(noun ${arg_NAME})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  set(arguments)
  foreach(profile IN LISTS arg_PROFILES)
    list(APPEND arguments --profile ${profile})
  endforeach()
  foreach(option IN LISTS arg_OPTIONS)
    list(APPEND arguments --option "${option}")
  endforeach()
  add_test(NAME conformance.${noun}
    COMMAND "${kvspan_CONFORMANCE}" "$<TARGET_FILE:${target}>" ${arguments} ${arg_ARGS}
            --out "${CMAKE_CURRENT_BINARY_DIR}/conformance/${noun}")
  set_tests_properties(conformance.${noun} PROPERTIES LABELS conformance TIMEOUT ${arg_TIMEOUT})
endfunction()
