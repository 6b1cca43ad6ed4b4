#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""slot_docs.py's own tests: take one thing away from a copy of the headers, and it must say so."""
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import slot_docs  # noqa: E402


class SlotDocs(unittest.TestCase):
    """Each case has a copy of the headers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvspan-slots-")
        self.addCleanup(folder.cleanup)
        self.include = pathlib.Path(folder.name) / "include"
        shutil.copytree(HERE.parent / "abi" / "include", self.include)

    def change(self, header: str, old: str, new: str) -> None:
        path = self.include / "kvspan" / header
        # As the code is laid out may change: `* x`, `*x` and line breaks are all the same here.
        old = re.sub(r" ?\\\* ?", lambda _: r"\s*\*\s*", old).replace(" ", r"\s+")
        text, count = re.subn(old, new, path.read_text(), count=1, flags=re.S)
        self.assertEqual(count, 1, f"{header} holds no {old!r}: the test looks for what is gone")
        path.write_text(text)

    def red(self, word: str) -> None:
        found, _ = slot_docs.check(self.include)
        self.assertIn(word, "\n".join(found))

    def test_the_headers_pass(self):
        found, count = slot_docs.check(self.include)
        self.assertEqual(found, [])
        self.assertGreater(count, 45)

    def test_each_missing_line_is_red(self):
        for tag in slot_docs.TAGS:
            path = self.include / "kvspan" / "fence.h"
            before = path.read_text()
            at = before.index("Raises the value from the host")
            both = 2 if tag == "error" else 1  # signal has two of them
            line = rf"\* @{tag} [^\n]*?(?= \*/|\n)"
            part, count = re.subn(line, "*", before[at:], count=both)
            self.assertEqual(count, both)
            path.write_text(before[:at] + part)
            self.red(f"kvspan_fence_table_t.signal has no @{tag}")
            path.write_text(before)

    def test_an_empty_line_is_red(self):
        self.change("copy.h", r"@unit bytes; range.*?(?=\n \* @own)", "@unit")
        self.red("kvspan_copy_table_t.fill has no @unit")

    def test_no_comment_is_red(self):
        self.change("queue.h", r"/\*\* Ends an idle queue\..*?\*/", "")
        self.red("kvspan_queue_table_t.destroy has no /** comment */")

    def test_a_plain_comment_is_red(self):
        self.change("queue.h", r"/\*\* Ends an idle queue", "/* Ends an idle queue")
        self.red("kvspan_queue_table_t.destroy has no /** comment */")

    def test_no_summary_is_red(self):
        self.change("queue.h", r"Ends an idle queue\.", "")
        self.red("kvspan_queue_table_t.destroy says nothing")

    def test_another_thread_class_is_red(self):
        self.change("memory.h", r"@thread ANY", "@thread MANY")
        self.red("kvspan_memory_table_t.alloc @thread MANY")

    def test_a_misspelt_tag_is_red(self):
        self.change("memory.h", r"@own ", "@owner ")
        self.red("kvspan_memory_table_t.alloc has no @own")

    def test_a_rule_with_two_sentences_is_red(self):
        self.change("memory.h", r"KV-MEMORY-2 ", "KV-MEMORY-1 ")
        self.red("KV-MEMORY-1 has 2 sentences")

    def test_a_rule_without_a_sentence_is_red(self):
        self.change("memory.h", r"KV-MEMORY-2 [^\n]*?(?= \*/)", "KV-MEMORY-2")
        self.red("names KV-MEMORY-2, which has no sentence")

    def test_a_rule_without_an_id_is_red(self):
        self.change("memory.h", r"KV-MEMORY-2 ", "")
        self.red("begin with an id")

    def test_an_unknown_code_is_red(self):
        self.change("queue.h", r"@error  BUSY:", "@error  OCCUPIED:")
        self.red("names OCCUPIED, which is no code")

    def test_a_slot_without_the_error_record_is_red(self):
        self.change("device.h", r"kvspan_device_t \*device, kvspan_error_t \*error\)",
                    "kvspan_device_t *device)")
        self.red("kvspan_device_table_t.close does not take")

    def test_a_slot_written_differently_is_red(self):
        self.change("device.h", r"kvspan_error_t \*error\) KVSPAN_NOTHROW;",
                    "kvspan_error_t *error);")
        self.red("not all are written as slots are")

    def test_no_headers_is_red(self):
        shutil.rmtree(self.include / "kvspan")
        self.red("no slot found")


if __name__ == "__main__":
    unittest.main()
