# SPDX-License-Identifier: Apache-2.0
"""`kvspan bench decode` and `bench prefill` on small histories: every byte counted, every output compared, on each
backend that is built here. Run by cli_test.py.

No time is judged: only what the figures are made of.
"""
import json

from kvspan_tool import PLUGINS, WRONG_INPUT, ToolCase

# One KV head of 128 elements: q8_0 K and q4_0 V take 136 + 72 bytes a token, pages have no padding.
TOKEN_BYTES = 136 + 72
SMALL = ("bench", "decode", "--geometry", "2/1/128", "--layers", 3, "--page-tokens", 64, "--steps", 2)


class BenchDecode(ToolCase):
    """Rows of the table, by backend."""

    def rows(self, *more: object) -> list[dict]:
        return self.json_of(*SMALL, *more)["rows"]

    def test_streams_exactly_the_share_that_is_on_the_host(self) -> None:
        for plugin in PLUGINS:
            for row in self.rows("--plugin", plugin, "--context", "1K,2000", "--rows", "1,3",
                                 "--host-share", "0,25,100"):
                with self.subTest(plugin=plugin, **{k: row[k] for k in ("context", "rows", "host_percent")}):
                    # Steps of all widths add at most 12 tokens: a begun page at most.
                    complete = row["context"] // 64
                    self.assertEqual(row["streamed_pages"], 3 * (complete - min(
                        complete, row["resident_pages"])))
                    self.assertEqual(row["streamed_bytes"], row["streamed_pages"] * 64 * TOKEN_BYTES)
                    self.assertIn("memcmp of ", row["check"])
                    self.assertEqual(row["seconds"]["runs"], 2)
                    for spread in (row["seconds"], row["resident_seconds"]):
                        self.assertGreater(spread["min"], 0)
                        self.assertLessEqual(spread["min"], spread["median"])
                        self.assertLessEqual(spread["median"], spread["max"])
                    if row["host_percent"] == 100:
                        self.assertEqual(row["resident_pages"], 0)
                        self.assertGreater(row["of_link"], 0)
                    if row["host_percent"] == 0:
                        self.assertEqual(row["streamed_bytes"], 0)

    def test_the_ring_is_two_groups_and_what_a_gap_brings(self) -> None:
        row = self.rows("--context", "8K", "--group-pages", 5, "--gap-ns", 1000)[0]
        page_bytes = 64 * TOKEN_BYTES
        self.assertEqual(row["group_pages"], 5)
        self.assertGreater(row["ring_pages"], 10)
        # A memory of a terabyte a second would bring a megabyte in a microsecond.
        self.assertLess(row["ring_pages"], 11 + 1_000_000 // page_bytes)

    def test_says_where_it_was_measured(self) -> None:
        said = self.json_of(*SMALL, "--context", 256, "--commit", "abc123")
        self.assertEqual(said["commit"], "abc123")
        self.assertEqual(said["plugin"]["name"], "cpu")
        self.assertGreater(said["machine"]["cores"], 0)
        self.assertGreater(said["link_bytes_s"], 0)
        self.assertEqual(said["geometry"]["k_type"], "q8_0")

    def test_the_table_has_a_line_a_row(self) -> None:
        target = self.folder / "out.json"
        said = self.accepted(*SMALL, "--context", "256,512", "--rows", "1,2", "--json", target)
        lines = said.out.splitlines()
        self.assertEqual(len(lines), 2 + 4, said.out)
        self.assertEqual([line.split()[:2] for line in lines[2:]],
                         [["256", "1"], ["256", "2"], ["512", "1"], ["512", "2"]])
        self.assertEqual(len(json.loads(target.read_text())["rows"]), 4)

    def test_wrong_values_are_refused(self) -> None:
        for words, more in (
                (["8X", "not understood"], ("--context", "8X")),
                (["0", "not understood"], ("--context", "0")),
                (["Q", "A, B"], ("--geometry", "Q")),
                (["q9", "known types"], ("--k-type", "q9")),
                (["granule"], ("--page-tokens", 100)),
                (["32"], ("--geometry", "2/1/33")),
        ):
            with self.subTest(more=more):
                self.refused(WRONG_INPUT, words, "bench", "decode", "--layers", 1, *more)

    def test_arenas_hold_more_and_stream_less(self) -> None:
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                arenas = self.json_of(*SMALL, "--plugin", plugin, "--context", "1K", "--arenas", 4)["arenas"]
                self.assertEqual(len(arenas), 4)
                self.assertEqual(arenas[0]["streamed_bytes"], 3 * 16 * 64 * TOKEN_BYTES)
                self.assertEqual(arenas[-1]["streamed_bytes"], 0)
                for before, after in zip(arenas, arenas[1:]):
                    self.assertGreater(after["arena_bytes"], before["arena_bytes"])
                    self.assertGreater(after["predicted_seconds"], 0)
                    self.assertAlmostEqual(after["over_before"],
                                           after["seconds"]["median"] / before["seconds"]["median"])
                    self.assertIn("memcmp of ", after["check"])
        for more in (("--arenas", 3, "--rows", "1,2"), ("--arenas", 3, "--context", "256,512"),
                     ("--arenas", 3, "--host-share", 50), ("--arenas", 1)):
            with self.subTest(more=more):
                self.refused(WRONG_INPUT, ["--arenas"], *SMALL, *more)

    def test_queries_of_16_bits(self) -> None:
        for plugin in PLUGINS:
            for name, more in (("decode", ("--rows", 3, "--steps", 1)),
                               ("prefill", ("--rows", 40, "--turns", 1, "--timed", 1))):
                with self.subTest(plugin=plugin, name=name):
                    said = self.json_of("bench", name, *SMALL[2:8], "--plugin", plugin, "--context", 300,
                                        "--q-type", "f16", *more)
                    self.assertEqual(said["q_type"], "f16")
                    self.assertIn("memcmp of ", said["rows"][0]["check"])

    def test_options_reach_the_plugin(self) -> None:
        said = self.json_of(*SMALL, "--context", 256, "--option", "threads=1",
                            "--option", "link_bytes_s=40000000")
        self.assertEqual(said["plugin"]["options"], ["threads=1", "link_bytes_s=40000000"])
        self.assertLess(said["link_bytes_s"], 40000000)
        for words, option in ((["NAME=VALUE"], "threads"), (["NAME=VALUE"], "=1"),
                              (["threads"], "threads=0"), (["link_bytes_s"], "link_bytes_s=fast"),
                              (["link_copy_ns"], "link_copy_ns=1000000001")):
            with self.subTest(option=option):
                self.refused(WRONG_INPUT, words, *SMALL, "--option", option)


class BenchPrefill(ToolCase):
    """Chunks that follow each other."""

    def test_moves_each_page_and_row_once(self) -> None:
        for plugin in PLUGINS:
            for row in self.json_of("bench", "prefill", *SMALL[2:8], "--plugin", plugin, "--turns", 2,
                                    "--timed", 2, "--context", "512,1000", "--rows", "32,100",
                                    "--host-share", "0,100")["rows"]:
                with self.subTest(plugin=plugin, **{k: row[k] for k in ("context", "chunk_rows", "host_percent")}):
                    rows = row["chunk_rows"]
                    self.assertEqual([chunk["context"] for chunk in row["chunks"]],
                                     [row["context"] + at * rows for at in (1, 2, 4, 5)])
                    for chunk in row["chunks"]:
                        pages = chunk["context"] // 64
                        self.assertEqual(chunk["streamed_pages"],
                                         3 * (pages - min(pages, row["resident_pages"])))
                        self.assertEqual(chunk["streamed_bytes"],
                                         chunk["streamed_pages"] * 64 * TOKEN_BYTES)
                        self.assertEqual(chunk["published_bytes"], 3 * rows * TOKEN_BYTES)
                        self.assertGreater(chunk["seconds"], 0)
                    self.assertEqual(row["chunks"][0]["streamed_pages"] == 0, row["host_percent"] == 0)
                    self.assertIn("memcmp of ", row["check"])
                    self.assertGreater(row["predicted_seconds"], 0)

    def test_both_directions_are_timed(self) -> None:
        said = self.json_of("bench", "prefill", *SMALL[2:8], "--turns", 1, "--context", 256, "--rows", 16)
        for name in ("up_alone", "down_alone", "up", "down"):
            self.assertEqual(said["both_ways"][f"{name}_seconds"]["runs"], 7)
        self.assertGreater(said["both_ways"]["bytes"], 0)
        self.assertEqual(said["plugin"]["name"], "cpu")

    def test_the_table_has_a_line_a_row(self) -> None:
        lines = self.accepted("bench", "prefill", *SMALL[2:8], "--turns", 1, "--context", 256,
                              "--rows", "16,32").out.splitlines()
        self.assertEqual([line.split()[:2] for line in lines[2:]], [["256", "16"], ["256", "32"]])
