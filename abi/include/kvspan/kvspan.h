/* SPDX-License-Identifier: Apache-2.0 */
/* Everything stable, in reading order. Drafts (graph.h) are included by name only. */
#ifndef KVSPAN_KVSPAN_H
#define KVSPAN_KVSPAN_H

#include "kvspan/attention.h"
#include "kvspan/codec.h"
#include "kvspan/copy.h"
#include "kvspan/debug.h"
#include "kvspan/device.h"
#include "kvspan/entry.h"
#include "kvspan/error.h"
#include "kvspan/fence.h"
#include "kvspan/host.h"
#include "kvspan/memory.h"
#include "kvspan/native.h"
#include "kvspan/queue.h"
#include "kvspan/result.h"
#include "kvspan/types.h"
#include "kvspan/version.h"

#endif
