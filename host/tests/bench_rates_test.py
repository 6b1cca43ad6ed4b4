#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Ratios of times that streaming must keep, on the cpu backend with its link modelled: ctest's
host.bench_rates. docs/measuring/cpu-link.md says what they are and has whole reports.

Each case asks the tool for a measurement and works its ratios out anew. What is counted (bytes,
pages, order of predictions) must be right at once. Times are of link-bound steps of tens of
milliseconds, or of turns of two sessions; a measurement that misses is taken again, twice at most,
and said so: a shared machine may do anything once. Where each one missed and in each one equal work
took unequal time, the machine was not quiet: then times say nothing, and the case is skipped.
"""
import os
import pathlib
import statistics
import sys
from typing import Callable

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
if __name__ == "__main__":
    if "--sanitized" in sys.argv[1:]:
        print("SKIPPED: a sanitizer makes attention slower than the modelled link, so times say nothing")
        sys.exit(77)
    os.environ.setdefault("LC_ALL", "C.UTF-8")

import kvspan_tool
from kvspan_tool import ToolCase

PAGE_TOKENS = 64
LAYERS = 3
KV_HEADS = 4
TOKEN_BYTES = KV_HEADS * (136 + 72)  # a row of 128 elements: q8_0 K, q4_0 V
ATTEMPTS = 3

CHUNK_OVER_BOUND = 1.10   # of max(everything resident, bytes up over the link's rate)
BESIDE_OF_ALONE = 0.9     # a direction's rate beside the other
LARGER_OVER_SMALLER = 1.02  # a step in an arena over the same in the arena before
RATE_OFF = 0.05           # the measured link off the modelled one: the measurement is void
UNQUIET = 1.15            # of equal work, the longest time over the median


class Rates(ToolCase):

    def measured(self, judge: Callable[[dict], list[str]], spread_of: Callable[[dict], float],
                 *arguments: object) -> dict:
        """A report whose times judge() finds nothing wrong with."""
        spreads = []
        for attempt in range(1, ATTEMPTS + 1):
            report = self.json_of("bench", *arguments, "--layers", LAYERS, "--page-tokens", PAGE_TOKENS)
            wrong = judge(report)
            print(f"attempt {attempt} of {ATTEMPTS}: {'; '.join(wrong) or 'within its bounds'}", flush=True)
            if not wrong:
                return report
            spreads.append(spread_of(report))
        if min(spreads) > UNQUIET:
            self.skipTest(f"the machine is not quiet: equal work took up to {max(spreads):.2f} of its "
                          "median; run this alone")
        self.fail(f"{ATTEMPTS} measurements missed their bounds, the last one by: {'; '.join(wrong)}")

    def link_is_modelled(self, report: dict, bytes_s: float) -> list[str]:
        rate = report["link_bytes_s"]
        return [] if abs(rate / bytes_s - 1) <= RATE_OFF else [f"void: the link brought {rate} bytes/s"]

    def chunks(self, bytes_s: int, judge: Callable[[float, float], list[str]], *more: object) -> None:
        """Chunks behind a history on the host. `judge` is given the medians of both bounds."""

        def judged(report: dict) -> list[str]:
            row, = report["rows"]
            bound = {"link": [], "work": []}
            over = []
            for chunk in row["chunks"]:
                self.moved_once(chunk, row["chunk_rows"])
                link = chunk["streamed_bytes"] / report["link_bytes_s"]
                bound["link"].append(link)
                bound["work"].append(chunk["resident_seconds"])
                over.append(chunk["seconds"] / max(link, chunk["resident_seconds"]))
            self.assertIn("memcmp of ", row["check"])
            ratio = statistics.median(over)
            said = [f"a chunk takes {ratio:.3f} of its bound"] if ratio > CHUNK_OVER_BOUND else []
            beside = report["both_ways"]
            for way in ("up", "down"):
                share = beside[f"{way}_alone_seconds"]["median"] / beside[f"{way}_seconds"]["median"]
                if share < BESIDE_OF_ALONE:
                    said.append(f"{way} beside the other way is {share:.3f} of alone")
                of_link = beside["bytes"] / beside[f"{way}_seconds"]["median"] / report["link_bytes_s"]
                if of_link < BESIDE_OF_ALONE:
                    said.append(f"{way} beside the other way is {of_link:.3f} of the link")
            return said + self.link_is_modelled(report, bytes_s) + judge(
                statistics.median(bound["link"]), statistics.median(bound["work"]))

        def spread(report: dict) -> float:
            times = [chunk["resident_seconds"] for chunk in report["rows"][0]["chunks"]]
            return max(times) / statistics.median(times)

        self.measured(judged, spread, "prefill", "--option", f"link_bytes_s={bytes_s}", *more)

    def moved_once(self, chunk: dict, rows: int) -> None:
        """Nothing was resident: every complete page comes up once, every row goes down once."""
        pages = LAYERS * (chunk["context"] // PAGE_TOKENS)
        self.assertEqual(chunk["streamed_pages"], pages)
        self.assertEqual(chunk["streamed_bytes"], pages * PAGE_TOKENS * TOKEN_BYTES)
        self.assertEqual(chunk["published_bytes"], LAYERS * rows * TOKEN_BYTES)

    def test_a_chunk_that_the_link_bounds(self) -> None:
        # Were copies and attention not beside each other, it would take 1.25 of the bound.
        self.chunks(150_000_000,
                    lambda link, work: [] if link > 1.5 * work and link > 0.03 else [
                        f"void: link {link:.4f} s beside work of {work:.4f} s"],
                    "--geometry", "16/4/128", "--context", "4K", "--rows", 32)

    def test_a_chunk_that_work_bounds(self) -> None:
        # One thread attends; the other core is for the copies. Turns are short: what else a machine
        # does for a while meets both sessions.
        self.chunks(500_000_000,
                    lambda link, work: [] if work > 1.5 * link and work > 0.03 else [
                        f"void: work {work:.4f} s beside a link of {link:.4f} s"],
                    "--option", "threads=1", "--geometry", "32/4/128", "--context", "4K",
                    "--rows", 64, "--turns", 9, "--timed", 1)

    def test_more_arena_is_never_slower(self) -> None:
        def judged(report: dict) -> list[str]:
            arenas = report["arenas"]
            self.assertEqual(len(arenas), 10)
            self.assertEqual(arenas[0]["resident_pages"], 0)
            self.assertEqual(arenas[-1]["streamed_bytes"], 0)
            said = []
            for before, after in zip(arenas, arenas[1:]):
                self.assertEqual(after["seconds"]["runs"], 7)
                self.assertGreater(after["arena_bytes"], before["arena_bytes"])
                self.assertLessEqual(after["streamed_bytes"], before["streamed_bytes"])
                self.assertGreater(after["predicted_seconds"], 0)
                self.assertLessEqual(after["predicted_seconds"], before["predicted_seconds"] * (1 + 1e-9))
                self.assertIn("memcmp of ", after["check"])
                ratio = after["seconds"]["median"] / before["seconds"]["median"]
                if ratio > LARGER_OVER_SMALLER:
                    said.append(f"{after['arena_bytes']} bytes take {ratio:.3f} of {before['arena_bytes']}")
            return said + self.link_is_modelled(report, 100_000_000)

        def spread(report: dict) -> float:
            return max(arena["seconds"]["max"] / arena["seconds"]["median"]
                       for arena in report["arenas"][:-1])

        self.measured(judged, spread, "decode", "--option", "link_bytes_s=100000000", "--geometry", "4/4/128",
                      "--context", "4K", "--arenas", 10, "--steps", 7)


if __name__ == "__main__":
    kvspan_tool.main("__main__")
