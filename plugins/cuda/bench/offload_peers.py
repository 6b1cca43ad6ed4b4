#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What others take for attention over a history in host memory: one row of geometry A (24 query heads,
4 KV heads, head size 256) over 32K tokens in f16, 16 layers, on the card and link of this machine.

  double_buffered_us   two buffers on the card, a layer's K and V copied while the layer before is
                       attended with torch's scaled_dot_product_attention (P12's stricter peer)
  transformers_us      the offloaded cache of the transformers library, as it comes

Microseconds a layer, median of 7 steps behind 2. Prints JSON. Needs torch and, for the second, transformers.

    offload_peers.py [FILE]
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional

TOKENS, LAYERS, HEADS, KV_HEADS, SIZE = 32768, 16, 24, 4, 256


def attend(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def timed(step):
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / LAYERS * 1e6)
    return {
        "median": statistics.median(times[2:]),
        "min": min(times[2:]),
        "max": max(times[2:]),
    }


def double_buffered():
    shape = (2, 1, KV_HEADS, TOKENS, SIZE)
    host = [torch.randn(shape, dtype=torch.float16).pin_memory() for _ in range(4)]
    card = [torch.empty(shape, dtype=torch.float16, device="cuda") for _ in range(2)]
    q = torch.randn((1, HEADS, 1, SIZE), dtype=torch.float16, device="cuda")
    copies = torch.cuda.Stream()
    arrived = [torch.cuda.Event() for _ in range(2)]
    read = [torch.cuda.Event() for _ in range(2)]

    def step():
        for layer in range(LAYERS):
            slot = layer % 2
            with torch.cuda.stream(copies):
                copies.wait_event(read[slot])
                card[slot].copy_(host[layer % len(host)], non_blocking=True)
                arrived[slot].record(copies)
            torch.cuda.current_stream().wait_event(arrived[slot])
            attend(q, card[slot][0], card[slot][1])
            read[slot].record()

    return timed(step)


def offloaded_cache():
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(offloading=True)

    def rows(count):
        return torch.randn((1, KV_HEADS, count, SIZE), dtype=torch.float16, device="cuda")

    q = torch.randn((1, HEADS, 1, SIZE), dtype=torch.float16, device="cuda")
    for layer in range(LAYERS):
        cache.update(rows(TOKENS - 16), rows(TOKENS - 16), layer)
    k, v = rows(1), rows(1)

    def step():
        for layer in range(LAYERS):
            attend(q, *cache.update(k, v, layer))

    return timed(step)


def main():
    out = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "tokens": TOKENS,
        "layers": LAYERS,
    }
    for name, peer in (("double_buffered_us", double_buffered), ("transformers_us", offloaded_cache)):
        try:
            out[name] = peer()
        except Exception as failed:  # a peer that is not there is told, not timed
            out[name] = {"failure": f"{type(failed).__name__}: {failed}"}
    try:
        import transformers

        out["transformers"] = transformers.__version__
    except ImportError:
        pass
    text = json.dumps(out, indent=1)
    print(text)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
