# SPDX-License-Identifier: Apache-2.0
# kvspan_add_plugin(<name> SOURCES <file>... [LINKS <target>...])
#
# Makes the MODULE target kvspan-<name>, whose file is kvspan-<name>.so: hidden visibility, one
# exported symbol, no undefined symbols. Installed with the package: backends outside this tree use
# the same function.
set(KVSPAN_PLUGIN_MAP "${CMAKE_CURRENT_LIST_DIR}/kvspan_plugin.map")

function(kvspan_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR
      "kvspan_add_plugin(<name> SOURCES <file>... [LINKS <target>...]): got '${ARGV}'")
  endif()
  set(target kvspan-${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE kvspan::sdk ${arg_LINKS})
  set_target_properties(${target} PROPERTIES
    PREFIX ""
    OUTPUT_NAME ${target}
    SUFFIX ".so"
    CXX_STANDARD 20
    CXX_STANDARD_REQUIRED ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${KVSPAN_PLUGIN_MAP}")
  target_link_options(${target} PRIVATE "-Wl,--version-script=${KVSPAN_PLUGIN_MAP}")
  if(NOT KVSPAN_SANITIZE) # a sanitizer's runtime may be left to the executable
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  if(KVSPAN_PLUGIN_DIR) # inside our tree only
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${KVSPAN_PLUGIN_DIR}")
    target_link_libraries(${target} PRIVATE kvspan::warnings)
  endif()
  if(COMMAND kvspan_add_exports_test) # our developer builds only
    kvspan_add_exports_test(${name})
  endif()
endfunction()
