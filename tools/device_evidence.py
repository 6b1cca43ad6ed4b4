#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the conformance suite said of a backend on a device that continuous integration lacks.

    device_evidence.py make --results results.jsonl --commit C --device NAME --driver V > FILE
    device_evidence.py check FILE...

`make` keeps of a run's JSON lines what proves it: executed and mandatory cases, every case with its
status, why the skipped ones were skipped, what the backend retains, commit, device and driver.
`check` reads such files again and fails where one proves less than a whole green run of a commit.
"""
import argparse
import json
import re
import sys

GREEN = {"pass", "skip", "warn"}


def made(lines, commit, device, driver):
    records = [json.loads(line) for line in lines if line.strip()]
    header = next(r for r in records if r["record"] == "header")
    verdict = next(r for r in records if r["record"] == "verdict")
    cases = [r for r in records if r["record"] == "case"]
    plugin = header["plugin"]
    return {
        "schema": 1,
        "commit": commit,
        "device": device,
        "driver": driver,
        "plugin": {key: plugin[key] for key in ("name", "version", "build_id", "header_hash")},
        "suite_version": header["suite_version"],
        "verdict": verdict["sentence"],
        "executed": verdict["executed"],
        "mandatory": verdict["mandatory"],
        "retained": header.get("probe", {}).get("retained", []),
        "skipped": {c["case"]: c["reason"] for c in cases if c["status"] == "skip"},
        "cases": {c["case"]: c["status"] for c in cases},
    }


def faults(evidence):
    """What this evidence lacks, a sentence each."""
    wrong = []
    if evidence.get("schema") != 1:
        return ["its schema is not 1"]
    if not re.fullmatch(r"[0-9a-f]{7,40}", evidence.get("commit", "")):
        wrong.append(f"commit {evidence.get('commit')!r} is no commit: run a clean checkout")
    for key in ("device", "driver"):
        if not evidence.get(key):
            wrong.append(f"it does not name the {key}")
    executed, mandatory = evidence.get("executed", 0), evidence.get("mandatory", 0)
    if executed == 0 or executed != mandatory:
        wrong.append(f"{executed} of {mandatory} mandatory cases were executed")
    cases = evidence.get("cases", {})
    red = sorted(name for name, status in cases.items() if status not in GREEN)
    if red:
        wrong.append(f"{len(red)} cases are not green: {', '.join(red[:5])}")
    passed = sum(1 for status in cases.values() if status in ("pass", "warn"))
    if passed < executed:
        wrong.append(f"it lists {passed} executed cases, and says {executed}")
    skipped = evidence.get("skipped", {})
    bare = sorted(n for n, status in cases.items() if status == "skip" and not skipped.get(n))
    if bare:
        wrong.append(f"skipped without a reason: {', '.join(bare)}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    for name in ("results", "commit", "device", "driver"):
        make.add_argument(f"--{name}", required=True)
    check = commands.add_parser("check")
    check.add_argument("files", nargs="+")
    given = parser.parse_args()
    if given.command == "make":
        with open(given.results, encoding="utf-8") as lines:
            evidence = made(lines, given.commit, given.device, given.driver)
        json.dump(evidence, sys.stdout, indent=1)
        print()
        return 0
    failed = 0
    for path in given.files:
        with open(path, encoding="utf-8") as file:
            evidence = json.load(file)
        wrong = faults(evidence)
        failed += bool(wrong)
        for sentence in wrong:
            print(f"{path}: {sentence}")
        if not wrong:
            print(f"{path}: {evidence['executed']} of {evidence['mandatory']} on "
                  f"{evidence['device']}, driver {evidence['driver']}, commit {evidence['commit']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
