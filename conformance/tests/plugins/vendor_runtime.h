/* SPDX-License-Identifier: Apache-2.0 */
/* The two calls of the runtime that stands for a vendor's: vendor_runtime.c. */
#ifndef KVSPAN_CONFORMANCE_TESTS_VENDOR_RUNTIME_H
#define KVSPAN_CONFORMANCE_TESTS_VENDOR_RUNTIME_H

/* Starts the runtime, once a process: an event descriptor and a thread stay. 0, or -1. */
__attribute__((visibility("default"))) int vendor_start(void);

/* Starts a thread more that stays. 0, or -1. */
__attribute__((visibility("default"))) int vendor_start_thread(void);

#endif
