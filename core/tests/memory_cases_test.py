#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every case in the table of docs/design/memory.md names a test that exists, or says why there is none.

    memory_cases_test.py --root DIR       checks the tree, after it has checked itself on planted mistakes
"""
import argparse
import pathlib
import re
import sys

# How many cases there are of each code; a row for each, in this order.
CODES = {"BUF": 6, "DEV": 10, "HOST": 6, "PLN": 11, "CMP": 11, "EXE": 13, "EXD": 4, "REQ": 16, "PLA": 16,
         "LAY": 16, "BUD": 9, "TRN": 16, "ACT": 8, "REC": 18, "PHA": 7, "PHO": 5, "WSP": 11}
ROW = re.compile(r"^\| ([A-Z]+\d+) \| ([^|]*) \| ([^|]*) \|$", re.M)
TEST = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|KVSPAN_CASE)\(\s*(\w+),\s*(\w+)", re.M)


def existing(sources: list[str]) -> set[str]:
    return {f"{suite}.{case}" for text in sources for suite, case in TEST.findall(text)}


def findings(document: str, tests: set[str], codes: dict[str, int]) -> list[str]:
    rows = ROW.findall(document)
    found = [f"{code}: says nothing" for code, case, _ in rows if not case.strip()]
    wanted = [f"{code}{number}" for code, count in codes.items() for number in range(1, count + 1)]
    listed = [code for code, _, _ in rows]
    found += [f"{code}: no row" for code in wanted if code not in listed]
    found += [f"{code}: an unknown case, or a row of it twice" for code in sorted(set(listed))
              if code not in wanted or listed.count(code) > 1]
    for code, _, here in rows:
        names = re.findall(r"`(\w+\.\w+)`", here)
        found += [f"{code}: there is no test {name}" for name in names if name not in tests]
        if here.startswith("none: "):
            if len(here.split()) < 6:
                found.append(f"{code}: why is there none?")
        elif not names:
            found.append(f"{code}: name a test, or begin with 'none: ' and say why")
    return found


def check_itself() -> list[str]:
    tests = existing(["TEST(A, B) {\n", "KVSPAN_CASE(C,\n            D, \"\") {\n"])
    codes = {"X": 2}
    right = "| X1 | it holds | `A.B`, `C.D` |\n| X2 | it cannot be | none: for so many good reasons |\n"
    planted = {
        "no such test": right.replace("A.B", "A.Z"),
        "missing": right.replace("X2", "Y2"),
        "unknown": right + "| X3 | more | `A.B` |\n",
        "twice": right + "| X1 | again | `A.B` |\n",
        "no reason": right.replace("for so many good reasons", "no"),
        "neither": right.replace("`A.B`, `C.D`", "somehow"),
        "says nothing": right.replace("it holds", ""),
    }
    wrong = [f"self-test: '{name}' was not found" for name, text in planted.items()
             if not findings(text, tests, codes)]
    return wrong + [f"self-test: a right table has {text}" for text in findings(right, tests, codes)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    root = parser.parse_args().root
    files = [path for folder in ("core/tests", "conformance/cases", "plugins/cuda/tests")
             for path in sorted((root / folder).glob("*_test.cpp"))]
    document = (root / "docs/design/memory.md").read_text()
    wrong = check_itself() + findings(document, existing([path.read_text() for path in files]), CODES)
    for text in wrong:
        print(text)
    rows = ROW.findall(document)
    reasons = sum(here.startswith("none: ") for _, _, here in rows)
    print(f"memory cases: {len(rows)}, {len(rows) - reasons} with tests, {reasons} with a reason, "
          f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
