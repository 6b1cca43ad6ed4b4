#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch as the engine: it owns context, memory, stream and events, kvspan-cuda.so attends.

Each round a torch kernel makes a token's K, V and Q rows; our queue encodes and attends behind
torch's event; a torch kernel reads the output behind our point. The host waits for nothing: the
first rounds are submitted while a sleeping kernel keeps torch's stream busy, and none is reached.
Values are compared with torch's own attention in float64. Plain ctypes against the C ABI.

    torch_engine.py PLUGIN VERSION_H      exit 0: right; 1: wrong; 77: no torch or no card here
"""
import ctypes as c
import pathlib
import re
import sys
import time

try:
    import torch
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(77)

U32, U64, PTR = c.c_uint32, c.c_uint64, c.c_void_p
Q_HEADS, KV_HEADS, HEAD = 8, 2, 128
ROUNDS, GATED = 200, 12  # CUDA itself holds its caller up at about 18 such rounds
F32, F16 = 0, 1
GATE_SECONDS = 2.0


def struct(name: str, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


def table(name: str, *slots):
    return struct(name, ("struct_size", U32), ("reserved", U32), *((slot, PTR) for slot in slots))


Error = struct("Error", ("struct_size", U32), ("code", c.c_int32), ("resource", U32),
               ("flags", U32), ("required", U64), ("provided", U64), ("missing", U64),
               ("submit_id", U64), ("argument", U32), ("field_offset", U32), ("reasons", U32),
               ("native_code", c.c_int32), ("where", c.c_char * 64), ("message", c.c_char * 208))
Host = struct("Host", ("struct_size", U32), ("log_level", U32), ("self", PTR), ("log", PTR),
              ("alloc", PTR), ("free", PTR), ("now_ns", PTR), ("option", PTR))
OpenInfo = struct("OpenInfo", ("struct_size", U32), ("minor_min", U32), ("minor_max", U32),
                  ("reserved", U32), ("header_hash", U64), ("host", PTR))
Plugin = struct("Plugin", ("struct_size", U32), ("minor", U32), ("minor_min", U32),
                ("minor_max", U32), ("self", PTR), ("table", PTR), ("close", PTR))
Point = struct("Point", ("fence", PTR), ("value", U64))
Submit = struct("Submit", ("struct_size", U32), ("flags", U32), ("wait_count", U32),
                ("signal_count", U32), ("waits", PTR), ("signals", PTR), ("cancel_memory", PTR),
                ("cancel_offset", U64), ("submit_id", U64))
QueueOptions = struct("QueueOptions", ("struct_size", U32), ("role", U32), ("depth", U32),
                      ("reserved", U32))
Range = struct("Range", ("memory", PTR), ("offset", U64), ("bytes", U64))
Rows = struct("Rows", ("memory", PTR), ("offset", U64), ("row_stride", U64),
              ("head_stride", U64), ("type", U32), ("reserved", U32))
Plane = struct("Plane", ("memory", PTR), ("offset", U64), ("page_stride", U64),
               ("row_stride", U64), ("head_stride", U64), ("page_list", PTR),
               ("page_tokens", U32), ("page_count", U32))
CodecItem = struct("CodecItem", ("rows", Rows), ("plane", Plane), ("first_token", U64),
                   ("type", U32), ("row_count", U32), ("head_count", U32), ("head_size", U32))
Span = struct("Span", ("first_token", U64), ("token_count", U64), ("k", Plane), ("v", Plane))
Entry = struct("Entry", ("spans", PTR), ("visible_end", PTR), ("window_begin", PTR),
               ("suffix_mask", PTR), ("positions", PTR), ("span_count", U32), ("row_count", U32),
               ("suffix_count", U32), ("reserved", U32), ("token_total", U64),
               ("split_tokens", U64), ("q", Rows), ("out", Rows), ("lse", Range))
Args = struct("Args", ("struct_size", U32), ("entry_count", U32), ("shape", PTR),
              ("entries", PTR), ("scale", c.c_float), ("soft_cap", c.c_float), ("sinks", Range),
              ("slopes", Range), ("workspace", Range))
Shape = struct("Shape", *((name, U32) for name in (
    "struct_size", "options", "k_type", "v_type", "q_type", "out_type", "head_size_k",
    "head_size_v", "q_heads", "kv_heads", "row_class", "error_class", "memory_kinds", "rows_max",
    "entries_max", "items_max", "spans_max", "reserved")), ("tokens_max", U64))
Caps = struct("Caps", *((name, U32) for name in (
    "struct_size", "level", "reasons", "error_class", "determinism", "width_invariant_max",
    "span_granule", "split_count", "spans_max", "span_pages_max", "workspace_alignment",
    "state_alignment")), *((name, U64) for name in (
        "run_workspace_bytes", "advance_workspace_bytes", "fold_workspace_bytes",
        "finish_workspace_bytes", "state_u_bytes", "state_ml_bytes", "read_bytes", "flops")),
    *((name, U32) for name in ("nearest_k_type", "nearest_v_type", "nearest_head_size_k",
                               "nearest_head_size_v", "nearest_rows", "nearest_error_class")))

TABLES = {
    "device": (1, table("Device", "count", "describe", "open", "close", "free_bytes", "prepare")),
    "memory": (2, table("Memory", "alloc", "import_host", "map", "release")),
    "queue": (3, table("Queue", "create", "destroy")),
    "fence": (4, table("Fence", "create", "query", "wait", "signal", "fail", "destroy")),
    "codec": (6, table("Codec", "query", "encode", "decode")),
    "attention": (7, table("Attention", "query", "rules", "run", "advance", "fold", "finish")),
    "native": (8, table("Native", "open", "import_memory", "import_queue", "import_point",
                        "export_point")),
}


class Failure(Exception):
    """A check that did not hold, in words."""


class Driver:
    """The calling thread's current context, by the driver itself."""

    def __init__(self):
        self.library = c.CDLL("libcuda.so.1")

    def context(self) -> int:
        found = PTR()
        if self.library.cuCtxGetCurrent(c.byref(found)) != 0:
            raise Failure("cuCtxGetCurrent failed")
        return found.value or 0


class Services:
    """What a plugin gets from its host; kept alive as long as the plugin."""

    def __init__(self):
        libc = c.CDLL(None)
        libc.aligned_alloc.restype = PTR
        libc.aligned_alloc.argtypes = [c.c_size_t, c.c_size_t]
        libc.free.argtypes = [PTR]

        def take(_self, count, alignment):
            unit = max(alignment, 8)
            return libc.aligned_alloc(unit, (count + unit - 1) // unit * unit)

        self.slots = [
            c.CFUNCTYPE(None, PTR, U32, PTR, U32)(
                lambda _self, _level, text, count: print("log:", c.string_at(text, count))),
            c.CFUNCTYPE(PTR, PTR, U64, U64)(take),
            c.CFUNCTYPE(None, PTR, PTR, U64, U64)(lambda _self, block, _n, _a: libc.free(block)),
            c.CFUNCTYPE(U64, PTR)(lambda _self: time.monotonic_ns()),
            c.CFUNCTYPE(U64, PTR, c.c_char_p, PTR, U64)(lambda _self, _k, _t, _n: 0),
        ]
        self.struct = Host(c.sizeof(Host), 1, None, *(c.cast(s, PTR) for s in self.slots))


class Backend:
    """The plugin's tables; every call checks its result and the thread's current context."""

    def __init__(self, path: str, header_hash: int, driver: Driver):
        self.driver = driver
        self.context = driver.context()
        self.services = Services()
        self.library = c.CDLL(path)
        self.error = Error(c.sizeof(Error))
        info = OpenInfo(c.sizeof(OpenInfo), 0, 0xffffffff, 0, header_hash,
                        c.addressof(self.services.struct))
        self.plugin = Plugin(c.sizeof(Plugin))
        result = self.library.kvspan_plugin_open_0(c.byref(info), c.byref(self.plugin),
                                                   c.byref(self.error))
        if result != 0:
            raise Failure(f"open: {result} {self.error.message.decode()}")
        get = c.CFUNCTYPE(PTR, PTR, U32)(self.plugin.table)
        self.tables = {name: kind.from_address(get(self.plugin.self, number))
                       for name, (number, kind) in TABLES.items()}

    def ask(self, slot: str, *arguments) -> int:
        """Calls e.g. "codec.encode"; arguments are integers and ctypes objects."""
        name, member = slot.split(".")
        by_address = (c.Structure, c.Array, U64, PTR)  # the others are integers
        passed = [c.addressof(a) if isinstance(a, by_address) else a for a in arguments]
        function = c.CFUNCTYPE(c.c_int32, *([U64] * len(passed)), PTR)(
            getattr(self.tables[name], member))
        result = function(*passed, c.addressof(self.error))
        if self.driver.context() != self.context:
            raise Failure(f"{slot} changed the thread's current context")
        return result

    def call(self, slot: str, *arguments) -> None:
        result = self.ask(slot, *arguments)
        if result != 0:
            raise Failure(f"{slot}: {result} {self.error.message.decode()}")

    def made(self, slot: str, *arguments) -> int:
        out = PTR()
        self.call(slot, *arguments, out)
        return out.value

    def close(self) -> None:
        if c.CFUNCTYPE(c.c_int32, PTR, PTR)(self.plugin.close)(
                self.plugin.self, c.addressof(self.error)) != 0:
            raise Failure(f"close: {self.error.message.decode()}")


class Layer:
    """One layer: rows and outputs are torch's, the cache too, workspace is ours."""

    def __init__(self, backend: Backend):
        self.backend = backend
        torch.manual_seed(20261129)
        made = {"dtype": torch.float32, "device": "cuda"}
        self.k_all = torch.randn(ROUNDS, KV_HEADS, HEAD, **made)
        self.v_all = torch.randn(ROUNDS, KV_HEADS, HEAD, **made)
        self.q_all = torch.randn(ROUNDS, Q_HEADS, HEAD, **made)
        self.rows = torch.zeros(2 * KV_HEADS + 2 * Q_HEADS, HEAD, **made)
        self.cache = torch.zeros(2, ROUNDS, KV_HEADS, HEAD, dtype=torch.float16, device="cuda")
        self.outputs = torch.full((ROUNDS, Q_HEADS, HEAD), float("nan"), **made)
        torch.cuda.synchronize()
        self.device = backend.made("native.open", backend.plugin.self, 0, backend.context)
        self.memories = {name: self.take(tensor) for name, tensor in
                         (("rows", self.rows), ("cache", self.cache))}
        self.shape = Shape(c.sizeof(Shape), 0, F16, F16, F32, F32, HEAD, HEAD, Q_HEADS, KV_HEADS,
                           0, 0, 1, 1, 1, 1024, 4, 0, ROUNDS)
        self.caps = Caps(c.sizeof(Caps))
        backend.call("attention.query", self.device, self.shape, self.caps)
        if self.caps.level != 2:
            raise Failure(f"attention.query: reasons {self.caps.reasons:#x}")
        self.memories["workspace"] = backend.made("memory.alloc", self.device, 0,
                                                  self.caps.run_workspace_bytes)
        self.fence = backend.made("fence.create", self.device, 0)

    def take(self, tensor) -> int:
        return self.backend.made("native.import_memory", self.device, tensor.data_ptr(),
                                 tensor.numel() * tensor.element_size())

    def close(self) -> None:
        self.backend.call("fence.destroy", self.fence)
        for memory in self.memories.values():
            self.backend.call("memory.release", memory)
        self.backend.call("device.close", self.device)

    def rows_at(self, first: int) -> Rows:
        return Rows(self.memories["rows"], 4 * HEAD * first, 4 * HEAD * Q_HEADS, 4 * HEAD, F32, 0)

    def plane(self, side: int) -> Plane:
        row = 2 * KV_HEADS * HEAD
        return Plane(self.memories["cache"], side * ROUNDS * row, 0, row, 2 * HEAD, None, 0, 0)

    def produce(self, token: int) -> None:
        """Torch's kernels, on torch's current stream."""
        self.rows[:KV_HEADS].copy_(self.k_all[token])
        self.rows[KV_HEADS:2 * KV_HEADS].copy_(self.v_all[token])
        self.rows[2 * KV_HEADS:2 * KV_HEADS + Q_HEADS].copy_(self.q_all[token])

    def consume(self, token: int) -> None:
        self.outputs[token].copy_(self.rows[2 * KV_HEADS + Q_HEADS:])

    def attend(self, queue: int, token: int) -> None:
        """Encodes the token's rows and attends to all tokens so far; signals token + 1."""
        items = (CodecItem * 2)(*(
            CodecItem(self.rows_at(side * KV_HEADS), self.plane(side), token, F16, 1, KV_HEADS,
                      HEAD) for side in (0, 1)))
        tokens, granule = token + 1, self.caps.span_granule
        split = -(-tokens // self.caps.split_count)
        seen = U64(tokens)
        span = Span(0, tokens, self.plane(0), self.plane(1))
        entry = Entry(c.addressof(span), c.addressof(seen), None, None, None, 1, 1, 0, 0, tokens,
                      -(-split // granule) * granule, self.rows_at(2 * KV_HEADS),
                      self.rows_at(2 * KV_HEADS + Q_HEADS))
        args = Args(c.sizeof(Args), 1, c.addressof(self.shape), c.addressof(entry), HEAD ** -0.5,
                    0.0)
        args.workspace = Range(self.memories["workspace"], 0, self.caps.run_workspace_bytes)
        point = Point(self.fence, token + 1)
        plain = Submit(c.sizeof(Submit))
        last = Submit(c.sizeof(Submit), 0, 0, 1, None, c.addressof(point))
        self.backend.call("codec.encode", queue, items, 2, plain)
        self.backend.call("attention.run", queue, args, last)

    def wait(self, value: int) -> None:
        self.backend.call("fence.wait", self.device, Point(self.fence, value), 1, 0,
                          60_000_000_000)

    def value(self) -> int:
        value = U64(0)
        self.backend.call("fence.query", self.fence, value)
        return value.value

    def worst_error(self) -> float:
        """Against float64 attention over what the cache must hold: rows rounded to f16."""
        k = self.k_all.half().double().repeat_interleave(Q_HEADS // KV_HEADS, 1)
        v = self.v_all.half().double().repeat_interleave(Q_HEADS // KV_HEADS, 1)
        scores = torch.einsum("rhd,thd->hrt", self.q_all.double(), k) * HEAD ** -0.5
        future = torch.ones(ROUNDS, ROUNDS, dtype=torch.bool, device="cuda").triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        wanted = torch.einsum("hrt,thd->rhd", weights, v)
        error = (self.outputs.double() - wanted).abs().max() / v.abs().max()
        return float(error)


def warm_up(layer: Layer, stream) -> None:
    """Torch's kernels are loaded at their first launch, which may wait for the whole context."""
    with torch.cuda.stream(stream):
        layer.produce(0)
        layer.consume(0)
        torch.cuda._sleep(1)
        layer.outputs.fill_(float("nan"))
    torch.cuda.synchronize()


def gate(stream) -> float:
    """Keeps the stream busy; returns when the host may still claim that it is."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(GATE_SECONDS * 1.9e9))
    return time.monotonic()


def run_rounds(layer: Layer, stream, queue: int, events: bool) -> None:
    warm_up(layer, stream)
    begin = gate(stream)
    with torch.cuda.stream(stream):
        for token in range(ROUNDS):
            layer.produce(token)
            if events:
                event = torch.cuda.Event()
                event.record(stream)
                layer.backend.call("native.import_point", queue, event.cuda_event, 0,
                                   Submit(c.sizeof(Submit)))
            layer.attend(queue, token)
            if events:
                layer.backend.call("native.export_point", layer.device,
                                   Point(layer.fence, token + 1), stream.cuda_stream)
            layer.consume(token)
            if token + 1 == GATED:
                took = time.monotonic() - begin
                if layer.value() != 0 or stream.query():
                    raise Failure(f"something waited for the gate ({took:.3f} s)")
                print(f"  {GATED} rounds submitted in {took * 1e3:.1f} ms behind a busy stream, "
                      "none reached")
            if token >= GATED:
                layer.wait(token + 1 - GATED)
    layer.wait(ROUNDS)
    stream.synchronize()
    error = layer.worst_error()
    print(f"  {ROUNDS} rounds, largest error / largest |V| = {error:.2e}")
    if not error <= 1e-5:
        raise Failure(f"outputs are wrong: {error}")


def check(name: str, backend: Backend, stream, imported: bool) -> None:
    print(name)
    layer = Layer(backend)
    if imported:
        queue = backend.made("native.import_queue", layer.device, stream.cuda_stream)
    else:
        queue = backend.made("queue.create", layer.device,
                             QueueOptions(c.sizeof(QueueOptions), 0, 0, 0))
    run_rounds(layer, stream, queue, events=not imported)
    backend.call("queue.destroy", queue)
    layer.close()
    if int(layer.cache.sum().isnan()) or backend.driver.context() != backend.context:
        raise Failure("torch's memory or context is not what it was")


def main() -> int:
    if not torch.cuda.is_available():
        print("SKIPPED: torch finds no card")
        return 77
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    version_h = pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
    header_hash = int(re.search(r"KVSPAN_HEADER_HASH (0x[0-9a-f]+)", version_h).group(1), 16)
    try:
        backend = Backend(sys.argv[1], header_hash, Driver())
        side = torch.cuda.Stream()
        check("own queue beside torch's side stream, events and points", backend, side, False)
        check("own queue beside torch's default stream, events and points", backend,
              torch.cuda.default_stream(), False)
        check("torch's side stream imported as a queue", backend, side, True)
        check("torch's default stream imported as a queue", backend,
              torch.cuda.default_stream(), True)
        backend.close()
        print(f"memory of torch in use: {torch.cuda.memory_allocated()} bytes")
    except Failure as problem:
        print(f"FAIL: {problem}")
        return 1
    print("PASS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
