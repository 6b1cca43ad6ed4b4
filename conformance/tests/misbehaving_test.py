#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvspan-conformance against real plugins that do their worst: a right report, not a lost run.

    conformance/tests/misbehaving_test.py KVSPAN_CONFORMANCE STUB FOLDER_OF_MISBEHAVING [CASE...]

The plugins: plugins/misbehaving.c, the stub with a bad `fill` slot, or one that hangs at load.
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conformance_tool import CRASHED, FAILED, PASSED, Run, SuiteCase, main

COPY = ("--case", "CopyTest.*", "--effort", 10)
FOLDER = pathlib.Path(sys.argv[3])
PROBE = "Probe.LoadsOpensAndAnswers"


class Misbehaving(SuiteCase):
    """Each run also has all its reports (SuiteCase.whole)."""

    def copied(self, name: str, status: int, *arguments: object) -> Run:
        plugin = FOLDER / f"kvspan-{name}.so"
        return self.run_suite(*COPY, *arguments, plugin=plugin, status=status)

    def of_status(self, run: Run, status: str) -> list[str]:
        return sorted(case for case, found in run.statuses().items() if found == status)

    def test_the_same_cases_pass_on_the_stub(self) -> None:
        run = self.run_suite(*COPY, status=PASSED)
        self.assertEqual(self.of_status(run, "fail"), [])
        self.assertGreater(len(self.of_status(run, "pass")), 5)

    def test_a_segfault_in_a_slot(self) -> None:
        run = self.copied("segfault", CRASHED)
        crashed = self.of_status(run, "crash")
        self.assertTrue(crashed, run.told())
        self.assertTrue(self.of_status(run, "pass"), "cases that never fill still pass")
        self.assertEqual(run.statuses()[PROBE], "pass")
        for case in crashed:
            self.assertIn("signal 11 (Segmentation fault) in the case", run.cases()[case]["reason"])
            self.assertIn("alone", run.cases()[case]["alone"])
            self.assertEqual(run.junit_case(case).find("error").get("type"), "crash")

    def test_an_exit_in_a_slot(self) -> None:
        run = self.copied("exit", CRASHED)
        crashed = self.of_status(run, "crash")
        self.assertTrue(crashed, run.told())
        for case in crashed:
            self.assertIn("ended with status 0 in the case", run.cases()[case]["reason"])

    def test_a_hang_in_a_slot(self) -> None:
        case = self.of_status(self.copied("segfault", CRASHED), "crash")[0]
        run = self.copied("hang", CRASHED, "--timeout", "5s", "--case", case)
        self.assertIn(case, self.of_status(run, "hang"))

    def test_a_hang_while_it_is_loaded(self) -> None:
        run = self.copied("hang_at_load", CRASHED, "--timeout", "2s")
        self.assertEqual(run.statuses()[PROBE], "hang")
        rest = {status for case, status in run.statuses().items() if case != PROBE}
        self.assertEqual(rest, {"not_run"})
        self.assertIn("ran past its time", run.out)

    def test_printing_in_a_slot(self) -> None:
        run = self.copied("print", FAILED)
        failed = self.of_status(run, "fail")
        self.assertTrue(failed, run.told())
        self.assertTrue(self.of_status(run, "pass"), "only those that fill print")
        for case in failed:
            failure = run.cases()[case]["failures"][-1]
            self.assertEqual(failure["rule"], "KV-HOST-1")
            self.assertIn("filling with <pattern>", failure["actual"])

    def test_garbage_out_of_a_slot(self) -> None:
        run = self.copied("garbage", FAILED)
        self.assertTrue(self.of_status(run, "fail"), run.told())
        self.assertEqual(self.of_status(run, "crash"), [])
        for case in self.of_status(run, "fail"):
            self.assertTrue(run.cases()[case]["failures"], case)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
