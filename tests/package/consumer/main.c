/* SPDX-License-Identifier: Apache-2.0 */
/* An engine in C against the installed package alone: load a plugin, copy a page in, attend, print.
 * The page holds 64 tokens of one head of 64 f16 elements, all K = 0, V of token t = t, so every output
 * element is the mean of 0..63: 31.5. Usage: consumer PATH/kvspan-cpu.so */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <kvspan/kvspan.h>

enum { TOKENS = 64, HEAD = 64, PLANE = TOKENS * HEAD * 2, PAGE = 2 * PLANE };

static kvspan_error_t why = {.struct_size = sizeof(kvspan_error_t)};

static void check(kvspan_result_t result, const char *doing) {
  if (result == KVSPAN_OK) return;
  fprintf(stderr, "%s: %s (%d)\n", doing, why.message, (int)result);
  exit(1);
}

static void log_line(kvspan_host_t *self, uint32_t level, const char *text, uint32_t bytes) {
  (void)self, (void)fprintf(stderr, "plugin[%u]: %.*s\n", (unsigned)level, (int)bytes, text);
}

static void *host_alloc(kvspan_host_t *self, uint64_t bytes, uint64_t alignment) {
  return (void)self, aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void host_free(kvspan_host_t *self, void *block, uint64_t bytes, uint64_t alignment) {
  (void)self, (void)bytes, (void)alignment, free(block);
}

static uint64_t now_ns(kvspan_host_t *self) { return (void)self, 0; }
static uint64_t option(kvspan_host_t *self, const char *key, char *target, uint64_t capacity) {
  return (void)self, (void)key, (void)target, (void)capacity, 0;
} /* f16 bits of a whole number below 1024: exact. */
static uint16_t half(unsigned value) {
  unsigned exponent = 0;
  if (value == 0) return 0;
  while (value >> (exponent + 1)) ++exponent;
  return (uint16_t)(((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff));
}

int main(int argc, char **argv) {
  static const kvspan_host_services_t services = {sizeof services, KVSPAN_LOG_WARNING, NULL,   log_line,
                                                  host_alloc,      host_free,          now_ns, option};
  const kvspan_open_info_t info = {sizeof info, KVSPAN_ABI_MINOR,   KVSPAN_ABI_MINOR,
                                   0,           KVSPAN_HEADER_HASH, &services};
  kvspan_plugin_t plugin = {.struct_size = sizeof plugin};
  kvspan_device_t *device = NULL;
  kvspan_memory_t *host = NULL, *page = NULL, *workspace = NULL;
  kvspan_queue_t *queue = NULL;
  kvspan_fence_t *fence = NULL;
  void *address = NULL;
  if (argc != 2) return fprintf(stderr, "usage: consumer PLUGIN.so\n"), 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  kvspan_plugin_open_fn open_plugin = NULL;
  if (library != NULL) *(void **)&open_plugin = dlsym(library, KVSPAN_PLUGIN_OPEN_SYMBOL);
  if (open_plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 3;
  check(open_plugin(&info, &plugin, &why), "open plugin");
  const kvspan_device_table_t *devices = plugin.table(plugin.self, KVSPAN_TABLE_DEVICE);
  const kvspan_memory_table_t *memories = plugin.table(plugin.self, KVSPAN_TABLE_MEMORY);
  const kvspan_queue_table_t *queues = plugin.table(plugin.self, KVSPAN_TABLE_QUEUE);
  const kvspan_fence_table_t *fences = plugin.table(plugin.self, KVSPAN_TABLE_FENCE);
  const kvspan_copy_table_t *copies = plugin.table(plugin.self, KVSPAN_TABLE_COPY);
  const kvspan_attention_table_t *attention = plugin.table(plugin.self, KVSPAN_TABLE_ATTENTION);
  if (attention == NULL) return fprintf(stderr, "no attention here\n"), 3;
  check(devices->open(plugin.self, 0, &device, &why), "open device");

  const kvspan_queue_options_t compute = {sizeof compute, KVSPAN_ROLE_COMPUTE, 0, 0};
  check(queues->create(device, &compute, &queue, &why), "queue");
  check(fences->create(device, 0, &fence, &why), "fence");
  /* Host memory: the page, then one query row of zeros, then one output row. */
  const uint64_t q_offset = PAGE, out_offset = PAGE + HEAD * 4, host_bytes = out_offset + HEAD * 4;
  check(memories->alloc(device, KVSPAN_MEMORY_HOST, host_bytes, &host, &why), "host memory");
  check(memories->alloc(device, KVSPAN_MEMORY_DEVICE, PAGE, &page, &why), "device memory");
  check(memories->map(host, &address, &why), "map");
  memset(address, 0, host_bytes);
  uint16_t *v = (uint16_t *)((char *)address + PLANE);
  for (unsigned token = 0; token < TOKENS; ++token)
    for (unsigned element = 0; element < HEAD; ++element) v[token * HEAD + element] = half(token);

  const kvspan_point_t copied = {fence, 1}, attended = {fence, 2};
  const kvspan_submit_t upload = {.struct_size = sizeof upload, .signal_count = 1, .signals = &copied};
  const kvspan_segment_t whole = {host, page, 0, 0, PAGE, 1, 0, 0};
  check(copies->copy(queue, &whole, 1, &upload, &why), "copy");

  kvspan_attention_shape_t shape = {.struct_size = sizeof shape, .error_class = KVSPAN_ERROR_E1};
  shape.k_type = shape.v_type = KVSPAN_TYPE_F16; /* queries and outputs stay F32 = 0 */
  shape.head_size_k = shape.head_size_v = HEAD;
  shape.q_heads = shape.kv_heads = shape.rows_max = shape.entries_max = shape.items_max = shape.spans_max = 1;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE, shape.tokens_max = TOKENS;
  kvspan_attention_caps_t caps = {.struct_size = sizeof caps};
  check(attention->query(device, &shape, &caps, &why), "query");
  if (caps.level != KVSPAN_LEVEL_NATIVE) return fprintf(stderr, "not native: reasons %x\n", caps.reasons), 3;
  const uint64_t work_bytes = caps.run_workspace_bytes, visible = TOKENS;
  check(memories->alloc(device, KVSPAN_MEMORY_DEVICE, work_bytes, &workspace, &why), "workspace");
  kvspan_span_t span = {.token_count = TOKENS};
  span.k.memory = page;
  span.k.row_stride = span.k.head_stride = HEAD * 2;
  span.v = span.k, span.v.offset = PLANE;
  kvspan_entry_t entry = {.spans = &span, .visible_end = &visible, .span_count = 1, .row_count = 1};
  entry.token_total = entry.split_tokens = TOKENS;
  entry.q = (kvspan_rows_t){host, q_offset, HEAD * 4, HEAD * 4, KVSPAN_TYPE_F32, 0};
  entry.out = (kvspan_rows_t){host, out_offset, HEAD * 4, HEAD * 4, KVSPAN_TYPE_F32, 0};
  kvspan_attention_args_t args = {.struct_size = sizeof args, .entry_count = 1, .scale = 0.125f};
  args.shape = &shape, args.entries = &entry;
  args.workspace = (kvspan_range_t){workspace, 0, work_bytes};
  const kvspan_submit_t run = {sizeof run, 0, 1, 1, &copied, &attended, NULL, 0, 2};
  check(attention->run(queue, &args, &run, &why), "attend");
  check(fences->wait(device, &attended, 1, KVSPAN_WAIT_ALL, 10000000000ull, &why), "wait");
  printf("%.1f\n", (double)((float *)((char *)address + out_offset))[HEAD - 1]);

  kvspan_memory_t *const all[] = {workspace, page, host};
  for (int index = 0; index < 3; ++index) check(memories->release(all[index], &why), "release memory");
  check(fences->destroy(fence, &why), "destroy fence");
  check(queues->destroy(queue, &why), "destroy queue");
  check(devices->close(device, &why), "close device");
  check(plugin.close(plugin.self, &why), "close plugin");
  return 0;
}
