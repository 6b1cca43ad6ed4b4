#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The layout gate's own tests: one change per kind to a copy of the headers, and its answer.

Changes that break binaries turn --prefix red, appending leaves it green; every change turns --check
red until --write.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import layout_manifest  # noqa: E402



GCC = [compiler for compiler in layout_manifest.COMPILERS if compiler.command[0] == "gcc"]


def gate(root: pathlib.Path, mode: str) -> tuple[int, str]:
    """The gate as a command."""
    command = [sys.executable, str(HERE / "layout_manifest.py"), mode, "--root", str(root)]
    done = subprocess.run([*command, "--compilers", "gcc"], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


class Gate(unittest.TestCase):
    """Each case has a copy of the headers, with manifest and hash as if they had been released."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="kvspan-abi-")
        cls.released = pathlib.Path(cls.folder.name) / "released"
        shutil.copytree(HERE.parent / "abi" / "include", cls.released / "include")
        status, text = gate(cls.released, "--write")
        assert status == 0, text

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.root = pathlib.Path(self.folder.name) / self.id()
        shutil.copytree(self.released, self.root)

    def change(self, header: str, old: str, new: str) -> None:
        path = self.root / "include" / "kvspan" / header
        # As the code is laid out may change: `* x`, `*x` and line breaks are all the same here.
        old = re.sub(r" ?\\\* ?", lambda _: r"\s*\*\s*", old).replace(" ", r"\s+")
        text, count = re.subn(old, new, path.read_text(), count=1, flags=re.S)
        self.assertEqual(count, 1, f"{header} holds no {old!r}: the test looks for what is gone")
        path.write_text(text)

    def findings(self) -> tuple[str, str]:
        """What --prefix and --check would say, one compilation for both."""
        now = layout_manifest.manifest(self.root, GCC)
        return ("\n".join(layout_manifest.prefix_findings(self.root, now)),
                "\n".join(layout_manifest.check(self.root, now)))

    def breaks(self, word: str) -> None:
        """The change just made breaks what was released, and the gate names it."""
        prefix, everything = self.findings()
        self.assertIn(word, prefix)
        self.assertIn(word, everything)
        self.assertIn("KVSPAN_HEADER_HASH", everything)

    def appends(self) -> None:
        """The change just made breaks nothing, but has to be written down."""
        prefix, everything = self.findings()
        self.assertEqual(prefix, "")
        self.assertIn("KVSPAN_HEADER_HASH", everything)

    def refused(self, word: str) -> None:
        with self.assertRaisesRegex(layout_manifest.GateError, word):
            layout_manifest.manifest(self.root, GCC)

    def command(self, mode: str, green: bool, word: str = "") -> None:
        status, text = gate(self.root, mode)
        self.assertEqual(status == 0, green, f"{mode} said:\n{text}")
        self.assertIn(word, text)
        self.assertNotIn("Traceback", text)

    def test_unchanged_headers_pass(self):
        self.assertEqual(self.findings(), ("", ""))
        self.command("--check", True, "agree")
        self.command("--prefix", True, "agree")

    def test_a_comment_changes_nothing(self):
        self.change("copy.h", r"/\* Copies:", "/* Copying:")
        self.assertEqual(self.findings(), ("", ""))

    def test_insert_a_field(self):
        self.change("device.h", r"  uint64_t host_bytes;",
                    "  uint64_t inserted;\n  uint64_t host_bytes;")
        self.breaks("kvspan_prepared_t: field 3")

    def test_insert_a_slot(self):
        self.change("memory.h",
                    r"(kvspan_memory_table_t \{\n  uint32_t struct_size;\n  uint32_t reserved;\n)",
                    r"\1  kvspan_result_t(KVSPAN_CALL *inserted)(void *self) KVSPAN_NOTHROW;\n")
        self.breaks("kvspan_memory_table_t: field 2")

    def test_retype_a_field_of_the_same_size(self):
        self.change("queue.h", r"uint32_t depth;", "int32_t depth;")
        self.breaks("kvspan_queue_options_t: field 2")

    def test_remove_a_field(self):
        self.change("copy.h", r"  uint64_t bytes_max; [^\n]*\n", "")
        self.breaks("kvspan_copy_limits_t: field 7")

    def test_remove_a_struct(self):
        self.change("device.h", r"typedef struct kvspan_prepared_t \{.*?\} kvspan_prepared_t;",
                        "typedef struct kvspan_prepared_t kvspan_prepared_t;")
        self.breaks("kvspan_prepared_t is gone")

    def test_rename_a_slot(self):
        self.change("fence.h", r"\*signal\)", "*raise)")
        self.breaks("kvspan_fence_table_t: field 5")

    def test_reorder_two_slots(self):
        self.change("queue.h", r"\*create\)\(kvspan_device_t \*device, const",
                    "*destroy_first)(kvspan_device_t *device, const")
        self.breaks("kvspan_queue_table_t: field 2")

    def test_another_argument_type_of_a_slot(self):
        self.change("fence.h", r"uint64_t initial, kvspan_fence_t",
                    "uint32_t initial, kvspan_fence_t")
        self.breaks("kvspan_fence_table_t: field 2")

    def test_one_more_argument_of_a_slot(self):
        self.change("host.h", r"\*now_ns\)\(kvspan_host_t \*self\)",
                    "*now_ns)(kvspan_host_t *self, uint32_t clock)")
        self.breaks("kvspan_host_services_t: field 6")

    def test_another_return_type_of_a_slot(self):
        self.change("host.h", r"void\(KVSPAN_CALL \*log\)", "uint32_t(KVSPAN_CALL *log)")
        self.breaks("kvspan_host_services_t: field 3")

    def test_another_signature_of_the_entry(self):
        self.change("entry.h", r"(\*kvspan_plugin_open_fn\)\(const kvspan_open_info_t \*info, "
                    r"kvspan_plugin_t \*plugin,\s+kvspan_error_t \*error)", r"\1, void *extra")
        self.refused("incompatible")  # the declaration below it no longer fits

    def test_another_value_of_a_constant(self):
        self.change("result.h", r"\(-3002\)", "(-3009)")
        self.breaks("KVSPAN_E_DEVICE_MEMORY")

    def test_a_constant_becomes_signed(self):
        self.change("queue.h", r"KVSPAN_SUBMIT_MEASURE 1u", "KVSPAN_SUBMIT_MEASURE 1")
        self.breaks("KVSPAN_SUBMIT_MEASURE")

    def test_a_constant_is_removed(self):
        self.change("device.h", r"#define KVSPAN_ROLE_COUNT 3u\n", "")
        self.breaks("KVSPAN_ROLE_COUNT")

    def test_a_struct_without_a_size_grows(self):
        self.change("types.h", r"(  uint64_t bytes;\n)(\} kvspan_range_t;)",
                    r"\1  uint64_t flags;\n\2")
        self.breaks("kvspan_range_t")

    def test_a_longer_array_in_the_middle(self):
        self.change("error.h", r"char where\[64\]", "char where[80]")
        self.breaks("kvspan_error_t")

    def test_append_a_slot(self):
        self.change("copy.h", r"\} kvspan_copy_table_t;",
                    "  kvspan_result_t(KVSPAN_CALL *more)(void *self) KVSPAN_NOTHROW;\n"
                    "} kvspan_copy_table_t;")
        self.appends()

    def test_append_a_field_to_a_struct_with_a_size(self):
        self.change("device.h", r"\} kvspan_device_info_t;",
                    "  uint64_t more;\n} kvspan_device_info_t;")
        self.appends()

    def test_add_a_constant(self):
        self.change("result.h", r"#endif\s*$", "#define KVSPAN_E_MORE (-1005)\n\n#endif\n")
        self.appends()

    def test_add_a_table(self):
        self.change("debug.h", r"#endif\s*$",
                    "typedef struct kvspan_more_table_t {\n  uint32_t struct_size;\n"
                    "  uint32_t reserved;\n} kvspan_more_table_t;\n\n#endif\n")
        self.appends()

    def test_a_draft_may_change(self):
        self.change("graph.h", r"\*launch\)", "*start)")
        self.appends()

    def test_a_missing_baseline_is_red(self):
        shutil.rmtree(self.root / "frozen")
        self.command("--check", False, "baseline")
        self.assertIn("baseline", self.findings()[0])

    def test_a_missing_manifest_of_this_minor_is_red(self):
        (self.root / "frozen" / "0.1.json").rename(self.root / "frozen" / "0.0.json")
        self.assertIn("0.1.json is missing", self.findings()[1])

    def test_an_edited_hash_is_red(self):
        self.change("version.h", r"HEADER_HASH 0x[0-9a-f]{4}", "HEADER_HASH 0x0bad")
        prefix, everything = self.findings()
        self.assertEqual(prefix, "")
        self.assertIn("KVSPAN_HEADER_HASH", everything)

    def test_a_bit_field_is_refused(self):
        self.change("queue.h", r"uint32_t depth;", "uint32_t depth : 8;")
        self.refused("bit field")

    def test_an_enum_is_refused(self):
        self.change("queue.h", r"uint32_t depth;", "enum kvspan_depth { SHALLOW } depth;")
        self.refused("enum")

    def test_headers_that_do_not_compile_are_red(self):
        self.change("queue.h", r"uint32_t depth;", "uint23_t depth;")
        self.command("--check", False, "uint23_t")

    def test_compilers_that_disagree_are_red(self):
        self.change("queue.h", r"uint32_t depth;",
                    "\n#ifdef __cplusplus\nint32_t depth;\n#else\nuint32_t depth;\n#endif\n")
        both = [c for c in layout_manifest.COMPILERS if c.command[0] in ("gcc", "g++")]
        with self.assertRaisesRegex(layout_manifest.GateError, "see different layouts"):
            layout_manifest.manifest(self.root, both)

    def test_major_zero_writes_a_break(self):
        self.change("queue.h", r"uint32_t depth;", "uint32_t length;")
        self.command("--check", False, "layout_manifest.py --write")
        self.command("--write", True)
        self.assertEqual(self.findings(), ("", ""))

    def test_major_one_does_not_write_a_break(self):
        self.change("version.h", r"KVSPAN_ABI_MAJOR 0u", "KVSPAN_ABI_MAJOR 1u")
        self.command("--write", True)
        self.change("queue.h", r"uint32_t depth;", "uint32_t length;")
        self.command("--write", False, "kvspan_queue_options_t: field 2")
        self.change("queue.h", r"uint32_t length;", "uint32_t depth;")
        self.change("queue.h", r"\} kvspan_queue_options_t;",
                    "  uint32_t more;\n} kvspan_queue_options_t;")
        self.command("--write", True)
        self.assertEqual(self.findings(), ("", ""))


if __name__ == "__main__":
    unittest.main()
