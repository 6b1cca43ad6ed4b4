#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every feature and every report in the tables of docs/design/engine.md names tests that exist: tests as ctest
calls them, cases (Suite.Case), the simulator's plants, checkers and operations.

    engine_table_test.py --root DIR       checks the tree, after it has checked itself on planted mistakes
"""
import argparse
import pathlib
import re
import sys

ROW = re.compile(r"^\| (.+) \|$", re.M)
CASE = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|KVSPAN_CASE)\(\s*(\w+),\s*(\w+)", re.M)
NAMES = [  # how each kind of test says its name
    r"kvspan_(?:add|register)_test\(([\w.]+)",
    r"IN ITEMS ([\w ]+)\)",
    r"kvspan_sim_mutant\((\w+)",
]
HEADS = ("feature", "report")


def existing(cmake: str, cpp: str, sim: str) -> set[str]:
    names = {f"{suite}.{case}" for suite, case in CASE.findall(cpp)}
    names |= set(re.findall(NAMES[0], cmake))
    for items in re.findall(NAMES[1], cmake):
        names |= {f"{area}.{item}" for item in items.split() for area in ("host", "stub", "abi.sdk", "cuda")}
        names |= {f"abi.sdk_{item}" for item in items.split()}
    names |= {f"sim.mutant.{name}" for name in re.findall(NAMES[2], cmake)}
    # Plants, checkers and operations are strings of the simulator.
    return names | set(re.findall(r'"(\w+)"', sim))


def rows(document: str) -> list[list[str]]:
    out, inside = [], False
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] in HEADS:
            inside = True
        elif inside and not set(cells[0]) <= set("-"):
            out.append(cells)
    return out


def findings(document: str, names: set[str]) -> list[str]:
    found = [] if rows(document) else ["there is no table"]
    for cells in rows(document):
        tests = re.findall(r"`([\w.]+)`", cells[-1])
        found += [f"{cells[0]}: there is no test {name}" for name in tests if name not in names]
        if cells[-1].startswith("none: "):
            if len(cells[-1].split()) < 6:
                found.append(f"{cells[0]}: why is there none?")
        elif not tests:
            found.append(f"{cells[0]}: name a test, or begin with 'none: ' and say why")
    return found


def check_itself() -> list[str]:
    names = existing("kvspan_add_test(core.ring SOURCES a)\nkvspan_sim_mutant(lost a\n", "TEST(A, B) {\n", '"order"')
    head = "| feature | test |\n|---|---|\n"
    right = head + "| F1 | `core.ring`, `A.B` |\n| F2 | checker `order`, `sim.mutant.lost` |\n" \
        "| F3 | none: for so many good reasons |\n"
    planted = {
        "no such test": right.replace("core.ring", "core.rong"),
        "no such case": right.replace("A.B", "A.C"),
        "no such mutant": right.replace("lost", "found"),
        "no such checker": right.replace("order", "ardor"),
        "none named": right.replace("`core.ring`, `A.B`", "somehow"),
        "no reason": right.replace("for so many good reasons", "no"),
        "no table": right.replace("feature", "something"),
    }
    wrong = [f"self-test: '{name}' was not found" for name, text in planted.items() if not findings(text, names)]
    return wrong + [f"self-test: a right table has {text}" for text in findings(right, names)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    root = parser.parse_args().root

    def text(parts: list[str], pattern: str) -> str:
        return "\n".join(path.read_text(encoding="utf-8") for part in parts
                         for path in sorted((root / part).rglob(pattern)))

    parts = ["core", "host", "abi", "plugins", "conformance", "bench", "tests"]
    names = existing(text(parts, "CMakeLists.txt") + text(parts, "*.cmake"), text(parts, "*_test.cpp"),
                     text(["core/sim"], "*.cpp"))
    wrong = check_itself()
    for page in ("engine", "reports"):
        wrong += findings((root / f"docs/design/{page}.md").read_text(encoding="utf-8"), names)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
