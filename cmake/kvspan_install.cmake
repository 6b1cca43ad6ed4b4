# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` and cpack put where: headers, CMake package, the tool, the plugins, the
# author kit (template, lessons; kvspan-conformance is installed by its own folder). Core is not
# installed. Consumers: find_package(kvspan 0.1 REQUIRED); kvspan-config.cmake.in lists what it gives.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(KVSPAN_CMAKE_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/kvspan")
set(KVSPAN_PLUGIN_DESTINATION "${CMAKE_INSTALL_LIBDIR}/kvspan")
set(KVSPAN_TEMPLATE_DESTINATION "${CMAKE_INSTALL_DATADIR}/kvspan/template")

install(TARGETS kvspan_abi kvspan_sdk EXPORT kvspan-targets
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT kvspan-targets NAMESPACE kvspan:: DESTINATION "${KVSPAN_CMAKE_DESTINATION}")
install(TARGETS kvspan-host RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
foreach(plugin IN LISTS KVSPAN_PLUGINS)
  install(TARGETS kvspan-${plugin} LIBRARY DESTINATION "${KVSPAN_PLUGIN_DESTINATION}")
endforeach()

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/kvspan-config.cmake.in" "${CMAKE_BINARY_DIR}/kvspan-config.cmake"
  INSTALL_DESTINATION "${KVSPAN_CMAKE_DESTINATION}"
  PATH_VARS KVSPAN_PLUGIN_DESTINATION KVSPAN_TEMPLATE_DESTINATION CMAKE_INSTALL_BINDIR)
# Until 1.0 a minor version may break; the header hash pairs host and plugin in any case.
write_basic_package_version_file(
  "${CMAKE_BINARY_DIR}/kvspan-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_BINARY_DIR}/kvspan-config.cmake"
  "${CMAKE_BINARY_DIR}/kvspan-config-version.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/kvspan_add_plugin.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/kvspan_add_conformance_test.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/kvspan_plugin.map"
  DESTINATION "${KVSPAN_CMAKE_DESTINATION}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/templates/plugin/"
  DESTINATION "${KVSPAN_TEMPLATE_DESTINATION}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/backend-authors" "${PROJECT_SOURCE_DIR}/docs/abi"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES
  "${PROJECT_SOURCE_DIR}/LICENSE"
  "${PROJECT_SOURCE_DIR}/README.md"
  "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(CPACK_PACKAGE_VENDOR "kvspan")
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_PACKAGE_FILE_NAME "kvspan-${PROJECT_VERSION}-linux-x86_64")
set(CPACK_STRIP_FILES OFF) # the identity note must stay as it was tested
include(CPack)
