/* SPDX-License-Identifier: Apache-2.0 */
/* Words that every other header uses: platform macros, thread classes, handles, element types, byte
 * ranges. Not here: result codes (result.h), tables (one header a noun). Read next: result.h,
 * error.h, entry.h. */
#ifndef KVSPAN_TYPES_H
#define KVSPAN_TYPES_H

#include "kvspan/version.h"

#include <stddef.h>
#include <stdint.h>

/* ---- platform ----------------------------------------------------------------------------------
 */
#if defined(_WIN32)
#define KVSPAN_CALL __cdecl
#define KVSPAN_EXPORT __declspec(dllexport)
#else
#define KVSPAN_CALL
#define KVSPAN_EXPORT __attribute__((visibility("default")))
#endif

/* The same ABI in every language; for C++ authors a slot that could throw becomes a compile error.
 */
#if defined(__cplusplus)
#define KVSPAN_NOTHROW noexcept
#else
#define KVSPAN_NOTHROW
#endif

/* ---- thread classes: each slot's comment names one after @thread --------------------------------
 * ANY          callable at the same time from any thread.
 * SYNC(object) the caller never lets two calls that name the same object overlap; any thread may
 * make them. SOLO         no other call into this plugin may be in flight. NOBLOCK      (with one
 * of the above) returns without waiting for device work. */

/* KV-THREAD-1 Slots of class ANY give the same answers from many threads at once as from one.
 * KV-THREAD-2 No slot remembers which thread called before: objects go from thread to thread with
 * no more than the order of the calls. */

/* ---- structs: each begins with struct_size, set by the caller -----------------------------------
 * KV-STRUCT-1 While the major is 0 a struct that the plugin reads has one size; another is
 * BAD_STRUCT_SIZE. KV-STRUCT-2 A struct that the plugin fills is never written past the size that
 * the caller gave, and its struct_size then says how many bytes were written (an error record has
 * one size). KV-STRUCT-3 NULL, an unknown bit or a misplaced offset where a comment allows none is
 * INVALID_ARG, never a crash. KV-STRUCT-4 On failure every out parameter but the error keeps what
 * it held; on OK every new handle is non-NULL and differs from all that are alive. */

/* ---- handles: made and destroyed by the plugin, opaque to everybody else ------------------------
 */
typedef struct kvspan_device_s kvspan_device_t;
typedef struct kvspan_memory_s kvspan_memory_t;
typedef struct kvspan_queue_s kvspan_queue_t;
typedef struct kvspan_fence_s kvspan_fence_t;

/* ---- amounts ------------------------------------------------------------------------------------
 */
#define KVSPAN_UNKNOWN_AMOUNT \
  UINT64_MAX /* "this plugin cannot tell"; legal only where a comment says so */

/* ---- element types: numbers and byte layouts are those of GGML, so that caches and models
 * interchange. A row of E elements takes E / block_elements * block_bytes bytes; E must be a
 * multiple of block_elements. Ids from KVSPAN_TYPE_VENDOR up belong to plugins (a plugin describes
 * them in its documentation). */
typedef uint32_t kvspan_type_t;
#define KVSPAN_TYPE_F32 0u   /* 1 element, 4 bytes */
#define KVSPAN_TYPE_F16 1u   /* 1 element, 2 bytes */
#define KVSPAN_TYPE_Q4_0 2u  /* 32 elements, 18 bytes */
#define KVSPAN_TYPE_Q4_1 3u  /* 32 elements, 20 bytes */
#define KVSPAN_TYPE_Q5_0 6u  /* 32 elements, 22 bytes */
#define KVSPAN_TYPE_Q5_1 7u  /* 32 elements, 24 bytes */
#define KVSPAN_TYPE_Q8_0 8u  /* 32 elements, 34 bytes */
#define KVSPAN_TYPE_BF16 30u /* 1 element, 2 bytes */
#define KVSPAN_TYPE_VENDOR 0x80000000u

/* ---- a named piece of memory: a value, not an object --------------------------------------------
 * The plugin keeps nothing about it; the bytes stay valid because the caller keeps `memory` alive.
 */
typedef struct kvspan_range_t {
  kvspan_memory_t* memory; /* NULL means "none" where a comment allows it */
  uint64_t offset;         /* bytes from the start of memory */
  uint64_t bytes;
} kvspan_range_t;

/* Rows of the engine: queries, new K or V, outputs. [row, head, element]; strides in bytes.
 * Element e of head h of row r lies at offset + r * row_stride + h * head_stride + e * size of
 * type. Offset and strides are multiples of that size, anything else is INVALID_ARG. */
typedef struct kvspan_rows_t {
  kvspan_memory_t* memory;
  uint64_t offset;
  uint64_t row_stride;
  uint64_t head_stride;
  kvspan_type_t type; /* F32, F16 or BF16 */
  uint32_t reserved;  /* 0 */
} kvspan_rows_t;

/* Where typed K or V rows of a run of tokens lie. Token t of the run, head h:
 *   offset + slot(t / page_tokens) * page_stride + (t % page_tokens) * row_stride + h * head_stride
 * slot(k) = page_list[k], or k where page_list is NULL. page_tokens = 0: contiguous, t *
 * row_stride. So a page's K and V may be adjacent, a resident run is one span, and scattered slots
 * are one span too. */
typedef struct kvspan_plane_t {
  kvspan_memory_t* memory;
  uint64_t offset;           /* bytes */
  uint64_t page_stride;      /* bytes between slots */
  uint64_t row_stride;       /* bytes between tokens of a page */
  uint64_t head_stride;      /* bytes between KV heads of a token */
  const uint32_t* page_list; /* [page_count] slots, or NULL; copied before the call returns */
  uint32_t page_tokens;      /* tokens a page; 0 = contiguous */
  uint32_t page_count;       /* entries of page_list; 0 without a list */
} kvspan_plane_t;

#endif
