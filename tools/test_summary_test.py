#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""test_summary.py tested on small reports: cases count one by one, silence is never success."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_summary  # noqa: E402

CASE_OK = '<testcase classname="A" name="B" status="run"/>'
CASE_BAD = '<testcase classname="A" name="C" status="run"><failure message="x"/></testcase>'
CASE_SKIP = (
    '<testcase classname="A" name="D" status="run">'
    '<skipped message="a.cpp:1&#10;no card"/></testcase>'
)


def counts(junit: str, reports: dict[str, str]) -> test_summary.Counts:
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        if junit:
            (build / "junit.xml").write_text(f"<testsuite>{junit}</testsuite>")
        (build / "test-reports").mkdir()
        for name, cases in reports.items():
            text = f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
            (build / "test-reports" / f"{name}.xml").write_text(text)
        return test_summary.count_build(build)


def numbers(junit: str, reports: dict[str, str]) -> tuple[int, int, int]:
    found = counts(junit, reports)
    return found.passed, len(found.failed), len(found.skipped)


RAN = '<testcase name="t" status="run"/>'
FAILED = '<testcase name="t" status="fail"><failure message=""/></testcase>'


class Summary(unittest.TestCase):
    def test_counts_cases_not_executables(self):
        self.assertEqual(numbers(RAN, {"t": CASE_OK * 3 + CASE_SKIP}), (3, 0, 1))

    def test_command_without_report_counts_once(self):
        self.assertEqual(numbers(RAN, {}), (1, 0, 0))

    def test_failed_cases_count_once_each(self):
        self.assertEqual(numbers(FAILED, {"t": CASE_OK + CASE_BAD}), (1, 1, 0))

    def test_crash_without_report_fails(self):
        self.assertEqual(numbers(FAILED, {}), (0, 1, 0))

    def test_leak_after_passing_cases_fails(self):
        self.assertEqual(numbers(FAILED, {"t": CASE_OK}), (1, 1, 0))

    def test_missing_executable_fails(self):
        junit = (
            '<testcase name="t" status="notrun">'
            '<skipped message="Unable to find executable"/></testcase>'
        )
        self.assertEqual(numbers(junit, {}), (0, 1, 0))

    def test_skip_by_return_code_keeps_its_reason(self):
        junit = (
            '<testcase name="t" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
            "<system-out>SKIPPED: no card here\n</system-out></testcase>"
        )
        found = counts(junit, {})
        self.assertEqual((found.passed, len(found.failed)), (0, 0))
        self.assertTrue(found.skipped[0].endswith("t: no card here"), found.skipped)

    def test_skipped_case_keeps_its_reason(self):
        self.assertTrue(counts(RAN, {"t": CASE_SKIP}).skipped[0].endswith("A.D: no card"))

    def test_build_that_never_tested_fails(self):
        self.assertEqual(numbers("", {}), (0, 1, 0))

    def test_line_names_skips_only_when_there_are_some(self):
        found = test_summary.Counts()
        found.passed = 4
        self.assertEqual(found.line(), "4 passed, 0 failed")
        found.skipped.append("x")
        self.assertEqual(found.line(), "4 passed, 0 failed, 1 skipped")


if __name__ == "__main__":
    unittest.main()
