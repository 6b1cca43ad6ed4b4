#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The files of the repository and how they are read: shared by tidy.py, tidy_parts.py and
sources.py.

Not a program and no rule lives here.
"""
import os
import pathlib
import re
import subprocess
from typing import NamedTuple

C_FAMILY = (".h", ".hpp", ".c", ".cpp")
HASH_COMMENT = (".py", ".cmake", ".sh")


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        kind = "error" if self.fatal else "warning"
        return f"{self.path}:{self.line}: {kind}: [{self.rule}] {self.text}"


class Tree:
    """The files git knows or would add, with their text read once."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.paths = sorted(p for p in self._list() if (root / p).is_file())
        self._text: dict[str, str] = {}

    def _list(self) -> list[str]:
        git = [
            "git",
            "-C",
            str(self.root),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        if (self.root / ".git").exists():
            return sorted(set(subprocess.check_output(git).decode().split("\0")) - {""})
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "build", "__pycache__")]
            found += [os.path.relpath(os.path.join(folder, n), self.root) for n in names]
        return found

    def text(self, path: str) -> str:
        if path not in self._text:
            self._text[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._text[path]

    def sources(self) -> list[str]:
        return [p for p in self.paths if p.endswith(C_FAMILY) and not p.startswith("data/")]

    def scripts(self) -> list[str]:
        return [p for p in self.paths if is_script(p) and not p.startswith("data/")]

    def documents(self) -> list[str]:
        return [p for p in self.paths if p.endswith(".md")]


def is_script(path: str) -> bool:
    return (
        path.endswith(HASH_COMMENT) or path.endswith("CMakeLists.txt") or path in ("dev", ".ci/run")
    )


def is_test(path: str) -> bool:
    return "/tests/" in f"/{path}" or path.endswith("_test.py")


def blank_out(text: str, strings: bool) -> str:
    """C or C++ text with comments (and, if asked, literals) blanked; lines keep their place."""
    pattern = (
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"
    )

    def blank(match: re.Match) -> str:
        token = match.group(0)
        if token[0] != "/" and not strings:
            return token
        return re.sub(r"[^\n]", " ", token)

    return re.sub(pattern, blank, text, flags=re.S)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
