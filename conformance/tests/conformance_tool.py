# SPDX-License-Identifier: Apache-2.0
"""`kvspan-conformance` (or the scripted suite) as a child process, for the suite's own tests.

Not a test: *_test.py import it. What a run left behind is read back from its reports, never from
its text alone.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from typing import NamedTuple

# What the suite promises (conformance/runner/ending.hpp).
PASSED, FAILED, CRASHED, MACHINE, WARNINGS, USAGE = 0, 1, 2, 3, 4, 64
# A hang must end with a message here rather than with ctest's time-out.
CHILD_SECONDS = 400


class Run(NamedTuple):
    status: int
    out: str
    err: str
    folder: pathlib.Path

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "results.jsonl").read_text().splitlines()]

    def cases(self) -> dict[str, dict]:
        return {line["case"]: line for line in self.lines() if line["record"] == "case"}

    def statuses(self) -> dict[str, str]:
        return {case: line["status"] for case, line in self.cases().items()}

    def verdict(self) -> dict:
        return self.lines()[-1]

    def junit(self) -> xml.etree.ElementTree.Element:
        return xml.etree.ElementTree.parse(self.folder / "junit.xml").getroot()

    def junit_case(self, case: str) -> xml.etree.ElementTree.Element:
        suite, name = case.split(".")
        found = [c for c in self.junit().iter("testcase")
                 if (c.get("classname"), c.get("name")) == (suite, name)]
        assert len(found) == 1, (case, len(found))
        return found[0]

    def told(self) -> str:
        return f"status {self.status}\nstdout {self.out}\nstderr {self.err}"


class SuiteCase(unittest.TestCase):
    """A folder of its own a case."""

    tool: pathlib.Path
    plugin: pathlib.Path

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvspan-conformance-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_suite(self, *arguments: object, plugin: object = None, status: int | None = None) -> Run:
        """Runs to the end and checks what must be true of every run that began."""
        out = self.folder / "out"
        command = [self.tool, plugin or self.plugin, "--out", out, *arguments]
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=CHILD_SECONDS, check=False)
        run = Run(done.returncode, done.stdout.decode(errors="replace"),
                  done.stderr.decode(errors="replace"), out)
        if status is not None:
            self.assertEqual(run.status, status, run.told())
        self.assertGreaterEqual(run.status, 0, run.told())
        self.assertNotIn("Sanitizer", run.err, run.told())
        if run.status not in (USAGE,):
            self.whole(run)
        return run

    def whole(self, run: Run) -> None:
        """No report is lost or contradicts another."""
        self.assertEqual(run.verdict()["record"], "verdict", run.told())
        self.assertEqual(run.verdict()["exit_status"], run.status)
        self.assertIn(run.verdict()["sentence"], run.out)
        self.assertEqual(len(run.cases()), run.lines()[0]["planned"] + 1, "one record a case")
        self.assertEqual(int(run.junit().get("tests")), len(run.cases()))
        self.assertIn("</html>", (run.folder / "report.html").read_text())
        for case, line in run.cases().items():
            if line["status"] not in ("pass", "skip", "waived"):
                self.assertIn(line["reproduce"], run.out, case)

    def refused(self, words: list[str], *arguments: object) -> None:
        """Status 64, one sentence on stderr with all of `words`, no report."""
        done = subprocess.run([str(word) for word in (self.tool, *arguments)],
                              stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=CHILD_SECONDS, check=False)
        said = f"{arguments}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        self.assertEqual(done.returncode, USAGE, said)
        lines = done.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, said)
        self.assertRegex(lines[0], r"^error: \S.{15,}", said)
        for word in words:
            self.assertIn(word, lines[0], said)


def main(tool: str, plugin: str, arguments: list[str]) -> None:
    """Runs the cases of the calling program: all, or those named."""
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    SuiteCase.tool = pathlib.Path(tool)
    SuiteCase.plugin = pathlib.Path(plugin)
    program = unittest.main(module="__main__", argv=[sys.argv[0], *arguments], verbosity=2, exit=False)
    result = program.result
    bad = len(result.failures) + len(result.errors)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    good = result.testsRun - bad - len(result.skipped)
    print(f"{good} passed, {bad} failed{skipped}")
    sys.exit(1 if bad or good == 0 else 0)
