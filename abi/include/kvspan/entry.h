/* SPDX-License-Identifier: Apache-2.0 */
/* How host and plugin meet: the note in the file, the one exported function, negotiation, table
 * look-up. A host reads the note before it loads anything, so a plugin that cannot work here is
 * refused by name without running a byte of it. Not here: the tables themselves. Read next:
 * device.h. */
#ifndef KVSPAN_ENTRY_H
#define KVSPAN_ENTRY_H

#include "kvspan/error.h"
#include "kvspan/host.h"
#include "kvspan/types.h"

/* ---- identity: an ELF note, section ".note.kvspan", name "kvspan", type 1
 * ------------------------ */
#define KVSPAN_NOTE_NAME "kvspan"
#define KVSPAN_NOTE_TYPE 1u

/* isa_floor: the x86-64 level that even loading the file needs (code behind run-time dispatch may
 * need more). */
typedef struct kvspan_note_t {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_min;
  uint32_t abi_minor_max;
  uint64_t header_hash; /* KVSPAN_HEADER_HASH at build time */
  uint32_t isa_floor;   /* 1..4 for x86-64-v1..v4 */
  uint32_t reserved;    /* 0 */
  char name[32];        /* "cpu"; the file is called kvspan-<name>.so */
  char vendor[32];
  char version[32];
  char libraries[128]; /* opened at run time, comma separated ("libcuda.so.1"); linked ones are in
                          the file's own list */
} kvspan_note_t;

typedef struct kvspan_note_section_t {
  uint32_t name_bytes; /* 12: "kvspan", padded with NULs so that the note below is 8-byte aligned */
  uint32_t note_bytes; /* sizeof(kvspan_note_t) */
  uint32_t type;       /* KVSPAN_NOTE_TYPE */
  char name[12];       /* KVSPAN_NOTE_NAME */
  kvspan_note_t note;
} kvspan_note_section_t;

/* Place exactly once in a plugin. Example: KVSPAN_PLUGIN_NOTE("cpu", "kvspan", "0.1.0", 2u, ""); */
#define KVSPAN_PLUGIN_NOTE(plugin_name, plugin_vendor, plugin_version, floor, run_time_libraries) \
  __attribute__((section(".note.kvspan"),                                                         \
                 used,                                                                            \
                 aligned(8))) static const kvspan_note_section_t kvspan_plugin_note = {           \
      12u,                                                                                        \
      (uint32_t)sizeof(kvspan_note_t),                                                            \
      KVSPAN_NOTE_TYPE,                                                                           \
      KVSPAN_NOTE_NAME,                                                                           \
      {(uint32_t)sizeof(kvspan_note_t),                                                           \
       KVSPAN_ABI_MAJOR,                                                                          \
       KVSPAN_ABI_MINOR,                                                                          \
       KVSPAN_ABI_MINOR,                                                                          \
       KVSPAN_HEADER_HASH,                                                                        \
       floor,                                                                                     \
       0u,                                                                                        \
       plugin_name,                                                                               \
       plugin_vendor,                                                                             \
       plugin_version,                                                                            \
       run_time_libraries}}

/* ---- tables, by id. Ids from DRAFT up may change or vanish and need the same header hash
 * --------- */
#define KVSPAN_TABLE_DEVICE 1u
#define KVSPAN_TABLE_MEMORY 2u
#define KVSPAN_TABLE_QUEUE 3u
#define KVSPAN_TABLE_FENCE 4u
#define KVSPAN_TABLE_COPY 5u
#define KVSPAN_TABLE_CODEC 6u
#define KVSPAN_TABLE_ATTENTION 7u /* optional as a whole */
#define KVSPAN_TABLE_NATIVE 8u    /* optional as a whole */
#define KVSPAN_TABLE_DEBUG 9u     /* optional as a whole */
#define KVSPAN_TABLE_DRAFT 0x80000000u
#define KVSPAN_TABLE_GRAPH (KVSPAN_TABLE_DRAFT | 1u)

/* ---- negotiation
 * ---------------------------------------------------------------------------------- */
typedef struct kvspan_open_info_t {
  uint32_t struct_size;
  uint32_t host_minor_min;
  uint32_t host_minor_max;
  uint32_t reserved; /* 0 */
  uint64_t header_hash;
  const kvspan_host_services_t* host; /* valid until close has returned */
} kvspan_open_info_t;

typedef struct kvspan_plugin_t {
  uint32_t struct_size;
  uint32_t minor;            /* chosen: min(host_minor_max, plugin_minor_max) */
  uint32_t plugin_minor_min; /* filled on failure too */
  uint32_t plugin_minor_max; /* filled on failure too */
  void* self;

  /** The table with that id, or NULL where the plugin does not offer it.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the plugin owns the table; the same pointer each time, valid until close has returned
   * @error  NULL: not offered; next: do without it, or refuse the plugin if it is a mandatory table
   * @rule   KV-TABLE-1 Every slot of a returned table is non-NULL; optional means the whole table
   * is absent.
   * @rule   KV-TABLE-2 An unknown id gives NULL.
   * @rule   KV-TABLE-3 The same pointer each time, from every thread. */
  const void*(KVSPAN_CALL* table)(void* self, uint32_t table_id)KVSPAN_NOTHROW;

  /** Ends the plugin: joins its threads, frees its memory, leaves no handler, file or mapping of
   * its own.
   * @thread SOLO
   * @shape  none
   * @unit   none
   * @own    self and every table are dead afterwards
   * @error  BUSY: devices are still open, provided = how many; next: close them and call again
   * @rule   KV-CLOSE-1 Nothing of the plugin runs after close returned OK.
   * @rule   KV-CLOSE-2 A plugin opened again after close behaves as on the first open.
   * @rule   KV-CLOSE-3 BUSY changes nothing: the devices work on. */
  kvspan_result_t(KVSPAN_CALL* close)(void* self, kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_plugin_t;

/* The one exported symbol of a plugin for major 0.
 * Accepts when header_hash equals its own and the minor ranges meet; else VERSION, keeping no
 * state, with the plugin's range filled in `plugin` and the sentence in `error`.
 * @thread SOLO
 * Errors: VERSION (use a plugin of this header), INVALID_ARG (NULL), BAD_STRUCT_SIZE, HOST_MEMORY.
 * KV-ENTRY-1 The only exported name of the file.  KV-ENTRY-2 Different header hashes never meet
 * while major is 0.  KV-ENTRY-3 The chosen minor is min(both maxima) where that is >= both minima,
 * else VERSION.  KV-ENTRY-4 A refused open keeps no state and fills the plugin's range.
 * KV-ENTRY-5 The file needs no executable stack and no relocation of its code. */
typedef kvspan_result_t(KVSPAN_CALL* kvspan_plugin_open_fn)(const kvspan_open_info_t* info,
                                                            kvspan_plugin_t* plugin,
                                                            kvspan_error_t* error);
#define KVSPAN_PLUGIN_OPEN_SYMBOL "kvspan_plugin_open_0"

#ifdef __cplusplus
extern "C" {
#endif
KVSPAN_EXPORT kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(
    const kvspan_open_info_t* info, kvspan_plugin_t* plugin, kvspan_error_t* error) KVSPAN_NOTHROW;
#ifdef __cplusplus
}
#endif

#endif
