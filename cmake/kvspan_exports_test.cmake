# SPDX-License-Identifier: Apache-2.0
# kvspan_add_exports_test(<name>): the ctest entry abi.exports.<name> looks at what the built plugin
# kvspan-<name> exports (tools/exports.py). kvspan_add_plugin calls it in
# developer builds without sanitizers.
function(kvspan_add_exports_test name)
  kvspan_register_test(abi.exports.${name}
    COMMAND ${KVSPAN_PYTHON} "${kvspan_SOURCE_DIR}/tools/exports.py" "$<TARGET_FILE:kvspan-${name}>"
    LABELS abi)
endfunction()
