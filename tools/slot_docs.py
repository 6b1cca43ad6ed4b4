#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every slot of the ABI is documented: the comment right above it says how it may be called.

For each function pointer of a *_table_t, of the host services and of the plugin struct: a sentence,
then @thread @shape @unit @own @error @rule. Thread classes are those of types.h; each rule id
KV-<AREA>-<n> is given its sentence exactly once in all headers; codes named by @error exist; the
last parameter is the error record, where results are returned.

    tools/slot_docs.py [--include DIR]      exit 1 when something is missing
"""
import argparse
import pathlib
import re
import sys

TAGS = ("thread", "shape", "unit", "own", "error", "rule")
THREAD = re.compile(r"(ANY|SOLO|SYNC\([a-z_]+\))( NOBLOCK)?$")
RULE_ID = re.compile(r"KV-[A-Z]+-\d+")
STRUCT = re.compile(r"typedef struct (kvspan_\w+_table_t|kvspan_host_services_t|kvspan_plugin_t) "
                    r"\{(.*?)\n\} \1;", re.S)
POINTER = r"\(KVSPAN_CALL ?\* ?(?P<name>\w+)\)"
SLOT = re.compile(r"^  (?P<result>[\w *]+?)" + POINTER +
                  r"\s*\((?P<parameters>[^;]*)\)\s*KVSPAN_NOTHROW;", re.M)
WITHOUT_ERROR = {"kvspan_host_services_t", "kvspan_plugin_t.table"}


class Slot:
    """A slot with the comment above it, if there is one."""

    def __init__(self, place: str, match: re.Match, body: str):
        self.place = place
        self.parameters = " ".join(match.group("parameters").split())
        comment = re.search(r"/\*\*((?:(?!\*/).)*)\*/\s*$", body[:match.start()], re.S)
        self.text = comment.group(1) if comment else ""
        self.tags: dict[str, list[str]] = {}
        self.summary = ""
        current = None
        for line in self.text.splitlines():
            line = re.sub(r"^\s*\*? ?", "", line).strip()
            tag = re.match(r"@(\w+)\s*(.*)$", line)
            if tag:
                current = self.tags.setdefault(tag.group(1), [])
                current.append(tag.group(2))
            elif current is None:
                self.summary += line + " "
            else:
                current[-1] = f"{current[-1]} {line}".strip()


def slots(headers: dict[str, str]) -> list[Slot]:
    found = []
    for text in headers.values():
        for struct in STRUCT.finditer(text):
            body = struct.group(2)
            for match in SLOT.finditer(body):
                found.append(Slot(f"{struct.group(1)}.{match.group('name')}", match, body))
            if len(re.findall(POINTER, body)) != len(SLOT.findall(body)):
                raise ValueError(f"{struct.group(1)}: not all are written as slots are")
    return found


def rule_sentences(headers: dict[str, str]) -> dict[str, list[str]]:
    """Where each rule id is followed by its sentence (as opposed to being referred to)."""
    found: dict[str, list[str]] = {}
    for name, text in headers.items():
        for match in re.finditer(r"(KV-[A-Z]+-\d+)[ \n*]+(?=[A-Za-z])", text):
            found.setdefault(match.group(1), []).append(name)
    return found


def codes(headers: dict[str, str]) -> set[str]:
    """Words that @error may use in capitals."""
    text = "\n".join(headers.values())
    named = re.findall(r"^#define KVSPAN_(?:E_|RESOURCE_|ERROR_)?([A-Z][A-Z0-9_]+) ", text, re.M)
    return set(named) | {"NULL"}


def slot_findings(slot: Slot, rules: dict[str, list[str]], known: set[str]) -> list[str]:
    if not slot.text:
        return ["has no /** comment */ right above it"]
    found = [] if slot.summary.strip() else ["says nothing before its tags"]
    for tag in TAGS:
        if not any(value.strip() for value in slot.tags.get(tag, [])):
            found.append(f"has no @{tag}")
    found += [f"has an unknown @{tag}" for tag in slot.tags if tag not in TAGS]
    for value in slot.tags.get("thread", []):
        if not THREAD.match(value):
            found.append(f"@thread {value}: it is ANY, SYNC(object) or SOLO, and NOBLOCK or not")
    for value in slot.tags.get("rule", []):
        if not RULE_ID.match(value):
            found.append(f"@rule {value}: begin with an id KV-<AREA>-<n>")
    for value in slot.tags.get("error", []):
        for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", value.split(":")[0]):
            if word not in known:
                found.append(f"@error names {word}, which is no code")
    for rule in RULE_ID.findall(slot.text):
        if rule not in rules:
            found.append(f"names {rule}, which has no sentence anywhere")
    struct = slot.place.split(".")[0]
    needs_error = struct not in WITHOUT_ERROR and slot.place not in WITHOUT_ERROR
    if needs_error and not re.search(r"kvspan_error_t ?\* ?error$", slot.parameters):
        found.append("does not take `kvspan_error_t *error` last")
    return found


def check(include: pathlib.Path) -> tuple[list[str], int]:
    headers = {p.name: p.read_text() for p in sorted((include / "kvspan").glob("*.h"))}
    try:
        all_slots = slots(headers)
    except ValueError as problem:
        return [str(problem)], 0
    if not all_slots:
        return [f"no slot found in {include}/kvspan: wrong --include?"], 0
    rules = rule_sentences(headers)
    found = [f"{rule} has {len(places)} sentences ({', '.join(places)}), not one"
             for rule, places in rules.items() if len(places) != 1]
    known = codes(headers)
    for slot in all_slots:
        found += [f"{slot.place} {text}" for text in slot_findings(slot, rules, known)]
    return found, len(all_slots)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--include", type=pathlib.Path, default=root / "abi" / "include")
    found, count = check(parser.parse_args().include)
    for text in found:
        print(f"slot_docs: {text}")
    print(f"slot_docs: {count} slots, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
