#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a built plugin shows to the process that loads it: one entry point, and nothing that hurts.

No other defined dynamic symbol, no unique symbol (it would pin the file in memory), no text
relocation, no executable stack, and a kvspan note.

    tools/exports.py <plugin.so>...      exit 1 when one shows more
"""
import re
import subprocess
import sys

ENTRY = "kvspan_plugin_open_0"


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def findings(path: str) -> list[str]:
    found = []
    symbols = [line.split() for line in output("nm", "-D", "--defined-only", path).splitlines()]
    names = {words[-1].split("@")[0]: words[-2] for words in symbols if len(words) >= 2}
    if ENTRY not in names:
        found.append(f"does not export {ENTRY}")
    for name in sorted(set(names) - {ENTRY}):
        found.append(f"exports {name}: hide it (-fvisibility=hidden and the version script)")
    if "u" in (words[-2] for words in symbols if len(words) >= 2):
        found.append("has a unique symbol, which keeps it mapped after dlclose")
    if re.search(r"\(TEXTREL\)|\bTEXTREL\b", output("readelf", "-dW", path)):
        found.append("has text relocations: compile every part with -fPIC")
    segments = output("readelf", "-lW", path)
    stack = re.search(r"GNU_STACK(?:\s+0x\w+){5}\s+(\w+)", segments)
    if stack is None or "E" in stack.group(1):
        found.append("asks for an executable stack: an assembly file lacks .note.GNU-stack")
    if ".note.kvspan" not in segments:
        found.append("has no kvspan note in a loaded segment: place KVSPAN_PLUGIN_NOTE once")
    return [f"{path}: {text}" for text in found]


def main() -> int:
    if len(sys.argv) < 2:
        print("exports: name at least one plugin")
        return 1
    found = [text for path in sys.argv[1:] for text in findings(path)]
    for text in found:
        print(f"exports: {text}")
    print(f"exports: {len(sys.argv) - 1} plugins, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
