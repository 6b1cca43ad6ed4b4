#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the conformance suite said of a backend on a device that continuous integration lacks.

    device_evidence.py make --results results.jsonl --commit C --device NAME --driver V > FILE
    device_evidence.py check --cases FOLDER --behind FILE FILE...

`make` keeps of a run's JSON lines what proves it: executed and mandatory cases, every case with its
status, why the skipped ones were skipped, what the backend retains, commit, device and driver.
`check` reads such files again and fails where one proves less than a whole green run of a commit,
and where a case of today's suite (the KVSPAN_CASEs of FOLDER) is in none of these two places: the
evidence, or the list of cases that came after it (--behind: an id a line, # begins a comment). What
is on that list is printed each time. A new run on the device shortens the list: an id on it that the
evidence has, or that the suite does not have, is a fault too.
"""
import argparse
import json
import pathlib
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


def suite_cases(folder):
    """The ids of today's cases, read from their sources."""
    ids = set()
    for source in sorted(pathlib.Path(folder).glob("*_test.cpp")):
        ids.update(".".join(names) for names in
                   re.findall(r"^KVSPAN_CASE\(\s*(\w+),\s*(\w+),", source.read_text("utf-8"), re.M))
    return ids


def listed_cases(text):
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {line for line in lines if line}


def behind_faults(evidence, suite, listed):
    """Where evidence, suite and the list of what came later do not fit together."""
    has = set(evidence.get("cases", {}))
    wrong = []
    for names, sentence in (
        (suite - has - listed, "cases of today's suite are neither in the evidence nor on the list of "
                               "those behind it: run the suite on the device, or add them there"),
        (listed & has, "cases on the list are in the evidence: take them off"),
        (listed - suite, "cases on the list are not in the suite: take them off"),
    ):
        if names:
            wrong.append(f"{len(names)} {sentence}: {', '.join(sorted(names))}")
    return wrong


def state(evidence, suite):
    """What a green evidence is worth today, a line or two."""
    cases = evidence["cases"]
    lines = [f"{evidence['executed']} of {evidence['mandatory']} on {evidence['device']}, driver "
             f"{evidence['driver']}, commit {evidence['commit']}"]
    later = sorted(suite - set(cases))
    if later:
        lines.append(f"OLDER than the suite: {len(later)} of today's {len(suite)} cases were never "
                     f"run there: {', '.join(later)}")
    gone = sorted(name for name in set(cases) - suite if not name.startswith("Probe."))
    if gone:
        lines.append(f"{len(gone)} of its cases are not in today's suite: {', '.join(gone)}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    for name in ("results", "commit", "device", "driver"):
        make.add_argument(f"--{name}", required=True)
    check = commands.add_parser("check")
    check.add_argument("--cases", required=True)
    check.add_argument("--behind", required=True)
    check.add_argument("files", nargs="+")
    given = parser.parse_args()
    if given.command == "make":
        with open(given.results, encoding="utf-8") as lines:
            evidence = made(lines, given.commit, given.device, given.driver)
        json.dump(evidence, sys.stdout, indent=1)
        print()
        return 0
    suite = suite_cases(given.cases)
    with open(given.behind, encoding="utf-8") as file:
        listed = listed_cases(file.read())
    failed = 0
    for path in given.files:
        with open(path, encoding="utf-8") as file:
            evidence = json.load(file)
        wrong = faults(evidence) + behind_faults(evidence, suite, listed)
        failed += bool(wrong)
        for sentence in wrong:
            print(f"{path}: {sentence}")
        for sentence in [] if wrong else state(evidence, suite):
            print(f"{path}: {sentence}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
