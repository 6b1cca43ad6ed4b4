# SPDX-License-Identifier: Apache-2.0
"""`list`, `inspect`, `plan` on sound plugins, and plugins that are missing, foreign or damaged.

KVSPAN_TEST_FAKES is the folder of fakes/'s shared objects. Run by cli_test.py.
"""
import json
import os
import pathlib
import unittest

from kvspan_tool import (
    DONE, MISSING_HERE, MODEL, PLUGIN_FOLDERS, PLUGINS, TOOL, WRONG_INPUT, ToolCase, environment,
    note_offset, plugin_file, run)
import subprocess

WITNESS = pathlib.Path(os.environ["KVSPAN_TEST_FAKES"]) / "kvspan-witness.so"
GEOMETRY = ("--layers", 4, "--q-heads", 4, "--kv-heads", 2, "--head-size", 64, "--context", 1024)
HASH_OFFSET, ISA_OFFSET, NAME_OFFSET = 16, 24, 32  # in kvspan_note_t


class GoldenPlan(ToolCase):
    """16 layers, 24 query heads, 4 KV heads of 256, 262,144 tokens, q8_0 K and q4_0 V."""

    GEOMETRY = ("--layers", 16, "--q-heads", 24, "--kv-heads", 4, "--head-size", 256,
                "--context", 262144, "--k-type", "q8_0", "--v-type", "q4_0")

    def test_exact_bytes(self) -> None:
        # A token of a layer: 4 heads x 256 / 32 blocks x (34 + 18) bytes = 1,664; a page has 256.
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                plan = self.json_of("plan", "--plugin", plugin, *self.GEOMETRY)
                self.assertEqual(plan["page_bytes"], 425984)
                self.assertEqual(plan["pages_a_layer"], 1024)
                self.assertEqual(plan["host_bytes"], 6979321856)
                self.assertEqual(plan["host_bytes"], 425984 * 1024 * 16)
                self.assertEqual(plan["mode"], "streaming")
                self.assertEqual(plan["resident_pages"], [0] * 16)
                decode = plan["phases"]["decode"]
                self.assertEqual(decode["ring"], 2 * 425984)
                self.assertEqual(decode["tails"], 2 * 16 * 425984)
                largest = max(sum(phase.values()) for phase in plan["phases"].values())
                self.assertGreaterEqual(plan["minimum_arena_bytes"], largest)
                self.assertEqual(plan["arena_bytes"], plan["minimum_arena_bytes"])

    def test_text_has_the_same_numbers(self) -> None:
        text = self.accepted("plan", *self.GEOMETRY).out
        plan = self.json_of("plan", *self.GEOMETRY)
        for number in ("6979321856", "1024 a layer", str(plan["minimum_arena_bytes"])):
            self.assertIn(number, text)

    def test_an_arena_is_filled_but_never_exceeded(self) -> None:
        least = self.json_of("plan", *self.GEOMETRY)["minimum_arena_bytes"]
        for arena in (least, 10**8, 10**9, 10**10):
            with self.subTest(arena=arena):
                plan = self.json_of("plan", *self.GEOMETRY, "--arena", arena)
                self.assertLessEqual(plan["arena_bytes"], arena)
                self.assertEqual(plan["mode"] == "resident", arena == 10**10)
                self.assertEqual(plan["host_bytes"], 6979321856)

    def test_model_file_gives_the_geometry(self) -> None:
        # 6 layers, 2 KV heads of 64: a f16 page of 256 tokens has 256 x 2 x 2 x 64 x 2 bytes.
        plan = self.json_of("plan", "--model", MODEL, "--context", 8192)
        self.assertEqual(plan["page_bytes"], 131072)
        self.assertEqual(plan["host_bytes"], 131072 * 32 * 6)


class ListAndInspect(ToolCase):
    """What is told about sound plugins, as text and as JSON."""

    def test_list_as_json(self) -> None:
        listed = self.json_of("list")["plugins"]
        for name in PLUGINS:
            with self.subTest(plugin=name):
                found = [p for p in listed if p.get("name") == name]
                self.assertGreaterEqual(len(found), 1)
                self.assertEqual(found[0]["file"], str(plugin_file(name).resolve()))
                self.assertTrue(found[0]["attention"])
                self.assertGreaterEqual(len(found[0]["devices"]), 1)
                self.assertNotEqual(found[0]["devices"][0]["name"], "")

    def test_list_as_text(self) -> None:
        text = self.accepted("list").out
        for name in PLUGINS:
            self.assertRegex(text, rf"(?m)^{name} \S+  \S*kvspan-{name}\.so$")
        self.assertIn("device 0:", text)

    def test_list_without_any_plugin(self) -> None:
        tool = self.folder / "kvspan"  # alone in a folder: nothing beside it
        tool.write_bytes(TOOL.read_bytes())
        tool.chmod(0o755)
        done = subprocess.run([tool, "list"], capture_output=True, env=environment(), check=False)
        self.assertEqual(done.returncode, MISSING_HERE)
        self.assertRegex(done.stderr.decode(), r"^error: no kvspan-\*\.so [^\n]*--plugin-dir[^\n]*\n$")
        self.assertEqual(done.stdout, b"")

    def test_list_survives_a_damaged_plugin(self) -> None:
        self.file("kvspan-broken.so", b"no plugin")
        outcome = self.accepted("--plugin-dir", self.folder, "list", "--json", "-")
        listed = json.loads(outcome.out)["plugins"]
        broken = [p for p in listed if p["file"].endswith("kvspan-broken.so")]
        self.assertEqual(len(broken), 1)
        self.assertIn("is not an ELF file", broken[0]["unusable"])
        self.assertIn("cpu", [p.get("name") for p in listed])
        text = self.accepted("--plugin-dir", self.folder, "list").out
        self.assertIn("cannot be used here", text)

    def test_inspect_as_json(self) -> None:
        for name in PLUGINS:
            with self.subTest(plugin=name):
                said = self.json_of("inspect", name)
                self.assertEqual(said["name"], name)
                self.assertEqual(said["file"], str(plugin_file(name).resolve()))
                self.assertEqual(said["abi_major"], 0)
                self.assertRegex(said["header_hash"], r"^[0-9a-f]{16}$")
                self.assertRegex(said["isa_floor"], r"^x86-64-v[12]$")
                self.assertIn("libc.so.6", said["linked"])
                self.assertTrue(said["fits"])
                self.assertNotIn("misfit", said)

    def test_inspect_as_text_by_file(self) -> None:
        text = self.accepted("inspect", plugin_file("cpu")).out
        self.assertRegex(text, r"(?m)^name +cpu 0\.1\.\d+ by \S+")
        self.assertRegex(text, r"(?m)^fits here +yes$")

    def test_inspect_json_file(self) -> None:
        target = self.folder / "note.json"
        text = self.accepted("inspect", "stub", "--json", target).out
        self.assertIn("fits here", text)
        self.assertEqual(json.loads(target.read_text())["name"], "stub")


class InspectRunsNothing(ToolCase):
    """fakes/witness.c writes a file as soon as it is loaded."""

    def run_with_witness(self, *arguments: object) -> tuple[int, bool]:
        mark = self.folder / "loaded"
        done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, check=False,
                              env={**environment(), "KVSPAN_WITNESS_FILE": str(mark)})
        return done.returncode, mark.exists()

    def test_inspect(self) -> None:
        self.assertEqual(self.run_with_witness("inspect", WITNESS), (DONE, False))
        self.assertEqual(self.run_with_witness("inspect", WITNESS, "--json", "-"), (DONE, False))

    def test_the_witness_does_notice_loading(self) -> None:
        status, loaded = self.run_with_witness("plan", "--plugin", WITNESS, *GEOMETRY)
        self.assertTrue(loaded)
        self.assertEqual(status, WRONG_INPUT)

    def test_a_plugin_of_another_header_is_not_loaded(self) -> None:
        content = bytearray(WITNESS.read_bytes())
        content[note_offset(bytes(content)) + HASH_OFFSET] ^= 1
        other = self.file("kvspan-other.so", bytes(content))
        status, loaded = self.run_with_witness("plan", "--plugin", other, *GEOMETRY)
        self.assertEqual((status, loaded), (MISSING_HERE, False))


class WrongPlugin(ToolCase):
    """Missing and foreign is 3 (another build or machine helps), damaged is 2."""

    def refused_plugin(self, status: int, words: list[str], plugin: object) -> None:
        self.refused(status, words, "plan", "--plugin", plugin, *GEOMETRY)
        self.refused(status, words, "generate", "--plugin", plugin, "--model", MODEL,
                     "--prompt-file", MODEL.parent.parent / "prompts" / "recall-2048.txt",
                     "--json", self.folder / "out.json")

    def changed_note(self, offset: int, value: bytes) -> pathlib.Path:
        content = bytearray(plugin_file("stub").read_bytes())
        at = note_offset(bytes(content)) + offset
        self.assertNotEqual(content[at:at + len(value)], value)
        content[at:at + len(value)] = value
        return self.file("kvspan-changed.so", bytes(content))

    def test_missing_name(self) -> None:
        words = ["no plugin named warp", "kvspan-warp.so", str(PLUGIN_FOLDERS[0]), "kvspan list"]
        self.refused_plugin(MISSING_HERE, words, "warp")
        self.refused(MISSING_HERE, words, "inspect", "warp")

    def test_missing_file(self) -> None:
        path = self.folder / "kvspan-none.so"
        self.refused_plugin(MISSING_HERE, [str(path), "give the path"], path)
        self.refused(MISSING_HERE, [str(path), "give the path"], "inspect", path)

    def test_text_file(self) -> None:
        path = self.file("kvspan-text.so", b"#!/bin/sh\necho hello\n")
        self.refused_plugin(WRONG_INPUT, ["kvspan-text.so", "is not an ELF file", "give"], path)
        self.refused(WRONG_INPUT, ["kvspan-text.so", "is not an ELF file", "give"], "inspect", path)

    def test_empty_file(self) -> None:
        path = self.file("kvspan-empty.so")
        self.refused_plugin(WRONG_INPUT, ["kvspan-empty.so", "is not an ELF file"], path)

    def test_directory(self) -> None:
        self.refused_plugin(WRONG_INPUT, ["is not a file", "give"], self.folder)
        self.refused(WRONG_INPUT, ["is not a file", "give"], "inspect", self.folder)

    def test_library_that_is_no_plugin(self) -> None:
        libc = next(pathlib.Path("/lib/x86_64-linux-gnu").glob("libm.so.6"))
        self.refused_plugin(WRONG_INPUT, ["libm.so.6", "not a kvspan plugin", "give"], libc)

    def test_program_is_no_plugin(self) -> None:
        self.refused(WRONG_INPUT, ["kvspan", "give"], "inspect", TOOL)

    def test_other_header_hash(self) -> None:
        path = self.changed_note(HASH_OFFSET, b"\x01\x02\x03\x04\x05\x06\x07\x08")
        words = ["kvspan-changed.so", "0807060504030201", "build both"]
        self.refused_plugin(MISSING_HERE, words, path)

    def test_inspect_tells_a_misfit(self) -> None:
        path = self.changed_note(HASH_OFFSET, b"\x01\x02\x03\x04\x05\x06\x07\x08")
        outcome = run("inspect", path)
        self.assertEqual(outcome.status, MISSING_HERE)
        self.assertIn("0807060504030201", outcome.out)
        self.assertRegex(outcome.out, r"(?m)^fits here +no: was built with header hash")
        self.assertEqual(len(outcome.errors()), 1, outcome.err)
        said = run("inspect", path, "--json", "-")
        self.assertEqual(said.status, MISSING_HERE)
        self.assertFalse(json.loads(said.out)["fits"])
        self.assertIn("header hash", json.loads(said.out)["misfit"])

    def test_processor_that_is_not_here(self) -> None:
        path = self.changed_note(ISA_OFFSET, b"\x05")
        self.refused_plugin(WRONG_INPUT, ["kvspan-changed.so", "damaged kvspan note"], path)
        self.refused(WRONG_INPUT, ["kvspan-changed.so", "damaged kvspan note"], "inspect", path)

    def test_name_that_does_not_end(self) -> None:
        path = self.changed_note(NAME_OFFSET, b"x" * 32)
        self.refused(WRONG_INPUT, ["kvspan-changed.so", "damaged kvspan note"], "inspect", path)

    def test_truncated(self) -> None:
        whole = plugin_file("stub").read_bytes()
        sizes = [1, 15, 16, 63, 64, 500, 4095, 4096] + [len(whole) * n // 16 for n in range(1, 16)]
        for size in sizes + [len(whole) - 1]:
            with self.subTest(size=size):
                path = self.file("kvspan-cut.so", whole[:size])
                self.refused(WRONG_INPUT, ["kvspan-cut.so", "give"], "inspect", path)
                self.refused(WRONG_INPUT, ["kvspan-cut.so", "give"], "plan", "--plugin", path, *GEOMETRY)


if __name__ == "__main__":
    unittest.main()
