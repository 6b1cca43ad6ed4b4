#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a part of the tree may include and which words it may not use: the rules of tidy.py about
dependencies.

Arrows point to the ABI and never back. Not a program: tidy.py runs these checks, tidy_test.py tests
them.
"""
import re
from typing import Callable, Iterator, NamedTuple

from tidy_tree import Finding, Tree, blank_out, is_test, line_of

LIBC_HEADERS = set(
    "assert errno float inttypes limits math stdalign stdbool stddef stdint stdlib string".split()
)


# --- include directions ---------------------------------------------------------------------------


def forbidden_include(path: str, name: str) -> str:
    """Why `path` may not include `name`; empty when it may."""
    part = path.split("/")[0]
    if path.startswith("abi/include/") and path.endswith(".h"):
        if not name.startswith("kvspan/") and re.sub(r"\.h$", "", name) not in LIBC_HEADERS:
            return "an ABI header needs libc headers only"
    if path.startswith("abi/include/") and re.match(
        r"(kvspan/core|tl|fmt|hwy|Eigen|nlohmann|CLI)/", name
    ):
        return "the installed headers depend on nothing but the standard libraries"
    if part == "core":
        if re.search(r"(^|/)(host|plugins|conformance)/", name):
            return "core knows neither host nor plugins: take a table or an option instead"
        if name in ("dlfcn.h", "kvspan/sdk/loader.hpp") and not is_test(path):
            return "core never opens a library: the host hands it an open backend"
    if part == "plugins":
        bench = re.match(r"plugins/\w+/bench/", path)  # a host of its own, which may use core
        if re.search(r"(^|/)(core|host|conformance)/", name) and not (
            bench and name.startswith("kvspan/core/")
        ):
            return "a plugin depends on the ABI alone"
        other = re.match(r"(?:\.\./)*(?:plugins/)?(stub|cpu|cuda|hip|vulkan)/", name)
        if other and not path.startswith(f"plugins/{other.group(1)}/"):
            return "one plugin never includes another"
    if path.startswith("host/model/") and re.search(r"(^|/)plugins/", name):
        return "the model reaches attention through the ABI, not through a plugin's sources"
    if part == "host" and re.search(r"(^|/)plugins/", name) and not is_test(path):
        return "the host meets plugins at run time only"
    if part == "conformance" and re.search(r"(^|/)(host|plugins)/", name):
        return "the suite judges a .so from outside"
    if path.startswith("conformance/runner/"):
        if re.search(r"(^|/)core/", name):
            return "the parent of the suite knows records, not core: cases and worker may use core"
        if name in ("dlfcn.h", "kvspan/sdk/loader.hpp"):
            return "the parent of the suite never loads a plugin: ask a worker"
    return ""


def check_include_direction(tree: Tree) -> Iterator[Finding]:
    for path in tree.sources():
        for match in re.finditer(
            r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', tree.text(path), re.M
        ):
            reason = forbidden_include(path, match.group(1))
            if reason:
                yield Finding(
                    path,
                    line_of(tree.text(path), match.start()),
                    "include-direction",
                    f"<{match.group(1)}>: {reason}",
                )


# --- words ----------------------------------------------------------------------------------------


class Word(NamedTuple):
    rule: str
    pattern: str
    applies: Callable[[str], bool]
    advice: str
    comments_too: bool = False


def outside_tests(path: str) -> bool:
    """Neither a test nor one of the faulty plugins, whose purpose is to misbehave."""
    return not is_test(path) and not path.startswith("conformance/faults/")


WORDS = [
    Word(
        "environment",
        r"\b(secure_)?(getenv|setenv|putenv)\b",
        lambda p: p != "host/config.cpp" and outside_tests(p),
        "only host/config.cpp reads the environment: pass an option",
    ),
    Word(
        "open-library",
        r"\bdlm?open\s*\(",
        lambda p: not p.startswith("abi/include/kvspan/sdk/")
        and p != "conformance/worker/library.cpp"  # the entry called as no careful host would
        and outside_tests(p),
        "open plugins through the loader of kvspan/sdk",
    ),
    Word(
        "backend-name",
        r"(?i)\b(cuda|hip|vulkan|kvspan-cpu|kvspan-stub)\b",
        lambda p: p.startswith("core/") and outside_tests(p),
        "core names no backend: use a capability",
        comments_too=True,
    ),
    Word(
        "model-name",
        r"(?i)\b(llama|qwen|gemma|mistral)\w*",
        lambda p: p.startswith(("core/", "plugins/")),
        "core and plugins see geometry, not models",
        comments_too=True,
    ),
    Word(
        "clock",
        r"\bchrono::\w*_clock::now|\b_?clock::now|\b(clock_gettime|gettimeofday)\s*\(",
        lambda p: p.startswith("core/") and outside_tests(p),
        "core is handed its clock",
    ),
    Word(
        "process-end",
        r"(?<![\w.>])(std::|::)?(abort|exit|_exit|quick_exit|terminate)\s*\(",
        outside_tests,
        "return a failure value; nothing a user or a device does may end the process",
    ),
    Word(
        "open-end",
        r"\bFIX" + r"ME\b|\bTO" + r"DO\b(?! ?\(#\d+\))",
        lambda p: True,
        "finish it or name an issue: (#n)",
        comments_too=True,
    ),
    Word(
        "disabled-test", r"\bDISABLED_\w+", is_test, "a disabled test is no test: mend or remove it"
    ),
]


def check_words(tree: Tree) -> Iterator[Finding]:
    for path in tree.sources():
        with_comments = tree.text(path)
        code = blank_out(with_comments, strings=True)
        for word in WORDS:
            if not word.applies(path):
                continue
            text = with_comments if word.comments_too else code
            for match in re.finditer(word.pattern, text):
                yield Finding(
                    path,
                    line_of(text, match.start()),
                    word.rule,
                    f"'{match.group(0)}': {word.advice}",
                )
