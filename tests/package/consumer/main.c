// SPDX-License-Identifier: Apache-2.0
// The smallest consumer of the installed package: the headers are found and the version is the one
// expected.

#include <kvspan/kvspan.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: consumer <plugin.so>\n");
    return 2;
  }
  printf("kvspan ABI %u.%u, plugin %s\n", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, argv[1]);
  return KVSPAN_ABI_MAJOR == 0u && KVSPAN_ABI_MINOR >= 1u ? 0 : 1;
}
