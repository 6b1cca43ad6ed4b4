/* SPDX-License-Identifier: Apache-2.0 */
/* DRAFT. Capturing submits that carry no points, and launching them again with new arguments.
 * Ids are final, everything else may change; a host that includes this opts in. Not in kvspan.h. */
#ifndef KVSPAN_GRAPH_H
#define KVSPAN_GRAPH_H

#include "kvspan/error.h"
#include "kvspan/queue.h"
#include "kvspan/types.h"

typedef struct kvspan_graph_s kvspan_graph_t;

typedef struct kvspan_graph_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Starts recording the submits of a queue instead of running them. Copies are not capturable.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    nothing
   * @error  BUSY: the queue is recording already; next: end that capture
   * @rule   KV-GRAPH-1 Between begin and end a copy is UNSUPPORTED at once and the capture goes on.
   */
  kvspan_result_t(KVSPAN_CALL* begin)(kvspan_queue_t* queue, kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends the recording and gives the executable.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    the caller owns the graph and destroys it before the queue
   * @error  INVALID_ARG: nothing is being recorded
   * @rule   KV-GRAPH-2 A failed capture leaves the queue usable. */
  kvspan_result_t(KVSPAN_CALL* end)(kvspan_queue_t* queue,
                                    kvspan_graph_t** out_graph,
                                    kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Runs a graph with the arguments in a device block that the host wrote.
   * @thread SYNC(queue) NOBLOCK
   * @shape  arguments as the plugin's documentation says
   * @unit   bytes
   * @own    as a submit
   * @error  as a submit
   * @rule   KV-GRAPH-3 A launch has the bits of the submits it recorded. */
  kvspan_result_t(KVSPAN_CALL* launch)(kvspan_queue_t* queue,
                                       kvspan_graph_t* graph,
                                       const kvspan_range_t* arguments,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends a graph that is not running.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    graph is dead after OK
   * @error  BUSY: a launch is in flight; next: wait for it
   * @rule   KV-GRAPH-4 A running graph is never freed. */
  kvspan_result_t(KVSPAN_CALL* destroy)(kvspan_graph_t* graph,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_graph_table_t;

#endif
