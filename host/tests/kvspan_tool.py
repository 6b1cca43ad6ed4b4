# SPDX-License-Identifier: Apache-2.0
"""The tool `kvspan` as a child process, for the command line's tests.

Not a test: cli_*_test.py and e2e_test.py import it. Reads KVSPAN_TEST_BIN (folder of `kvspan`),
KVSPAN_TEST_PLUGINS (folder of the built plugins, colon separated when there are several) and
KVSPAN_TEST_DATA (the repository's data/).
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from typing import NamedTuple

DATA = pathlib.Path(os.environ["KVSPAN_TEST_DATA"])
PLUGIN_FOLDERS = [pathlib.Path(p) for p in os.environ["KVSPAN_TEST_PLUGINS"].split(":")]
TOOL = pathlib.Path(os.environ["KVSPAN_TEST_BIN"]) / "kvspan"
MODEL = DATA / "models" / "bytelm.gguf"
PLUGINS = ("cpu", "stub")
# A hang must end with a message here rather than with ctest's time-out: several times the slowest
# child of any test, sanitizers included.
CHILD_SECONDS = 1500

# What the tool promises (host/exit_code.hpp).
DONE, FAILED, WRONG_INPUT, MISSING_HERE, INTERRUPTED = 0, 1, 2, 3, 130


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error:")]


def environment() -> dict[str, str]:
    """The caller's environment without what would change where plugins are found."""
    return {k: v for k, v in os.environ.items() if k != "KVSPAN_PLUGIN_PATH"}


def command(*arguments: object) -> list[str]:
    """The command line with the built plugins' folders in front."""
    folders = [f"--plugin-dir={folder}" for folder in PLUGIN_FOLDERS]
    return [str(TOOL), *folders, *(str(a) for a in arguments)]


def run(*arguments: object, **options: object) -> Outcome:
    """Runs the tool to its end. A death by signal is a failure of the test, whatever it tests."""
    done = subprocess.run(command(*arguments), stdin=subprocess.DEVNULL, capture_output=True,
                          env=environment(), timeout=CHILD_SECONDS, check=False, **options)
    outcome = Outcome(done.returncode, done.stdout.decode(errors="replace"),
                      done.stderr.decode(errors="replace"))
    if outcome.status < 0 or "Sanitizer" in outcome.err or "runtime error:" in outcome.err:
        raise AssertionError(f"{arguments}: crashed with {outcome.status}\n{outcome.err}")
    return outcome


def plugin_file(name: str) -> pathlib.Path:
    for folder in PLUGIN_FOLDERS:
        if (folder / f"kvspan-{name}.so").exists():
            return folder / f"kvspan-{name}.so"
    raise AssertionError(f"kvspan-{name}.so is not built in {PLUGIN_FOLDERS}")


def note_offset(plugin: bytes) -> int:
    """Where the note's record (kvspan_note_t of kvspan/entry.h) begins in a plugin's file."""
    at = plugin.find(b"kvspan".ljust(12, b"\0"))
    while at >= 0:
        if plugin[at - 12:at - 8] == struct.pack("<I", 12):
            return at + 12
        at = plugin.find(b"kvspan".ljust(12, b"\0"), at + 1)
    raise AssertionError("the plugin's file has no kvspan note")


class ToolCase(unittest.TestCase):
    """A folder of its own per case, and what every refusal must look like."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvspan-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name: str, content: bytes = b"") -> pathlib.Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def prompt(self, size_bytes: int = 300) -> pathlib.Path:
        text = (DATA / "prompts" / "recall-2048.txt").read_bytes()
        return self.file("prompt.txt", text[:size_bytes])

    def accepted(self, *arguments: object, **options: object) -> Outcome:
        outcome = run(*arguments, **options)
        self.assertEqual(outcome.status, DONE, f"{arguments}\n{outcome.err}")
        self.assertEqual(outcome.errors(), [], arguments)
        return outcome

    def json_of(self, *arguments: object) -> dict:
        """The JSON that a command writes to stdout."""
        return json.loads(self.accepted(*arguments, "--json", "-").out)

    def refused(self, status: int, words: list[str], *arguments: object) -> str:
        """One sentence on stderr with all of `words`, nothing on stdout, that exit status."""
        before = sorted(self.folder.rglob("*"))
        outcome = run(*arguments)
        said = f"{arguments}\nstatus {outcome.status}\nstdout {outcome.out}\nstderr {outcome.err}"
        self.assertEqual(outcome.status, status, said)
        self.assertEqual(outcome.out, "", said)
        lines = [line for line in outcome.err.splitlines() if not line.startswith("plugin ")]
        self.assertEqual(len(lines), 1, said)
        self.assertRegex(lines[0], r"^error: \S.{19,}", said)
        for word in words:
            self.assertIn(word, lines[0], said)
        self.assertEqual(sorted(self.folder.rglob("*")), before, "a refusal left a file behind")
        return lines[0]


class Running:
    """A child that is still at work; its stderr is read line by line."""

    def __init__(self, *arguments: object) -> None:
        self.child = subprocess.Popen(command(*arguments), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=environment())
        self.err: list[str] = []

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        self.child.stderr.close()

    def wait_for_line(self, start: str, count: int = 1) -> None:
        """Until `count` lines that begin with that pattern have come in all."""
        while sum(re.match(start, line) is not None for line in self.err) < count:
            line = self.child.stderr.readline().decode(errors="replace")
            if not line:
                raise AssertionError(f"ended without {count} x '{start}':\n{''.join(self.err)}")
            self.err.append(line)

    def interrupt(self) -> Outcome:
        self.child.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Outcome:
        out, err = self.child.communicate(timeout=CHILD_SECONDS)
        status = self.child.returncode
        return Outcome(status, out.decode(), "".join(self.err) + err.decode(errors="replace"))


def main(*names: str) -> None:
    """Runs the named test modules and ends the process: a summary in one line, status 1 on failure."""
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromName(n) for n in names)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    # A case with several failing sub-cases is one failed case.
    cases = {getattr(case, "test_case", case).id() for case, _ in result.failures + result.errors}
    bad = len(cases)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    good = result.testsRun - bad - len(result.skipped)
    print(f"{good} passed, {bad} failed{skipped}")
    sys.exit(1 if bad or good == 0 else 0)
