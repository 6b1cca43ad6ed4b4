# SPDX-License-Identifier: Apache-2.0
"""`kvspan bench decode` on small histories: every byte counted, every output compared, on each
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
