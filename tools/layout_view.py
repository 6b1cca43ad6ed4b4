#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What one compiler makes of the ABI's headers: structs, slots, constants.

Structs and signatures are read from the debugging information of a compiled file, as readelf prints
it; constants, alignments and once more all offsets from a small program. The two must agree.
layout_manifest.py compares compilers and releases. Standard library and binutils only.
"""
import json
import pathlib
import re
import subprocess
import tempfile
from typing import NamedTuple

# Not part of what a binary sees: platform words, and what changes with every release.
NOT_CONSTANTS = {"KVSPAN_CALL", "KVSPAN_EXPORT", "KVSPAN_NOTHROW", "KVSPAN_HEADER_HASH",
                 "KVSPAN_ABI_MAJOR", "KVSPAN_ABI_MINOR", "KVSPAN_RELEASE_PATCH"}
KEEP_ALL = "-fno-eliminate-unused-debug-types"


class Compiler(NamedTuple):
    name: str
    command: tuple[str, ...]
    suffix: str


COMPILERS = [
    Compiler("gcc C11", ("gcc", "-std=c11"), ".c"),
    Compiler("g++ C++20", ("g++", "-std=c++20"), ".cpp"),
    Compiler("clang C11", ("clang-14", "-std=c11"), ".c"),
    Compiler("clang++ C++20", ("clang++-14", "-std=c++20"), ".cpp"),
]


class GateError(Exception):
    """Something that the person at the keyboard can mend; the text says how."""


def run(command: list[str], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise GateError(f"{' '.join(command[:2])} failed:\n{done.stderr.strip()[:2000]}")
    return done.stdout


# --- DWARF ------------------------------------------------------------


class Die:
    """One debugging entry: tag, attributes, children."""

    def __init__(self, tag: str):
        self.tag = tag
        self.attributes: dict[str, str] = {}
        self.children: list["Die"] = []

    def get(self, name: str) -> str:
        return self.attributes.get("DW_AT_" + name, "")

    def number(self, name: str, default: int = 0) -> int:
        text = self.get(name).split()
        return int(text[0], 0) if text else default


def read_dies(object_path: pathlib.Path) -> dict[int, Die]:
    """Every entry of an object file by offset, as readelf prints them (DWARF 4)."""
    dies: dict[int, Die] = {}
    stack: list[tuple[int, Die]] = []
    current = None
    text = run(["readelf", "--wide", "--debug-dump=info", str(object_path)])
    for line in text.splitlines():
        entry = re.match(r" <(\w+)><(\w+)>: Abbrev Number: \d+(?: \(DW_TAG_(\w+)\))?", line)
        if entry:
            depth, offset, tag = int(entry.group(1), 16), int(entry.group(2), 16), entry.group(3)
            if tag is None:
                continue
            current = dies[offset] = Die(tag)
            while stack and stack[-1][0] >= depth:
                stack.pop()
            if stack:
                stack[-1][1].children.append(current)
            stack.append((depth, current))
            continue
        attribute = re.match(r"    <\w+>\s+(DW_AT_\w+)\s*: (.*)$", line)
        if attribute and current is not None:
            # "(strp) (offset: 0x1f8): x", "(indirect string, offset: 0x1f8): x" or just "x"
            value = re.sub(r"^(\([^)]*\):? *)+", "", attribute.group(2)).strip()
            current.attributes[attribute.group(1)] = value
    if not dies:
        raise GateError("readelf shows no debugging information: the gate cannot see the layout")
    return dies


class Layout:
    """Types of one translation unit, in words that all compilers share."""

    def __init__(self, dies: dict[int, Die]):
        self.dies = dies

    def target(self, die: Die) -> "Die | None":
        reference = re.match(r"<0x(\w+)>", die.get("type"))
        return self.dies[int(reference.group(1), 16)] if reference else None

    def text(self, die: "Die | None") -> str:
        if die is None:
            return "void"
        if die.tag == "base_type":
            return self.base_text(die)
        if die.tag in ("typedef", "structure_type"):
            if not die.get("name"):
                raise GateError("a struct without a name: the ABI has only named ones")
            return die.get("name")
        if die.tag == "const_type":
            return "const " + self.text(self.target(die))
        if die.tag == "pointer_type":
            target = self.target(die)
            if target is not None and target.tag == "subroutine_type":
                return self.function_text(target)
            return self.text(target) + " *"
        if die.tag == "array_type":
            counts = [c.number("count", c.number("upper_bound", -1) + 1) for c in die.children]
            return self.text(self.target(die)) + "".join(f"[{count}]" for count in counts)
        raise GateError(
            f"the ABI uses a {die.tag}, which is not allowed: use integers, structs, pointers"
        )

    @staticmethod
    def base_text(die: Die) -> str:
        name, bits, encoding = die.get("name"), die.number("byte_size") * 8, die.number("encoding")
        if name in ("char", "float", "double"):
            return name
        if encoding in (5, 6, 7, 8):  # signed, signed char, unsigned, unsigned char
            return f"{'int' if encoding in (5, 6) else 'uint'}{bits}_t"
        raise GateError(f"the ABI uses {name}, which this gate does not allow")

    def function_text(self, die: Die) -> str:
        arguments = [
            "..." if c.tag == "unspecified_parameters" else self.text(self.target(c))
            for c in die.children
        ]
        return f"{self.text(self.target(die))} (*)({', '.join(arguments) or 'void'})"

    def size(self, die: "Die | None") -> int:
        if die is None:
            return 0
        if die.get("byte_size"):
            return die.number("byte_size")
        if die.tag == "array_type":
            count = 1
            for child in die.children:
                count *= child.number("count", child.number("upper_bound", -1) + 1)
            return count * self.size(self.target(die))
        return 8 if die.tag == "pointer_type" else self.size(self.target(die))

    def structs(self) -> dict[str, dict]:
        found = {}
        for die in self.dies.values():
            name = die.get("name")
            if die.tag == "enumeration_type" and name.startswith("kvspan"):
                raise GateError(f"{name} is an enum, whose size is the compiler's choice: use u32")
            if (
                die.tag != "structure_type"
                or not name.startswith("kvspan_")
                or die.get("declaration")
            ):
                continue
            found[name] = {
                "size": die.number("byte_size"),
                "fields": [self.field(name, c) for c in die.children if c.tag == "member"],
            }
        return found

    def field(self, struct: str, die: Die) -> dict:
        if die.get("bit_size"):
            raise GateError(
                f"{struct}.{die.get('name')} is a bit field: its place is the compiler's choice"
            )
        target = self.target(die)
        return {
            "name": die.get("name"),
            "offset": die.number("data_member_location"),
            "size": self.size(target),
            "type": self.text(target),
        }

    def functions(self) -> dict[str, str]:
        found = {}
        for die in self.dies.values():
            target = (
                self.target(die)
                if die.tag == "typedef" and die.get("name").startswith("kvspan_")
                else None
            )
            if target is not None and target.tag == "pointer_type":
                found[die.get("name")] = self.text(target)
        return found

    def opaque(self) -> list[str]:
        return sorted(
            {
                d.get("name")
                for d in self.dies.values()
                if d.tag == "structure_type"
                and d.get("declaration")
                and d.get("name").startswith("kvspan_")
            }
        )


# --- constants and alignments ------------------------------------------------------------


def macros(compiler: Compiler, include: pathlib.Path, source: pathlib.Path) -> dict[str, str]:
    """KVSPAN_ macros without arguments and with a value."""
    text = run([*compiler.command, f"-I{include}", "-dM", "-E", str(source)])
    found = dict(re.findall(r"^#define (KVSPAN_\w+) (\S.*)$", text, re.M))
    return {name: body for name, body in found.items() if name not in NOT_CONSTANTS}


def probe_text(headers: list[str], values: list[str], structs: dict[str, dict]) -> str:
    lines = [f'#include "kvspan/{header}"' for header in headers] + [
        "#include <stdio.h>",
        "int main(void) {",
    ]
    for name in values:
        lines.append(
            f'  printf("C {name} %d %d %llu\\n", (int)(({name}) * 0 - 1 < 0), '
            f"(int)sizeof({name}) * 8, (unsigned long long)({name}));"
        )
    for name, struct in sorted(structs.items()):
        lines.append(
            f'  printf("A {name} %d %d\\n", (int)_Alignof({name}), (int)sizeof({name}));'
        )
        for field in struct["fields"]:
            lines.append(
                f'  printf("O {name} {field["name"]} %d\\n", '
                f"(int)offsetof({name}, {field['name']}));"
            )
    return "\n".join(lines + ["  return 0;", "}", ""])


def measure(
    compiler: Compiler,
    include: pathlib.Path,
    folder: pathlib.Path,
    headers: list[str],
    values: list[str],
    structs: dict[str, dict],
) -> dict[str, dict]:
    """Adds alignments to `structs`, which must agree with sizeof and offsetof. The constants."""
    source = folder / ("values" + compiler.suffix)
    text = probe_text(headers, values, structs)
    source.write_text(text.replace("_Alignof", "alignof") if compiler.suffix == ".cpp" else text)
    program = folder / "values"
    run([*compiler.command, "-w", f"-I{include}", str(source), "-o", str(program)])
    constants = {}
    for line in run([str(program)]).splitlines():
        kind, name, *rest = line.split()
        if kind == "C":
            signed, bits, value = (int(word) for word in rest)
            value = value - (1 << 64) if signed and value >> 63 else value
            constants[name] = {"type": f"{'int' if signed else 'uint'}{bits}_t", "value": value}
        elif kind == "A":
            structs[name]["alignment"] = int(rest[0])
            if structs[name]["size"] != int(rest[1]):
                raise GateError(f"{name}: sizeof and debugging information differ")
        else:
            field = next(f for f in structs[name]["fields"] if f["name"] == rest[0])
            if field["offset"] != int(rest[1]):
                raise GateError(f"{name}.{rest[0]}: offsetof and debugging information differ")
    return constants


def view(compiler: Compiler, include: pathlib.Path, headers: list[str]) -> dict:
    """The layout as one compiler sees it."""
    with tempfile.TemporaryDirectory(prefix="kvspan-layout-") as name:
        folder = pathlib.Path(name)
        source = folder / ("types" + compiler.suffix)
        # The entry's declaration and its pointer type are one, or this does not compile.
        source.write_text(
            "".join(f'#include "kvspan/{header}"\n' for header in headers)
            + "kvspan_plugin_open_fn kvspan_probe = kvspan_plugin_open_0;\n"
        )
        compiled = folder / "types.o"
        run([*compiler.command, f"-I{include}", "-Werror", "-gdwarf-4", KEEP_ALL, "-c", str(source),
             "-o", str(compiled)])
        layout = Layout(read_dies(compiled))
        structs = layout.structs()
        bodies = macros(compiler, include, source)
        strings = {n: json.loads(body) for n, body in bodies.items() if body.startswith('"')}
        constants = measure(
            compiler, include, folder, headers, sorted(set(bodies) - set(strings)), structs
        )
        return {
            "structs": structs,
            "constants": constants,
            "strings": strings,
            "functions": layout.functions(),
            "opaque": layout.opaque(),
        }
