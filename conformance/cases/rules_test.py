#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the ABI's headers is proved by a case or listed with the reason why it is not.

Compares three sets of ids: those of abi/include/kvspan/*.h, those that the cases cite, and those of
conformance/uncovered_rules.txt ("KV-AREA-1  reason" a line). An id that is cited or listed but not
in the headers, one that is neither cited nor listed, and one that is both are findings; so are a
case without rules and a reason without words.

    rules_test.py --root DIR       checks the tree, after it has checked itself on planted mistakes
"""
import argparse
import pathlib
import re
import sys

RULE = re.compile(r"\bKV-[A-Z]+-\d+\b")
CASE = re.compile(r"^KVSPAN_CASE\(\s*(\w+),\s*(\w+),\s*((?:\"[^\"]*\"\s*)+)", re.M)


def header_rules(headers: dict[str, str]) -> set[str]:
    return {rule for text in headers.values() for rule in RULE.findall(text)}


def cited_rules(sources: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Rule -> a case that cites it; and findings about cases."""
    cited: dict[str, str] = {}
    found = []
    for name, text in sources.items():
        cases = list(CASE.finditer(text))
        if len(cases) != len(re.findall(r"^KVSPAN_CASE\(", text, re.M)):
            found.append(f"{name}: a KVSPAN_CASE whose rules are no string literal")
        if re.search(r"^TEST(_F|_P)?\(", text, re.M) or "GTEST_SKIP" in text:
            found.append(f"{name}: TEST_F or GTEST_SKIP: write KVSPAN_CASE and needs")
        for case in cases:
            words = " ".join(re.findall(r'"([^"]*)"', case[3])).split()
            if not words:
                found.append(f"{case[1]}.{case[2]} cites no rule")
            for word in words:
                if not RULE.fullmatch(word):
                    found.append(f"{case[1]}.{case[2]} cites '{word}', which is no rule id")
                cited.setdefault(word, f"{case[1]}.{case[2]}")
    return cited, found


def listed_rules(text: str) -> tuple[dict[str, str], list[str]]:
    """Rule -> reason, of the lines that are not empty and no comment; and findings about lines."""
    listed: dict[str, str] = {}
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        rule, _, reason = line.partition(" ")
        if not RULE.fullmatch(rule) or len(reason.split()) < 3:
            found.append(f"uncovered_rules.txt:{number}: write an id and a reason")
        elif rule in listed:
            found.append(f"uncovered_rules.txt:{number}: {rule} is listed twice")
        listed[rule] = reason.strip()
    return listed, found


def findings(headers: dict[str, str], sources: dict[str, str], listing: str) -> list[str]:
    known = header_rules(headers)
    cited, found = cited_rules(sources)
    listed, more = listed_rules(listing)
    found += more
    found += [f"{rule}: {cited[rule]} cites it, no header has it" for rule in sorted(set(cited) - known)]
    found += [f"{rule}: listed as uncovered, no header has it" for rule in sorted(set(listed) - known)]
    found += [f"{rule}: listed as uncovered, yet {cited[rule]} proves it"
              for rule in sorted(set(listed) & set(cited))]
    found += [f"{rule}: no case proves it: write one, or list it with the reason"
              for rule in sorted(known - set(cited) - set(listed))]
    return found


def check_itself() -> list[str]:
    """Each planted mistake must be found, and the tree without one must be clean."""
    headers = {"a.h": "KV-ONE-1 One. KV-ONE-2 Two."}
    sources = {"a.cpp": 'KVSPAN_CASE(A, B, "KV-ONE-1") {\n}\n'}
    listing = "# why\nKV-ONE-2  nobody can see it\n"
    case = sources["a.cpp"]
    planted = [
        ("unknown cited", headers, {"a.cpp": case.replace("ONE-1", "ONE-1 KV-ONE-9")}, listing),
        ("unknown listed", headers, sources, listing + "KV-ONE-9  there is no such\n"),
        ("missing", headers, sources, ""),
        ("both", headers, sources, listing + "KV-ONE-1  it is both now\n"),
        ("twice", headers, sources, listing * 2),
        ("no reason", headers, sources, "KV-ONE-2\n"),
        ("no rules", headers, {"a.cpp": case + 'KVSPAN_CASE(A, C, "") {\n}\n'}, listing),
        ("skips itself", headers, {"a.cpp": case + "GTEST_SKIP();\n"}, listing),
        ("plain test", headers, {"a.cpp": case + "TEST_F(A, D) {\n}\n"}, listing),
    ]
    wrong = [f"self-test: '{name}' was not found"
             for name, h, s, text in planted if not findings(h, s, text)]
    return wrong + [f"self-test: a clean tree has {text}" for text in findings(headers, sources, listing)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    root = parser.parse_args().root
    headers = {p.name: p.read_text() for p in sorted((root / "abi/include/kvspan").glob("*.h"))}
    sources = {p.name: p.read_text()
               for p in sorted((root / "conformance/cases").glob("*_test.cpp"))}
    listing = (root / "conformance/uncovered_rules.txt").read_text()
    wrong = check_itself() + findings(headers, sources, listing)
    if not headers or not sources:
        wrong.append(f"no headers or no cases under {root}: wrong --root?")
    for text in wrong:
        print(text)
    known = len(header_rules(headers))
    listed = len(listed_rules(listing)[0])
    print(f"rules: {known} in the headers, {known - listed} proved by cases, {listed} listed, "
          f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
