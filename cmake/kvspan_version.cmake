# SPDX-License-Identifier: Apache-2.0
# Sets KVSPAN_VERSION from the numbers in abi/include/kvspan/version.h, the only place where they
# are written. Included before project(), so it may use nothing that project() sets up.
set(kvspan_version_header "${CMAKE_CURRENT_LIST_DIR}/../abi/include/kvspan/version.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${kvspan_version_header}")
set(KVSPAN_VERSION "")
foreach(name IN ITEMS KVSPAN_ABI_MAJOR KVSPAN_ABI_MINOR KVSPAN_RELEASE_PATCH)
  file(STRINGS "${kvspan_version_header}" line REGEX "^#define +${name} +[0-9]+u?( |$)")
  if(NOT line MATCHES "${name} +([0-9]+)")
    message(FATAL_ERROR
      "abi/include/kvspan/version.h defines no ${name}: the version is read from there")
  endif()
  string(APPEND KVSPAN_VERSION ".${CMAKE_MATCH_1}")
endforeach()
string(SUBSTRING "${KVSPAN_VERSION}" 1 -1 KVSPAN_VERSION)
