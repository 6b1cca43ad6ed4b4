#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Repository checks as a test: style that matters fails the build, each finding names its fix.

Budgets, include directions, words that a part may not use, and the shape of documents. What
clang-format and clang-tidy see is theirs. Standard library only. tidy_test.py plants one violation
per check.

    tools/tidy.py [--root DIR]      exit 1 when something is wrong; warnings alone pass
"""
import argparse
import os
import pathlib
import re
import sys
from typing import Iterator

sys.dont_write_bytecode = True
from tidy_parts import check_include_direction, check_words
from tidy_tree import Finding, Tree, blank_out, is_script, is_test, line_of

FILE_LINES_WARN, TEST_LINES_WARN, FILE_LINES_MAX = 400, 500, 600
HEADER_LINES_WARN = 250  # one noun of the ABI a file
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX, SCRIPT_COLUMNS_MAX = 100, 120
BLOB_BYTES_MAX = 100_000
# Data that is the project's own input; everything else this large belongs outside the repository.
LARGE_FILES = {"data/models/bytelm.gguf", "data/text/emma.txt"}


# --- budgets --------------------------------------------------------------------------------------


def check_file_budget(tree: Tree) -> Iterator[Finding]:
    for path in tree.sources() + tree.scripts():
        count = tree.text(path).count("\n")
        soft = TEST_LINES_WARN if is_test(path) else FILE_LINES_WARN
        if re.match(r"abi/include/kvspan/\w+\.h$", path):
            soft = HEADER_LINES_WARN
        if count > FILE_LINES_MAX:
            yield Finding(
                path,
                count,
                "file-budget",
                f"{count} lines, {FILE_LINES_MAX} allowed: split it by noun",
            )
        elif count > soft:
            yield Finding(
                path,
                count,
                "file-budget",
                f"{count} lines, {soft} wanted: split it by noun",
                fatal=False,
            )


def own_style(paths: list[str]) -> list[str]:
    """Without the consumer: it stands for somebody else's program, with a style of its own."""
    return [path for path in paths if not path.startswith("tests/package/consumer/")]


def check_line_width(tree: Tree) -> Iterator[Finding]:
    for path in own_style(tree.sources()) + tree.scripts():
        allowed = SCRIPT_COLUMNS_MAX if is_script(path) else LINE_COLUMNS_MAX
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > allowed:
                text = f"{len(line)} columns, {allowed} allowed"
                yield Finding(path, number, "line-width", text)


def header_kind(header: str) -> str:
    """What a `{` outside functions opens, told from the text before it: function, init or scope."""
    header = re.sub(
        r"\b(alignas|noexcept|requires|decltype|__attribute__)\s*"
        r"\((?:[^()]|\([^()]*\)|\(\([^()]*\)\))*\)",
        " ",
        header,
    ).strip()
    if "(" not in header or header.endswith("=") or re.search(r"(?<![=!<>])=(?!=)[^()]*$", header):
        return "scope"
    if header.count("(") != header.count(")"):
        return "init"
    if re.search(r"\)\s*(const|noexcept|\s)*:[^:]", header) and re.search(r"[\w>]$", header):
        return "init"
    return "function"


def functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, line count) of each function body: a brace counter, not a parser."""
    code = re.sub(
        r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*",
        lambda m: re.sub(r"[^\n]", " ", m.group(0)),
        blank_out(text, strings=True),
        flags=re.M,
    )
    stack: list[tuple[str, int]] = []
    header = ""
    for offset, char in enumerate(code):
        inside = any(kind == "function" for kind, _ in stack)
        if char == "{":
            kind = "block" if inside else header_kind(header)
            stack.append((kind, offset))
            header = "" if kind == "scope" else header
        elif char == "}" and stack:
            kind, start = stack.pop()
            if kind == "function":
                first = line_of(code, start)
                yield first, line_of(code, offset) - first + 1
            header = header + "()" if kind == "init" else ("" if kind != "block" else header)
        elif char == ";" and not inside and not any(kind == "init" for kind, _ in stack):
            header = ""
        elif not inside:
            header += char


def check_function_budget(tree: Tree) -> Iterator[Finding]:
    for path in own_style(tree.sources()):
        for first, count in functions(tree.text(path)):
            if count > FUNCTION_LINES_MAX:
                yield Finding(
                    path,
                    first,
                    "function-budget",
                    f"{count} lines, {FUNCTION_LINES_MAX} allowed: give its parts names",
                )


# --- words and paths ------------------------------------------------------------------------------


def check_foreign_paths(tree: Tree) -> Iterator[Finding]:
    pattern = re.compile(r"(?<![\w.$}])/(?:home|root|Users)/\w|\.\./+shared|\.\./+\.library")
    for path in tree.paths:
        if path.startswith("data/text/") or path.endswith((".gguf", ".png", ".so")):
            continue
        for match in pattern.finditer(tree.text(path)):
            yield Finding(
                path,
                line_of(tree.text(path), match.start()),
                "foreign-path",
                f"'{match.group(0)}' exists on one machine only: use a path inside the repository",
            )


def check_cmake_glob(tree: Tree) -> Iterator[Finding]:
    """A script that runs at test time may look around; what configures the build may not."""
    for path in tree.paths:
        if path.endswith("CMakeLists.txt") or re.match(r"cmake/.*\.cmake$", path):
            for match in re.finditer(r"(?i)^[^#\n]*\bfile\s*\(\s*GLOB", tree.text(path), re.M):
                yield Finding(
                    path,
                    line_of(tree.text(path), match.start()),
                    "cmake-glob",
                    "list the files: a glob misses new ones until somebody configures again",
                )


def listed_names(text: str) -> re.Pattern:
    """Matches the names of the files in a CMakeLists.txt; `name_${isa}.cpp` stands for every isa."""
    names = set(re.findall(r"[\w.-]*(?:\$\{\w+\}[\w.-]*)*\.(?:cpp|c|hpp|h)\b", text))
    patterns = (re.sub(r"\\\$\\\{\w+\\\}", r"\\w+", re.escape(name)) for name in names)
    return re.compile("|".join(patterns) or r"(?!)")


def check_unlisted(tree: Tree) -> Iterator[Finding]:
    """Dead sources and uninstalled headers of the ABI: no CMake file here or above names them."""
    lists = [
        (f"{os.path.dirname(path)}/".lstrip("/"), listed_names(tree.text(path)))
        for path in tree.paths
        if path.endswith(("CMakeLists.txt", ".cmake"))
    ]
    for path in tree.sources():
        built = path.endswith((".c", ".cpp")) and "/compile_fail/" not in path
        if not built and not path.startswith("abi/include/"):
            continue
        name = os.path.basename(path)
        if not any(path.startswith(folder) and names.fullmatch(name) for folder, names in lists):
            yield Finding(
                path, 1, "unlisted", "no CMake file here or above names it: list or remove it"
            )


def check_names(tree: Tree) -> Iterator[Finding]:
    for path in tree.sources() + tree.scripts():
        for piece in pathlib.PurePosixPath(path).parts:
            if re.match(
                r"(utils?|common|helpers?|misc|managers?)$", piece.split(".")[0]
            ) or re.search(r"_(utils?|helpers?|manager)\.", piece):
                yield Finding(
                    path, 1, "empty-name", f"'{piece}' says nothing: name the noun it is about"
                )


# --- heads and documents --------------------------------------------------------------------------


def check_heads(tree: Tree) -> Iterator[Finding]:
    for path in tree.sources() + tree.scripts():
        lines = tree.text(path).splitlines()
        start = 1 if lines and lines[0].startswith("#!") else 0
        if len(lines) <= start or "SPDX-License-Identifier: Apache-2.0" not in lines[start]:
            yield Finding(
                path,
                start + 1,
                "spdx",
                "begin with `SPDX-License-Identifier: Apache-2.0` in a comment",
            )
        elif len(lines) > start + 1 and not re.match(
            r"\s*(//|/\*|\*|#(?!\w)|\"\"\"|$)", lines[start + 1]
        ):
            yield Finding(
                path,
                start + 2,
                "head",
                "say in 3 to 8 lines what the file is, is not, and where to read next",
            )


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(
        r"^```.*?^```[^\n]*", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.M | re.S
    )


def check_titles(tree: Tree) -> Iterator[Finding]:
    for path in tree.documents():
        titles = re.findall(r"^# .+", prose(tree.text(path)), re.M)
        if len(titles) != 1 or not tree.text(path).lstrip().startswith("# "):
            yield Finding(
                path, 1, "title", f"{len(titles)} lines begin with `# `: one title, on top"
            )


def check_links(tree: Tree) -> Iterator[Finding]:
    for path in tree.documents():
        text = prose(tree.text(path))
        for match in re.finditer(r"\]\(([^)\s#]+)(#[^)\s]*)?\)", text):
            target = match.group(1)
            if re.match(r"[a-z]+:", target) or (tree.root / path).parent.joinpath(target).exists():
                continue
            yield Finding(
                path, line_of(text, match.start()), "dead-link", f"'{target}' is not there"
            )


def check_changelog(tree: Tree) -> Iterator[Finding]:
    sections = "Added|Changed|Deprecated|Removed|Fixed|Security"
    for path in (p for p in tree.documents() if os.path.basename(p) == "CHANGELOG.md"):
        if "\n## [" not in tree.text(path):
            yield Finding(path, 1, "changelog", "has no `## [version]` section")
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if line.startswith("## ") and not re.match(
                r"## \[(Unreleased|\d+\.\d+\.\d+)\]( - \d{4}-\d\d-\d\d)?$", line
            ):
                yield Finding(
                    path,
                    number,
                    "changelog",
                    "write `## [Unreleased]` or `## [1.2.3] - 2026-01-31`",
                )
            elif line.startswith("### ") and not re.match(rf"### ({sections})$", line):
                yield Finding(
                    path, number, "changelog", f"a section is one of {sections.replace('|', ', ')}"
                )


def check_blobs(tree: Tree) -> Iterator[Finding]:
    for path in tree.paths:
        size = (tree.root / path).stat().st_size
        if size > BLOB_BYTES_MAX and path not in LARGE_FILES:
            yield Finding(
                path, 1, "blob", f"{size} bytes, {BLOB_BYTES_MAX} allowed: make it at build time"
            )


def check_codemap(tree: Tree) -> Iterator[Finding]:
    codemap = "docs/CODEMAP.md"
    text = tree.text(codemap) if codemap in tree.paths else ""
    named = set(re.findall(r"`([\w./-]+/)`", text))
    present = {
        "/".join(p.split("/")[:depth]) + "/"
        for p in tree.paths
        for depth in (1, 2)
        if p.count("/") >= depth
    }
    for folder in sorted(present - named):
        yield Finding(codemap, 1, "codemap", f"`{folder}` is not described")
    for folder in sorted(f for f in named if not (tree.root / f).is_dir()):
        yield Finding(codemap, 1, "codemap", f"`{folder}` is described but not there")


CHECKS = [
    check_file_budget,
    check_line_width,
    check_function_budget,
    check_include_direction,
    check_words,
    check_foreign_paths,
    check_cmake_glob,
    check_unlisted,
    check_names,
    check_heads,
    check_titles,
    check_links,
    check_changelog,
    check_blobs,
    check_codemap,
]


def run(root: pathlib.Path) -> list[Finding]:
    tree = Tree(root)
    if not tree.paths:
        return [Finding(str(root), 1, "empty", "no files found: wrong --root?")]
    return [finding for check in CHECKS for finding in check(tree)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    findings = run(parser.parse_args().root)
    for finding in findings:
        print(finding)
    errors = sum(finding.fatal for finding in findings)
    print(f"tidy: {errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
