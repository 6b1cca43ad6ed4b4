#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""exports.py's own tests: small shared objects that break one rule each."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import exports  # noqa: E402

ENTRY = '__attribute__((visibility("default"))) int kvspan_plugin_open_0(void) { return 0; }\n'
NOTE = '#include "kvspan/entry.h"\nKVSPAN_PLUGIN_NOTE("x", "x", "1", 1u, "");\n'


class Exports(unittest.TestCase):
    """Each case builds one file with gcc or g++."""

    def build(self, text: str, *options: str, suffix: str = ".c") -> str:
        folder = tempfile.TemporaryDirectory(prefix="kvspan-exports-")
        self.addCleanup(folder.cleanup)
        source = pathlib.Path(folder.name) / f"x{suffix}"
        source.write_text(text)
        target = str(source.with_suffix(".so"))
        include = f"-I{HERE.parent / 'abi' / 'include'}"
        compiler = "gcc" if suffix == ".c" else "g++"
        subprocess.run([compiler, "-w", "-shared", "-fPIC", include, str(source), "-o", target,
                        *options], check=True)
        return target

    def good(self) -> str:
        # The entry's real declaration has arguments: give the plain one another name in the source.
        note = NOTE.replace("#include", "#define kvspan_plugin_open_0 declared\n#include", 1)
        return note + "#undef kvspan_plugin_open_0\n" + ENTRY

    def red(self, path: str, word: str) -> None:
        self.assertIn(word, "\n".join(exports.findings(path)))

    def test_a_plugin_passes(self):
        self.assertEqual(exports.findings(self.build(self.good(), "-fvisibility=hidden")), [])

    def test_a_second_symbol_is_red(self):
        self.red(self.build(self.good() + "int helper(void) { return 1; }\n"), "exports helper")

    def test_no_entry_is_red(self):
        self.red(self.build("int other;\n"), "does not export")

    def test_no_note_is_red(self):
        self.red(self.build(ENTRY, "-fvisibility=hidden"), "no kvspan note")

    def test_a_unique_symbol_is_red(self):
        text = ("template <class T> struct S { static int value; };\n"
                "template <class T> int S<T>::value = 1;\nint use() { return ++S<int>::value; }\n")
        self.red(self.build(text, suffix=".cpp"), "unique symbol")

    def test_an_executable_stack_is_red(self):
        path = self.build(self.good(), "-fvisibility=hidden", "-Wl,-z,execstack")
        self.red(path, "executable stack")

    def test_a_text_relocation_is_red(self):
        text = self.good() + '__asm__(".text\\n.quad kvspan_plugin_open_0\\n");\n'
        self.red(self.build(text, "-fvisibility=hidden", "-Wl,-z,notext"), "text relocations")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
