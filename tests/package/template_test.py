#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The author kit, as its reader meets it: installs the package into a fresh folder outside the tree
and runs every command of the installed lessons there, in order.

A ```sh block of docs/backend-authors/ is run with KVSPAN naming the package and its bin/ on PATH; a
line that ends in `# exits N` must end so, every other line with 0. Then the report of the template
is read: something of each profile was executed, everything else is a skip that is known here.

    template_test.py --build DIR --cxx COMPILER
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

LESSONS = 6
NINJA = {"CMAKE_GENERATOR": "Ninja"}  # of packages.txt; an author may have make
# What the template does not have, on purpose, as the suite says it.
KNOWN_SKIPS = (
    "the plugin offers no attention table",
    "the plugin offers no debug table",
    "the plugin cannot plant ",
    "the plugin has no options \"seed\" and \"queues\"",
    "the device does not import host pages",
    "the device does not say that it sees a cancel word within a submit",
    "one allocation has at most ",
)
# Lines of a CMakeLists.txt behind find_package(kvspan), and what CMake must say to them.
MISUSES = (
    ("enable_testing()\nkvspan_add_conformance_test(absent)", "there is no target kvspan-absent"),
    ("enable_testing()\nadd_custom_target(kvspan-x)\nkvspan_add_conformance_test(x core copy)", "got 'x;core;copy'"),
    ("add_custom_target(kvspan-x)\nkvspan_add_conformance_test(x)", "call enable_testing() before"),
)


def script_of(block: str) -> str:
    """The block as a program that stops at the first line that ends otherwise than it says."""
    lines = ["set -euo pipefail"]
    for line in block.splitlines():
        expected = re.search(r"\s+# exits (\d+)$", line)
        if expected:
            command = line[:expected.start()]
            lines.append(f"{command} && code=0 || code=$?")
            lines.append(f"[ $code -eq {expected[1]} ] || {{ echo \"exit $code, not {expected[1]}\"; exit 99; }}")
        else:
            lines.append(line)
    return "\n".join(lines)


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


def minutes_of(text: str) -> int:
    stated = re.search(r"^Takes (\d+) minutes", text, re.M)
    return int(stated[1]) if stated else 0


def processor_seconds() -> float:
    """Of all children so far. Lessons state times of an idle machine: a busy one must not turn this red."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str], **options) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"package.template: exit {done.returncode}: {' '.join(map(str, command))}\n"
                 f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def run_lessons(prefix: pathlib.Path, folder: pathlib.Path, cxx: str) -> list[str]:
    """What was wrong; prints the time of each lesson."""
    environment = {**os.environ, **NINJA, "KVSPAN": str(prefix), "CXX": cxx,
                   "PATH": f"{prefix}/bin:{os.environ['PATH']}"}
    lessons = sorted((prefix / "share/doc/kvspan/backend-authors").glob("*.md"))
    wrong = [] if len(lessons) == LESSONS else [f"{len(lessons)} lessons are installed, not {LESSONS}"]
    for lesson in lessons:
        text = lesson.read_text()
        blocks = blocks_of(text)
        begin, used = time.monotonic(), processor_seconds()
        for block in blocks:
            done = subprocess.run(["bash", "-c", script_of(block)], cwd=folder, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                return wrong + [f"{lesson.name}: exit {done.returncode} of\n{block}\n{done.stdout[-6000:]}"]
        seconds = processor_seconds() - used
        print(f"{lesson.name}: {len(blocks)} blocks, {seconds:.1f} s of a processor in "
              f"{time.monotonic() - begin:.1f} s")
        if not blocks:
            wrong.append(f"{lesson.name} has no ```sh block")
        if not minutes_of(text):
            wrong.append(f"{lesson.name} does not say how many minutes it takes")
        elif seconds > minutes_of(text) * 60:
            wrong.append(f"{lesson.name} takes {seconds:.0f} s and says {minutes_of(text)} minutes")
    return wrong


def misuses(prefix: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Which wrong calls of kvspan_add_conformance_test() are not answered with a sentence."""
    wrong = []
    for number, (lines, answer) in enumerate(MISUSES):
        source = folder / f"misuse-{number}"
        source.mkdir()
        (source / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(misuse LANGUAGES NONE)\n"
                                               f"find_package(kvspan 0.1 REQUIRED)\n{lines}\n")
        command = ["cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
        done = subprocess.run(command, env={**os.environ, **NINJA}, capture_output=True, text=True, check=False)
        if answer not in " ".join(done.stderr.split()):
            wrong.append(f"CMake does not say '{answer}' to\n{lines}\n{done.stderr[-2000:]}")
    return wrong


def judge(results: pathlib.Path) -> list[str]:
    """What keeps the template's report from being green for something."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    cases = [r for r in records if r["record"] == "case" and not r["case"].startswith("Probe.")]
    verdict = records[-1]
    if verdict["record"] != "verdict":
        return ["the run has no verdict"]
    wrong = [] if verdict["exit_status"] == 0 else [f"exit status {verdict['exit_status']}"]
    for profile in ("core", "copy"):
        executed = sum(c["profile"] == profile and c["status"] == "pass" for c in cases)
        print(f"profile {profile}: {executed} cases passed")
        if executed == 0:
            wrong.append(f"nothing of profile {profile} was executed")
    for case in cases:
        if case["status"] == "skip" and not case["reason"].startswith(KNOWN_SKIPS):
            wrong.append(f"{case['case']} is skipped for an unknown reason: {case['reason']!r}")
        elif case["status"] == "inconclusive" and case["reason"]:  # the machine was busy
            print(f"{case['case']}: inconclusive: {case['reason']}")
        elif case["status"] not in ("pass", "skip"):
            wrong.append(f"{case['case']}: {case['status']}: {case['reason']} {case['failures'][:1]}")
    print(verdict["sentence"])
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a built tree of ours")
    parser.add_argument("--cxx", required=True, help="the author's compiler")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvspan-author-") as name:
        folder = pathlib.Path(name)
        run(["cmake", "--install", chosen.build, "--prefix", folder / "staged"])
        prefix = (folder / "staged").rename(folder / "kvspan")  # a package does not remember where it was
        author = folder / "author"
        author.mkdir()
        wrong = run_lessons(prefix, author, chosen.cxx)
        wrong += misuses(prefix, folder)
        results = author / "build/conformance/mine/results.jsonl"
        wrong += judge(results) if results.exists() else [f"{results.name} is missing: did lesson 00 run?"]
    for text in wrong:
        print(f"package.template: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
