/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin for the loader's tests: complete by default, broken in one way by a FAKE_* definition.
 * Its memory comes from the host, so that tests can count what is left. Slots that no test calls
 * are one function that refuses. Not a model for a backend: that is plugins/stub. */
#include "kvspan/kvspan.h"

#include <string.h>

#ifdef FAKE_HASH
#undef KVSPAN_HEADER_HASH
#define KVSPAN_HEADER_HASH FAKE_HASH
#endif
#ifdef FAKE_MAJOR
#undef KVSPAN_ABI_MAJOR
#define KVSPAN_ABI_MAJOR FAKE_MAJOR
#endif
#ifndef FAKE_FLOOR
#define FAKE_FLOOR 2u
#endif
#ifndef FAKE_MISSING_TABLE
#define FAKE_MISSING_TABLE 0u
#endif

#ifndef FAKE_NO_NOTE
KVSPAN_PLUGIN_NOTE("fake", "kvspan tests", "1.2.3", FAKE_FLOOR, "libone.so.1, libtwo.so");
#endif
#ifdef FAKE_SECOND_NOTE
__attribute__((
    section(".note.kvspan"), used, aligned(8))) static const kvspan_note_section_t second_note = {
    12u, (uint32_t)sizeof(kvspan_note_t), KVSPAN_NOTE_TYPE, KVSPAN_NOTE_NAME, {0}};
#endif

typedef struct fake_self_t {
  const kvspan_host_services_t* host;
  uint64_t devices;
  kvspan_device_table_t device;
  kvspan_memory_table_t memory;
  kvspan_queue_table_t queue;
  kvspan_fence_table_t fence;
  kvspan_copy_table_t copy;
  kvspan_codec_table_t codec;
} fake_self_t;

struct kvspan_device_s {
  fake_self_t* self;
};

static void fake_log(const kvspan_host_services_t* host, const char* text) {
  host->log(host->self, KVSPAN_LOG_INFO, text, (uint32_t)strlen(text));
}

static kvspan_result_t fake_refuse(kvspan_error_t* error, kvspan_result_t code, const char* text) {
  if (error != NULL) {
    memset(error, 0, sizeof *error);
    error->struct_size = (uint32_t)sizeof *error;
    error->code = code;
    error->field_offset = UINT32_MAX;
    strncpy(error->message, text, sizeof error->message - 1);
  }
  return code;
}

static kvspan_result_t KVSPAN_CALL fake_slot(void) {
  return KVSPAN_E_UNSUPPORTED;
}

/* Every slot of a table refuses. */
static void fake_fill(void* table, uint32_t bytes) {
  kvspan_result_t(KVSPAN_CALL * slot)(void) = fake_slot;
  memset(table, 0, bytes);
  memcpy(table, &bytes, sizeof bytes);
  for (uint32_t at = 8; at < bytes; at += (uint32_t)sizeof slot) {
    memcpy((char*)table + at, (const void*)&slot, sizeof slot);
  }
}

/* Index 0 opens, 1 returns OK and no device, 2 is refused. */
static kvspan_result_t KVSPAN_CALL fake_device_open(void* self,
                                                    uint32_t index,
                                                    kvspan_device_t** out_device,
                                                    kvspan_error_t* error) {
  fake_self_t* own = (fake_self_t*)self;
  if (index == 1) {
    return KVSPAN_OK;
  }
  if (index == 2) {
    return fake_refuse(error, KVSPAN_E_NO_DEVICE, "there is no device 2");
  }
  kvspan_device_t* device = (kvspan_device_t*)own->host->alloc(own->host->self, sizeof *device, 8);
  if (device == NULL) {
    return fake_refuse(error, KVSPAN_E_HOST_MEMORY, "out of memory");
  }
  device->self = own;
  own->devices += 1;
  *out_device = device;
  return KVSPAN_OK;
}

static kvspan_result_t KVSPAN_CALL fake_device_close(kvspan_device_t* device,
                                                     kvspan_error_t* error) {
  (void)error;
  const kvspan_host_services_t* host = device->self->host;
  device->self->devices -= 1;
  host->free(host->self, device, sizeof *device, 8);
  return KVSPAN_OK;
}

static const void* KVSPAN_CALL fake_table(void* self, uint32_t table_id) {
  fake_self_t* own = (fake_self_t*)self;
#ifdef FAKE_ANY_TABLE
  return &own->device;
#endif
  if (table_id == FAKE_MISSING_TABLE) {
    return NULL;
  }
  switch (table_id) {
    case KVSPAN_TABLE_DEVICE:
      return &own->device;
    case KVSPAN_TABLE_MEMORY:
      return &own->memory;
    case KVSPAN_TABLE_QUEUE:
      return &own->queue;
    case KVSPAN_TABLE_FENCE:
      return &own->fence;
    case KVSPAN_TABLE_COPY:
      return &own->copy;
    case KVSPAN_TABLE_CODEC:
      return &own->codec;
    default:
      return NULL;
  }
}

static kvspan_result_t KVSPAN_CALL fake_close(void* self, kvspan_error_t* error) {
  fake_self_t* own = (fake_self_t*)self;
  const kvspan_host_services_t* host = own->host;
  if (own->devices != 0) {
    return fake_refuse(error, KVSPAN_E_BUSY, "devices are open");
  }
  fake_log(host, "closed");
  host->free(host->self, own, sizeof *own, 64);
  return KVSPAN_OK;
}

#ifndef FAKE_NO_ENTRY
kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                 kvspan_plugin_t* plugin,
                                                 kvspan_error_t* error) {
  plugin->plugin_minor_min = KVSPAN_ABI_MINOR;
  plugin->plugin_minor_max = KVSPAN_ABI_MINOR;
#ifdef FAKE_OPEN_CODE
  return fake_refuse(error, FAKE_OPEN_CODE, "the moon is in the wrong house");
#endif
  fake_self_t* own = (fake_self_t*)info->host->alloc(info->host->self, sizeof *own, 64);
  if (own == NULL) {
    return fake_refuse(error, KVSPAN_E_HOST_MEMORY, "out of memory");
  }
  memset(own, 0, sizeof *own);
  own->host = info->host;
  fake_fill(&own->device, (uint32_t)sizeof own->device);
  fake_fill(&own->memory, (uint32_t)sizeof own->memory);
  fake_fill(&own->queue, (uint32_t)sizeof own->queue);
  fake_fill(&own->fence, (uint32_t)sizeof own->fence);
  fake_fill(&own->copy, (uint32_t)sizeof own->copy);
  fake_fill(&own->codec, (uint32_t)sizeof own->codec);
  own->device.open = fake_device_open;
  own->device.close = fake_device_close;
  plugin->struct_size = (uint32_t)sizeof *plugin;
  plugin->minor = KVSPAN_ABI_MINOR;
  plugin->self = own;
  plugin->table = fake_table;
  plugin->close = fake_close;
  fake_log(info->host, "opened");
#ifdef FAKE_NULL_SLOT
  own->copy.limits = NULL;
#endif
#ifdef FAKE_SHORT_TABLE
  own->fence.struct_size -= 8;
#endif
#ifdef FAKE_WRONG_MINOR
  plugin->minor = 42;
#endif
#ifdef FAKE_OTHER_RANGE
  plugin->plugin_minor_max = 99;
#endif
#ifdef FAKE_NO_TABLE_FUNCTION
  plugin->table = NULL;
#endif
  return KVSPAN_OK;
}
#else
void* fake_unused[] = {(void*)fake_table,
                       (void*)fake_close,
                       (void*)fake_fill,
                       (void*)fake_device_open,
                       (void*)fake_device_close};
#endif
