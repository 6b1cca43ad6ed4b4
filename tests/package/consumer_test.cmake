# SPDX-License-Identifier: Apache-2.0
# Runs as `cmake -P`: install, move the prefix (a package must not remember where it was built),
# build, run. Arguments: build_dir, consumer_dir, c_compiler.
cmake_minimum_required(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result COMMAND_ECHO STDOUT)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "package.consumer: exit code ${result}: ${ARGN}")
  endif()
endfunction()

set(work "${build_dir}/package-consumer")
file(REMOVE_RECURSE "${work}")
step(${CMAKE_COMMAND} --install "${build_dir}" --prefix "${work}/staged")
file(RENAME "${work}/staged" "${work}/prefix")

# The consumer is copied away so that no relative path into our tree can help it.
file(COPY "${consumer_dir}/" DESTINATION "${work}/source")
step(${CMAKE_COMMAND} -S "${work}/source" -B "${work}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_C_COMPILER=${c_compiler}")
step(${CMAKE_COMMAND} --build "${work}/build")
step(${CMAKE_CTEST_COMMAND} --test-dir "${work}/build" --output-on-failure --no-tests=error)

# The installed tool finds the installed plugins by itself.
step("${work}/prefix/bin/kvspan" list)

# Asking for a component that is not there must fail at configure time, by name.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S "${work}/source" -B "${work}/refused" -G Ninja
    "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_C_COMPILER=${c_compiler}"
    -DCONSUMER_COMPONENT=nonesuch
  RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
if(result EQUAL 0 OR NOT text MATCHES "nonesuch")
  message(FATAL_ERROR "package.consumer: an absent component was not refused by name: ${text}")
endif()
