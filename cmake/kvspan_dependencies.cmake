# SPDX-License-Identifier: Apache-2.0
# Every library used by more than one part, found once at the top so that its target is visible
# everywhere. A library of a single backend is found in that backend's folder. All come from Debian
# 12: see packages.txt.
find_package(Threads REQUIRED)
find_package(tl-expected CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(Eigen3 CONFIG REQUIRED)
if(KVSPAN_DEVELOPER_MODE OR KVSPAN_CONFORMANCE)
  find_package(GTest CONFIG REQUIRED)
endif()
