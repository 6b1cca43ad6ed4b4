#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/abi/rules.md: every rule of the headers with its sentence and the cases that prove it.

Sentences come from the comments of abi/include/kvspan/*.h, cases from `kvspan-conformance --list`,
reasons why a rule has no case from conformance/uncovered_rules.txt. Nobody edits the list by hand.

    tools/rule_list.py --program build/dev/bin/kvspan-conformance            writes the list
    tools/rule_list.py --program build/dev/bin/kvspan-conformance --check    exit 1 where it is stale
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULE = r"KV-[A-Z]+-\d+"
COMMENT = re.compile(r"/\*(.*?)\*/(\s*[\w \n*]*\(KVSPAN_CALL\s*\*\s*(\w+)\))?", re.S)
# An id with words behind it is that rule's sentence; one without is a reference.
SENTENCE = re.compile(rf"({RULE}) (?=[A-Za-z])(.*?)(?=\s*{RULE} [A-Za-z]|$)")
# What heads of files say behind their last rule.
AFTERWORD = re.compile(r"(?<=\.) (?:Not here|Read next): .*$")

HEAD = """# Rules

Written by `tools/rule_list.py` from the headers and from `kvspan-conformance --list`; do not edit. {count} rules,
{proved} of them proved by {cases} cases. A case may prove several rules. Run one rule's cases with
`kvspan-conformance kvspan-mine.so --rule KV-COPY-1`.
"""


class Rule(NamedTuple):
    id: str
    header: str
    slot: str  # empty where it holds for more than one
    sentence: str


def rules_of(header: str, text: str) -> list[Rule]:
    found = []
    for comment in COMMENT.finditer(text):
        slot = "" if "typedef" in (comment[2] or "") else comment[3] or ""
        lines = [re.sub(r"^\s*\*+ ?", "", line).strip() for line in comment[1].split("\n")]
        words = " ".join(" ".join(lines).split())
        for part in re.split(r"@\w+ ", words):
            for match in SENTENCE.finditer(part):
                sentence = AFTERWORD.sub("", match[2]).strip()
                found.append(Rule(match[1], header, slot, sentence))
    return found


def reading_order(folder: pathlib.Path) -> list[str]:
    """Headers as an author meets them; what is not named here comes last, by name."""
    wanted = ["types.h", "error.h", "host.h", "entry.h", "device.h", "memory.h", "queue.h", "fence.h", "copy.h",
              "codec.h", "attention_shape.h", "attention.h"]
    present = sorted(path.name for path in folder.glob("*.h"))
    return [n for n in wanted if n in present] + [n for n in present if n not in wanted]


def cases_of(listing: str) -> dict[str, list[str]]:
    """Rule -> ids of the cases that prove it, in the order of the suite."""
    found: dict[str, list[str]] = {}
    for line in listing.splitlines():
        columns = re.split(r"\s{2,}", line.strip())
        if len(columns) < 3:
            raise ValueError(f"a line of --list is not understood: {line!r}")
        for rule in columns[2].split():
            found.setdefault(rule, []).append(columns[0])
    return found


def reasons_of(text: str) -> dict[str, str]:
    lines = (line.split(None, 1) for line in text.splitlines() if line.startswith("KV-"))
    return {words[0]: words[1].strip() for words in lines}


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def rendered(rules: list[Rule], cases: dict[str, list[str]], reasons: dict[str, str]) -> str:
    every = {case for ids in cases.values() for case in ids}
    proved = sum(rule.id in cases for rule in rules)
    out = [HEAD.format(count=len(rules), proved=proved, cases=len(every))]
    for header in dict.fromkeys(rule.header for rule in rules):
        out.append(f"\n## {header}\n\n| rule | slot | sentence | proved by |\n|---|---|---|---|\n")
        for rule in (rule for rule in rules if rule.header == header):
            proof = ", ".join(f"`{case}`" for case in cases.get(rule.id, []))
            proof = proof or f"no case: {reasons.get(rule.id, 'nobody has said why')}"
            slot = f"`{rule.slot}`" if rule.slot else ""
            out.append(f"| {rule.id} | {slot} | {cell(rule.sentence)} | {cell(proof)} |\n")
    return "".join(out)


def findings(rules: list[Rule], cases: dict[str, list[str]]) -> list[str]:
    ids = [rule.id for rule in rules]
    found = [f"{rule} has {ids.count(rule)} sentences, not one" for rule in sorted(set(ids))
             if ids.count(rule) != 1]
    found += [f"{rule.id}: its sentence does not end: {rule.sentence!r}" for rule in rules
              if not rule.sentence.endswith(".")]
    found += [f"{rule}: {cases[rule][0]} proves it, and no header has it"
              for rule in sorted(set(cases) - set(ids))]
    return found


def collected(root: pathlib.Path) -> list[Rule]:
    folder = root / "abi/include/kvspan"
    return [rule for name in reading_order(folder) for rule in rules_of(name, (folder / name).read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="a built kvspan-conformance")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where the list is stale")
    chosen = parser.parse_args()
    if not chosen.program.is_file():
        print(f"rule_list: {chosen.program} is not there: build the target kvspan_conformance")
        return 1
    rules = collected(chosen.root)
    cases = cases_of(subprocess.check_output([chosen.program, "--list"], text=True))
    wrong = findings(rules, cases)
    for text in wrong:
        print(f"rule_list: {text}")
    if wrong or not rules or not cases:
        print(f"rule_list: {len(rules)} rules, {len(cases)} of them with cases: nothing written")
        return 1
    text = rendered(rules, cases, reasons_of((chosen.root / "conformance/uncovered_rules.txt").read_text()))
    path = chosen.root / "docs/abi/rules.md"
    before = path.read_text() if path.exists() else ""
    if not chosen.check:
        path.write_text(text)
        print(f"rule_list: {len(rules)} rules written to {path}")
        return 0
    if before != text:
        changes = difflib.unified_diff(before.splitlines(), text.splitlines(), "docs/abi/rules.md",
                                       "what it should be", n=0, lineterm="")
        print("\n".join(list(changes)[:40]))
        print(f"rule_list: docs/abi/rules.md is stale: tools/rule_list.py --program {chosen.program}")
        return 1
    print(f"rule_list: {len(rules)} rules, the list is true")
    return 0


if __name__ == "__main__":
    sys.exit(main())
