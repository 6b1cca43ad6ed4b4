#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The kill matrix: every fault of faults.json must be killed by its own case, for the right reason.

A fault is killed when the case ends with the expected status (fail, crash or hang) and the witness
counted: the faulty line ran. The same cases must pass with fault=none, else they kill everything.
Odd but legal plugins must pass. A planted fault without a row fails the matrix, as does a row whose
killer does not cite the rule.

    matrix.py --worker PROGRAM --faults DIR [--full] [--only GLOB] [--jobs N]
PROGRAM takes --worker --plugin P --option k=v --cases GLOB --record-fd N: kvspan-conformance does.
DIR holds kvspan-faulty-*.so. --full crosses every fault with one case of each area and says which
faults look right to all areas but their own. Exit 1 when a fault survives or a right plugin is
killed. Not here: what a fault does (the .cpp files here), what the statuses mean
(docs/design/conformance.md).
"""
import argparse
import concurrent.futures
import fnmatch
import itertools
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cases"))
from rules_test import CASE  # noqa: E402

HANG_S = 3  # for faults that are due to hang
PATIENCE_S = 60  # for right plugins, on a loaded machine
PLAUSIBLE_MIN = 40  # faults that every other area takes for right

# One quick case an area: what a fault of another area should pass.
SMOKE = {
    "fence": "FenceTest.WaitsForAllAndForAny",
    "submit": "FenceTest.SignalsOfSubmitsStrictlyIncrease",
    "copy": "CopyTest.PartsOfOneMemoryMoveInsideIt",
    "codec": "CodecTest.NoItemsAndNoRowsAreAcceptedAndSignal",
    "memory": "MemoryTest.ZeroBytesAreAMemory",
    "refusal": "RefusalTest.StructsOfAnotherSize",
    "numerics": "AttentionNumerics.OnesGiveOne",
    "fold": "AttentionFold.KnownStatesMergeToTheKnownMean",
    "capability": "RefusalAttention.TheRightCallIsAccepted",
    "end": "Needle.IsFoundInTheFirstAndTheLastToken",
}


class Outcome(NamedTuple):
    status: str  # pass, fail, crash, hang, inconclusive or error
    witness: int
    seconds: float
    text: str  # of the first failure


class Fault(NamedTuple):
    name: str
    base: str  # stub or cpu: the faulty object; else the name of a structural one
    options: str
    rule: str
    killer: str
    status: str
    witness: int  # least count; 0: the file is the fault
    effort: int = 1  # percent: more where the first rounds of the killer do not show the fault


def last_status(records: list[dict], returncode: int) -> tuple[str, str]:
    ends = [r for r in records if r.get("record") == "end"]
    failures = [r.get("message", "") for r in records if r.get("record") == "failure"]
    text = failures[0] if failures else ""
    if any(r["result"] == "fail" for r in ends) or (failures and returncode == 1):
        return "fail", text
    if not any(r.get("record") == "done" for r in records):
        return "crash", f"ended with {returncode}"
    results = {r["result"] for r in ends}
    return (results.pop() if len(results) == 1 else "error"), text


def read_records(path: pathlib.Path) -> list[dict]:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass  # the line that a crash cut
    return found


def counted(path: pathlib.Path) -> int:
    data = path.read_bytes() if path.exists() else b""
    return struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0


class Bench:
    """Runs one case against one faulty plugin in a process group of its own."""

    def __init__(self, worker: str, faults: str):
        self.worker, self.faults = worker, pathlib.Path(faults)
        self.kept = tempfile.TemporaryDirectory(prefix="kvspan-matrix-")
        self.folder = pathlib.Path(self.kept.name)
        self.serials = itertools.count(1)  # for all threads of the pool

    def plugin(self, base: str) -> str:
        name = f"faulty-{base}" if base in ("stub", "cpu") else base
        return str(self.faults / f"kvspan-{name}.so")

    def run(self, base: str, options: dict[str, str], case: str, patience_s: float,
            effort: int = 1, planned: bool = False) -> Outcome:
        """planned: the worker itself leaves out the cases that the plugin lacks something for."""
        stem = self.folder / f"{next(self.serials)}-{options.get('fault', 'none')}"
        witness, record, talk = (stem.with_suffix(s) for s in (".witness", ".records", ".text"))
        command = [self.worker, "--worker", "--plugin", self.plugin(base), "--cases", case]
        command += ["--effort", str(effort)]
        for key, value in {**options, "witness": str(witness)}.items():
            command += ["--option", f"{key}={value}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GTEST_")}
        begin = time.monotonic()
        with open(record, "wb") as records, open(talk, "wb") as text:
            reporting = [] if planned else ["--record-fd", str(records.fileno())]
            child = subprocess.Popen(
                command + reporting, stdin=subprocess.DEVNULL,
                stdout=text, stderr=subprocess.STDOUT, env=environment,
                pass_fds=[records.fileno()], start_new_session=True)
            try:
                child.wait(timeout=patience_s)
                status = ""
            except subprocess.TimeoutExpired:
                status = "hang"
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        seconds = time.monotonic() - begin
        said = talk.read_text(errors="replace")
        text = said[-300:]
        if child.returncode == 64:
            status = "error"  # the worker's own refusal: no such case
        elif not status and planned:
            some = re.search(r"\[  PASSED  \] [1-9]", said)
            status = "pass" if child.returncode == 0 and some else "fail"
        elif not status:
            status, text = last_status(read_records(record), child.returncode)
            if status == "pass" and said:
                status, text = "fail", "KV-HOST-1: it printed " + said[:100]
        return Outcome(status, counted(witness), seconds, text)


def options_of(fault: Fault) -> dict[str, str]:
    pairs = dict(pair.split("=", 1) for pair in fault.options.split())
    chosen = {"deadlock_ms": "200"} if fault.base != "cpu" else {}
    return {**chosen, **pairs}


def load(only: str) -> tuple[list[Fault], list[dict]]:
    table = json.loads((HERE / "faults.json").read_text())
    faults = [Fault(**row) for row in table["faults"]]
    keep = [f for f in faults if fnmatch.fnmatch(f.name, only)]
    return keep, table["odd"]


def missing_rows(faults: list[Fault]) -> list[str]:
    """Faults that are planted somewhere and stand in no row, and rows that nothing plants."""
    planted = set()
    for path in HERE.glob("*.cpp"):
        if path.name != "oddities.cpp":
            planted |= set(re.findall(r'^    \{"(\w+)",', path.read_text(), re.M))
    lists = (HERE / "CMakeLists.txt").read_text()
    planted |= set(re.findall(r"^kvspan_add_(?:structural|faulty)\((?!faulty-)([a-z-]+)", lists, re.M))
    rows = [f.name for f in faults]
    twice = {name for name in rows if rows.count(name) > 1}
    return sorted(planted.symmetric_difference(rows) | twice)


def uncited(faults: list[Fault]) -> list[str]:
    """Faults whose killer is no case, or does not cite the rule that the fault breaks."""
    cited: dict[str, set[str]] = {}
    for path in (HERE.parent / "cases").glob("*_test.cpp"):
        for suite, case, rules in CASE.findall(path.read_text()):
            cited[f"{suite}.{case}"] = set(re.findall(r"KV-[A-Z]+-[0-9]+", rules))
    return [f"{f.name}: {f.killer} does not cite {f.rule}"
            for f in faults if f.rule not in cited.get(f.killer, set())]


def kill(bench: Bench, fault: Fault) -> tuple[Fault, Outcome, str]:
    options = {**options_of(fault), "fault": fault.name}
    patience_s = HANG_S if fault.status == "hang" else PATIENCE_S
    outcome = bench.run(fault.base, options, fault.killer, patience_s, fault.effort)
    wrong = ""
    if outcome.status != fault.status:
        wrong = f"{outcome.status} where {fault.status} is due: {outcome.text[:160]}"
    elif outcome.witness < fault.witness:
        wrong = f"{outcome.status}, but the faulty line never ran: {outcome.text[:160]}"
    return fault, outcome, wrong


def pass_none(bench: Bench, base: str, options: dict[str, str], case: str, effort: int = 1,
              planned: bool = False) -> str:
    outcome = bench.run(base, {**options, "fault": "none"}, case, PATIENCE_S, effort, planned)
    good = outcome.status == "pass" and outcome.witness == 0
    return "" if good else f"{outcome.status}: {outcome.text[:300]}"


def matrix(bench: Bench, pool, faults: list[Fault]) -> int:
    killed = 0
    for fault, outcome, wrong in pool.map(lambda f: kill(bench, f), faults):
        killed += not wrong
        print(f"{'killed ' if not wrong else 'SURVIVES'} {fault.name:34} {fault.base:5} "
              f"{fault.rule:12} {fault.killer} {outcome.status} witness {outcome.witness} "
              f"{outcome.seconds:.1f}s {wrong}", flush=True)
    with_base = [f for f in faults if f.base in ("stub", "cpu")]
    without = list({(f.base, f.options, f.killer, f.effort): f for f in with_base}.values())
    green = list(pool.map(
        lambda f: pass_none(bench, f.base, options_of(f), f.killer, f.effort), without))
    for fault, wrong in zip(without, green):
        if wrong:
            print(f"RED      fault=none on {fault.base} {fault.options} {fault.killer}: {wrong}")
    red = sum(bool(wrong) for wrong in green)
    print(f"matrix: {killed} of {len(faults)} faults killed, {len(without) - red} of "
          f"{len(without)} cases green without one")
    return (len(faults) - killed) + red


def run_odd(bench: Bench, pool, odd: list[dict]) -> int:
    work = [(row, case) for row in odd for case in row["cases"]]

    def one(item: tuple[dict, str]) -> str:
        row, case = item
        options = dict(pair.split("=", 1) for pair in row["options"].split())
        return pass_none(bench, row["base"], options, case, planned=True)

    results = list(pool.map(one, work))
    for (row, case), wrong in zip(work, results):
        if wrong:
            print(f"RED      odd {row['name']}: {case}: {wrong}")
    red = sum(bool(wrong) for wrong in results)
    print(f"odd but legal: {len(work) - red} of {len(work)} runs green, {len(odd)} plugins")
    return red


def full(bench: Bench, pool, faults: list[Fault]) -> int:
    """Which areas notice which fault. The fault's own area is that of its killer's suite."""
    rows = [f for f in faults if f.base in ("stub", "cpu")]
    work = [(f, area) for f in rows for area in SMOKE]
    outcomes = pool.map(lambda w: bench.run(
        w[0].base, {**options_of(w[0]), "fault": w[0].name}, SMOKE[w[1]], HANG_S * 4), work)
    seen: dict[str, list[str]] = {f.name: [] for f in rows}
    for (fault, area), outcome in zip(work, outcomes):
        if outcome.status != "pass" and SMOKE[area].split(".")[0] != fault.killer.split(".")[0]:
            seen[fault.name].append(area)
    quiet = [name for name, areas in seen.items() if not areas]
    for name, areas in seen.items():
        print(f"{'plausible' if not areas else 'loud     '} {name:34} {' '.join(areas)}")
    print(f"full: {len(quiet)} of {len(rows)} faults pass every other area, {PLAUSIBLE_MIN} wanted")
    return 0 if len(quiet) >= PLAUSIBLE_MIN else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--worker", required=True)
    parser.add_argument("--faults", required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    faults, odd = load(arguments.only)
    wrong = 0
    if arguments.only == "*":
        for name in missing_rows(faults):
            print(f"ROWS     {name}: planted without a row, in a row without a fault, or twice")
            wrong += 1
        for text in uncited(faults):
            print(f"ROWS     {text}")
            wrong += 1
    bench = Bench(arguments.worker, arguments.faults)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        if arguments.full:
            wrong += full(bench, pool, faults)
        wrong += matrix(bench, pool, faults)
        if arguments.only == "*":
            wrong += run_odd(bench, pool, odd)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
