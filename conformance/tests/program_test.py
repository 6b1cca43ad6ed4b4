#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The built program kvspan-conformance: what it links, exports and lists, and its line for debuggers.

    conformance/tests/program_test.py KVSPAN_CONFORMANCE STUB FOLDER_OF_MISBEHAVING [CASE...]
"""
import pathlib
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conformance_tool import FAILED, PASSED, USAGE, SuiteCase, main

FOLDER = pathlib.Path(sys.argv[3])
# What every Debian has: the C library's own files.
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def output(*command: object) -> str:
    return subprocess.run([str(w) for w in command], capture_output=True, text=True, check=True).stdout


class Program(SuiteCase):
    """One file that runs on a machine without our libraries."""

    def test_it_needs_the_c_library_alone(self) -> None:
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-dW", self.tool)))
        self.assertEqual(needed - GLIBC, set())

    def test_it_exports_nothing_to_a_plugin(self) -> None:
        symbols = output("nm", "-D", "--defined-only", self.tool).splitlines()
        # Variables of the C library that the program has copies of are not its own.
        own = [line for line in symbols if "@GLIBC" not in line]
        self.assertEqual(own, [])

    def test_no_path_of_the_machine_that_built_it_is_in_a_file(self) -> None:
        root = str(pathlib.Path(__file__).resolve().parents[2]).encode()
        for file in (self.tool, self.plugin):
            self.assertNotIn(root + b"/", file.read_bytes(), file)

    def test_the_list_needs_no_plugin(self) -> None:
        lines = output(self.tool, "--list").splitlines()
        self.assertGreater(len(lines), 80)
        for line in lines:
            self.assertRegex(line, r"^\w+\.\w+ +(core|copy|attention|stream) +KV-[A-Z]+-\d+")

    def again(self, line: str) -> subprocess.CompletedProcess:
        words = shlex.split(line)
        self.assertEqual(words[0], "kvspan-conformance")
        return subprocess.run([str(self.tool), *words[1:]], capture_output=True, text=True,
                              errors="replace", check=False)

    def test_a_case_whose_memory_is_refused_fails_and_crashes_nothing(self) -> None:
        # Another program, or another worker, may hold the device's memory for a moment.
        case = "AttentionInvariance.PlacementMovesNoBit"
        run = self.run_suite("--case", case, "--option", "device_bytes=4194304", status=FAILED)
        self.assertEqual(run.statuses()[case], "fail")
        self.assertIn("raise the option device_bytes", str(run.cases()[case]["failures"]))

    def test_a_soak_multiplies_and_the_notes_say_how_much(self) -> None:
        case = "LitmusTest.WhoPollsSeesTheBytesToo"
        run = self.run_suite("--case", case, "--effort", 2, "--soak", 3, status=PASSED)
        self.assertIn("1200 messages seen", run.cases()[case]["notes"][0])
        self.assertIn("1200 messages seen", (run.folder / "report.html").read_text())
        self.refused(["--soak 0", "10000"], self.plugin, "--soak", 0)

    def test_a_reproduce_line_reproduces(self) -> None:
        run = self.run_suite("--case", "CopyTest.*", "--effort", 10,
                             plugin=FOLDER / "kvspan-garbage.so", status=FAILED)
        failed = next(line for line in run.cases().values() if line["status"] == "fail")
        done = self.again(failed["reproduce"])
        self.assertEqual(done.returncode, FAILED, done.stdout + done.stderr)
        self.assertIn(failed["case"], done.stdout)
        good = next(case for case, status in run.statuses().items() if status == "pass" and "Copy" in case)
        done = self.again(failed["reproduce"].replace(failed["case"], good))
        self.assertEqual(done.returncode, PASSED, done.stdout + done.stderr)

    def test_a_crash_in_this_process_reaches_the_debugger(self) -> None:
        run = self.run_suite("--case", "CopyTest.*", "--effort", 10, plugin=FOLDER / "kvspan-segfault.so")
        crashed = next(line for line in run.cases().values() if line["status"] == "crash")
        self.assertEqual(self.again(crashed["reproduce"]).returncode, -11)

    def test_tuples_choose_the_types(self) -> None:
        for wanted in ("k=q8_0,v=q4_0,hd=128", "hd=80", "v=q5_1"):
            with self.subTest(tuple=wanted):
                run = self.run_suite("--tuple", wanted, "--effort", 5, status=PASSED)
                self.assertGreater(run.verdict()["counts"]["pass"], 20)
                self.assertNotIn("Probe", run.out)
        numerics = ("--case", "AttentionNumerics.EveryPair*", "--case", "StreamTest.EveryArena*")
        run = self.run_suite("--tuple", "k=q8_0,v=q4_0", "--mutate", "swap_strides", *numerics,
                             status=FAILED)
        failure = run.cases()["AttentionNumerics.EveryPairOfTypesIsWithinTheErrorClass"]["failures"]
        self.assertEqual(len(failure), 1, "one pair was looked at")
        self.assertIn("--tuple k=q8_0,v=q4_0", run.out)

    def test_tuples_that_there_are_not(self) -> None:
        self.refused(["--tuple k=q8_0,hd=80 selects nothing", "head sizes"], self.plugin,
                     "--tuple", "k=q8_0,hd=80")
        self.refused(["--tuple k=q9_0", "q8_0, q5_1"], self.plugin, "--tuple", "k=q9_0")

    def test_an_unknown_mutation_is_named(self) -> None:
        self.refused(["--mutate upside_down"], self.plugin, "--mutate", "upside_down")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
