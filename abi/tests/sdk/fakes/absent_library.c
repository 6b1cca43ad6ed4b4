/* SPDX-License-Identifier: Apache-2.0 */
/* A library that a fake plugin is linked to and that is then not found: it is built where no search
 * path leads. */
int kvspan_absent(void);

int kvspan_absent(void) {
  return 1;
}
