#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""rule_list.py's own tests: it reads every rule of the headers, and a stale list is red."""
import contextlib
import io
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import rule_list  # noqa: E402
import slot_docs  # noqa: E402

LISTING = """CopyTest.One     copy  KV-COPY-1 KV-COPY-2
FenceTest.Other  core  KV-FENCE-1  needs queues_four
"""


class Reading(unittest.TestCase):
    def test_every_sentence_of_the_headers_is_read_whole(self):
        headers = {p.name: p.read_text() for p in (rule_list.ROOT / "abi/include/kvspan").glob("*.h")}
        rules = rule_list.collected(rule_list.ROOT)
        self.assertEqual({rule.id for rule in rules}, set(slot_docs.rule_sentences(headers)))
        self.assertGreater(len(rules), 100)
        self.assertEqual(rule_list.findings(rules, {}), [])

    def test_sentences_end_where_the_next_rule_or_the_afterword_begins(self):
        text = "/* KV-A-1 One\n * and a half. KV-A-2 Two. Not here: three. */\n/* KV-A-1 */\n"
        rules = rule_list.rules_of("a.h", text)
        self.assertEqual([(r.id, r.sentence) for r in rules], [("KV-A-1", "One and a half."), ("KV-A-2", "Two.")])

    def test_a_slot_has_its_rules(self):
        text = ("  /** Says.\n   * @error  none\n   * @rule   KV-A-1 One.\n   * @rule   KV-A-2 Two\n   * more. */\n"
                "  kvspan_result_t(KVSPAN_CALL* copy)(int x);\n")
        self.assertEqual([(r.id, r.slot, r.sentence) for r in rule_list.rules_of("a.h", text)],
                         [("KV-A-1", "copy", "One."), ("KV-A-2", "copy", "Two more.")])

    def test_cases_are_read_from_the_listing(self):
        self.assertEqual(rule_list.cases_of(LISTING), {"KV-COPY-1": ["CopyTest.One"], "KV-COPY-2": ["CopyTest.One"],
                                                       "KV-FENCE-1": ["FenceTest.Other"]})
        with self.assertRaises(ValueError):
            rule_list.cases_of("something else\n")

    def test_what_no_header_has_and_what_has_two_sentences_is_found(self):
        rules = rule_list.rules_of("a.h", "/* KV-COPY-1 One. KV-COPY-2 Two. KV-COPY-2 Again. */")
        found = "\n".join(rule_list.findings(rules, rule_list.cases_of(LISTING)))
        self.assertIn("KV-COPY-2 has 2 sentences", found)
        self.assertIn("KV-FENCE-1: FenceTest.Other proves it, and no header has it", found)
        cut = rule_list.rules_of("a.h", "/* KV-COPY-1 Without an end */")
        self.assertIn("does not end", rule_list.findings(cut, {})[0])


class Checking(unittest.TestCase):
    """A copy of the tree's headers with a list of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvspan-rules-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(rule_list.ROOT / "abi/include", self.root / "abi/include")
        (self.root / "conformance").mkdir()
        (self.root / "conformance/uncovered_rules.txt").write_text("KV-COPY-3  nobody can see it\n")
        (self.root / "docs/abi").mkdir(parents=True)
        self.listing = LISTING
        self.assertEqual(self.run_tool(), 0)
        self.assertEqual(self.run_tool("--check"), 0)

    def run_tool(self, *more: str) -> int:
        words = ["rule_list.py", "--root", str(self.root), "--program", __file__, *more]
        with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as out, \
                mock.patch.object(rule_list.subprocess, "check_output", return_value=self.listing):
            code = rule_list.main()
        self.printed = out.getvalue()
        return code

    def test_the_list_says_slot_case_and_reason(self):
        text = (self.root / "docs/abi/rules.md").read_text()
        self.assertIn("| KV-COPY-1 | `copy` | Byte-exact whatever the bytes mean; nothing outside the target rows is "
                      "written. | `CopyTest.One` |", text)
        self.assertIn("no case: nobody can see it", text)

    def test_another_case_is_stale(self):
        self.listing = LISTING.replace("CopyTest.One ", "CopyTest.New ")
        self.assertEqual(self.run_tool("--check"), 1)
        self.assertIn("stale", self.printed)

    def test_another_sentence_is_stale(self):
        header = self.root / "abi/include/kvspan/fence.h"
        header.write_text(header.read_text().replace("TIMEOUT is never early.", "TIMEOUT is seldom early."))
        self.assertEqual(self.run_tool("--check"), 1)

    def test_a_list_edited_by_hand_is_stale(self):
        path = self.root / "docs/abi/rules.md"
        path.write_text(path.read_text().replace("Byte-exact", "Nearly exact"))
        self.assertEqual(self.run_tool("--check"), 1)

    def test_no_program_is_said(self):
        with mock.patch.object(sys, "argv", ["rule_list.py", "--program", "nowhere"]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(rule_list.main(), 1)
        self.assertIn("kvspan_conformance", out.getvalue())


if __name__ == "__main__":
    unittest.main()
