/* SPDX-License-Identifier: Apache-2.0 */
/* DRAFT. Recording submits that carry no points, and launching them again with new arguments.
 * Ids are final, everything else may change; a host that includes this opts in. Not in kvspan.h.
 * Arguments are given as the structs of the slots, not as bytes: which bytes a device wants is the
 * plugin's own matter. It keeps them once for each launch that may be in flight. */
#ifndef KVSPAN_GRAPH_H
#define KVSPAN_GRAPH_H

#include "kvspan/attention.h"
#include "kvspan/codec.h"
#include "kvspan/error.h"
#include "kvspan/queue.h"
#include "kvspan/types.h"

typedef struct kvspan_graph_s kvspan_graph_t;

/* kinds of recorded submits */
#define KVSPAN_GRAPH_SAME 0u /* as recorded, whatever it was */
#define KVSPAN_GRAPH_ENCODE 1u
#define KVSPAN_GRAPH_DECODE 2u
#define KVSPAN_GRAPH_RUN 3u
#define KVSPAN_GRAPH_ADVANCE 4u
#define KVSPAN_GRAPH_FOLD 5u
#define KVSPAN_GRAPH_FINISH 6u

/* What a launch gives one recorded submit in place of what was recorded. */
typedef struct kvspan_graph_arguments_t {
  uint32_t kind;                            /* KVSPAN_GRAPH_*: the recorded one, or SAME */
  uint32_t count;                           /* items; FINISH: as the args' entry_count */
  const kvspan_attention_args_t* attention; /* NULL for ENCODE and DECODE */
  const void* items; /* [count] kvspan_codec_item_t, kvspan_advance_item_t, kvspan_fold_item_t, or
                        FINISH's kvspan_state_t; NULL for RUN */
} kvspan_graph_arguments_t;

typedef struct kvspan_graph_options_t {
  uint32_t struct_size;
  uint32_t launches_max; /* with arguments of their own, in flight at once: 2..8; 0 = 2 */
} kvspan_graph_options_t;

typedef struct kvspan_graph_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Starts recording the submits of a queue instead of running them: of codec, attention and
   * fill, without points, cancel word or flags. The engine's own work on an imported stream is not
   * recorded.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    the queue lives until end
   * @error  BUSY: the queue is recording already; next: end that recording
   * @error  INVALID_ARG: launches_max is not one of these
   * @rule   KV-GRAPH-1 Between begin and end a copy is UNSUPPORTED at once and the recording goes
   * on. */
  kvspan_result_t(KVSPAN_CALL* begin)(kvspan_queue_t* queue,
                                      const kvspan_graph_options_t* options,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends the recording and gives the executable.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    the caller owns the graph and destroys it before the device closes; memories that it
   * names are BUSY until then
   * @error  INVALID_ARG: nothing is being recorded
   * @error  HOST_MEMORY, DEVICE_MEMORY: the recording is gone; next: free some, record again
   * @rule   KV-GRAPH-2 A failed capture leaves the queue usable. */
  kvspan_result_t(KVSPAN_CALL* end)(kvspan_queue_t* queue,
                                    kvspan_graph_t** out_graph,
                                    kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Runs a graph as one submit, on any queue of its device, one call for a graph at a time.
   * Without arguments it runs as launched last, at first as recorded. With arguments each recorded
   * submit gets its own, in the order of recording.
   * @thread SYNC(queue) NOBLOCK
   * @shape  arguments [count]; count is 0 or the number of recorded submits
   * @unit   as the slots'
   * @own    arrays are copied before return; memories live until they are no longer named
   * @error  INVALID_ARG: another count or kind, another device's queue, or SAME for a submit that
   * had other arguments since
   * @error  what the recorded slot says to these arguments; its place is within them
   * @error  UNSUPPORTED: these arguments need other device work than was recorded; next: record
   * again
   * @error  QUEUE_FULL: launches_max are in flight, required = launches_max + 1; next: wait for one
   * @error  as a submit
   * @rule   KV-GRAPH-3 A launch has the bits of the submits it recorded, with its arguments.
   * @rule   KV-GRAPH-5 A refused launch enqueues nothing, and the next one without arguments runs
   * as the last one that was accepted. */
  kvspan_result_t(KVSPAN_CALL* launch)(kvspan_queue_t* queue,
                                       kvspan_graph_t* graph,
                                       const kvspan_graph_arguments_t* arguments,
                                       uint32_t count,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends a graph that is not running.
   * @thread SYNC(graph)
   * @shape  none
   * @unit   none
   * @own    graph is dead after OK
   * @error  BUSY: a launch is in flight; next: wait for it
   * @rule   KV-GRAPH-4 A running graph is never freed. */
  kvspan_result_t(KVSPAN_CALL* destroy)(kvspan_graph_t* graph,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_graph_table_t;

#endif
