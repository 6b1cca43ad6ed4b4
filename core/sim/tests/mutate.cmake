# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, the core file INPUT with the one place FROM replaced by TO. Where FROM is not there
# once, nothing is replaced: the mutant's test then finds nothing and fails.
file(READ "${INPUT}" text)
string(FIND "${text}" "${FROM}" first)
string(FIND "${text}" "${FROM}" last REVERSE)
if(first EQUAL -1 OR NOT first EQUAL last)
  message(STATUS "mutate: '${FROM}' is not there once in ${INPUT}")
else()
  string(REPLACE "${FROM}" "${TO}" text "${text}")
endif()
file(WRITE "${OUTPUT}" "${text}")
