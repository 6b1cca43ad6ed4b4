#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up what ctest and GoogleTest reported for one or more build folders.

    tools/test_summary.py build/dev build/asan ...

ctest counts an executable whose cases were all skipped as passed, so each GoogleTest case is
counted by itself from test-reports/<test>.xml, every skip is printed with its reason, and a test
that never reported counts as failed. The last line is `N passed, N failed[, N skipped]`. Exit code
1 when anything failed or nothing passed.
"""
import pathlib
import sys
import xml.etree.ElementTree as xml


class Counts:
    def __init__(self):
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def line(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.passed} passed, {len(self.failed)} failed{skipped}"


def count_cases(report: pathlib.Path, name: str, counts: Counts) -> None:
    for case in xml.parse(report).getroot().iter("testcase"):
        label = f"{name}: {case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None:
            counts.failed.append(label)
        elif skip is not None or case.get("status") == "notrun":
            reason = (skip.get("message") if skip is not None else "") or "no reason given"
            counts.skipped.append(f"{label}: {' '.join(reason.splitlines()[1:]) or reason}")
        else:
            counts.passed += 1


def skip_reason(case: xml.Element) -> str:
    for line in (case.findtext("system-out") or "").splitlines():
        if line.startswith("SKIPPED:"):
            return line.removeprefix("SKIPPED:").strip()
    return "no reason given"


def count_build(build: pathlib.Path) -> Counts:
    counts = Counts()
    junit = build / "junit.xml"
    if not junit.exists():
        counts.failed.append(f"{build.name}: no tests ran (did the build fail?)")
        return counts
    for case in xml.parse(junit).getroot().iter("testcase"):
        name = f"{build.name}: {case.get('name')}"
        skip = case.find("skipped")
        if skip is not None and skip.get("message", "").startswith("SKIP_"):
            counts.skipped.append(f"{name}: {skip_reason(case)}")
            continue
        report = build / "test-reports" / f"{case.get('name')}.xml"
        before = len(counts.failed)
        if report.exists():
            count_cases(report, name, counts)
        bad = case.get("status") != "run" or case.find("failure") is not None
        if (
            bad and len(counts.failed) == before
        ):  # crashed, timed out, leaked at exit, or never started
            counts.failed.append(
                f"{name}: {case.get('status')} outside its cases (crash, time, leak, not built?)"
            )
        elif not bad and not report.exists():
            counts.passed += 1
    return counts


def main() -> int:
    total = Counts()
    for folder in sys.argv[1:]:
        counts = count_build(pathlib.Path(folder))
        print(f"{pathlib.Path(folder).name:8} {counts.line()}")
        total.add(counts)
    for text in total.skipped:
        print(f"skipped  {text}")
    for text in total.failed:
        print(f"FAILED   {text}")
    if not total.passed and not total.failed:
        total.failed.append("nothing ran")
    print(total.line())
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
