#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvspan-conformance against real plugins that do their worst: a right report, not a lost run.

    conformance/tests/misbehaving_test.py KVSPAN_CONFORMANCE STUB FOLDER_OF_MISBEHAVING [CASE...]

The plugins: plugins/misbehaving.c, the stub with a bad `fill` slot, or one that hangs at load.
"""
import html
import json
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conformance_tool import CRASHED, FAILED, PASSED, WARNINGS, Run, SuiteCase, main

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
        hung = next(line for line in run.cases().values() if line["status"] == "hang")
        self.assertRegex("\n".join(hung["stacks"]), r"thread \d+ \S+: S")
        self.assertTrue(any(line.startswith("  fill+0x") and "kvspan-hang.so" in line
                            for line in hung["stacks"]), hung["stacks"])
        frame = next(line for line in hung["stacks"] if line.startswith("  fill+0x"))
        self.assertIn(frame, run.out)
        self.assertIn(html.escape(frame), (run.folder / "report.html").read_text())
        self.assertIn(frame.strip(), run.junit_case(hung["case"]).find("error").text)

    def test_a_hang_that_takes_no_signal_is_ended_too(self) -> None:
        case = self.of_status(self.copied("segfault", CRASHED), "crash")[0]
        begin = time.monotonic()
        run = self.run_suite("--case", case, "--effort", 10, "--timeout", "2s",
                             plugin=FOLDER / "kvspan-hang_deaf.so", status=CRASHED)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(self.of_status(run, "hang"), [case])
        stacks = "\n".join(run.cases()[case]["stacks"])
        self.assertIn("blocks the signal; in system call", stacks)

    def test_a_hang_while_it_is_loaded(self) -> None:
        run = self.copied("hang_at_load", CRASHED, "--timeout", "2s")
        self.assertEqual(run.statuses()[PROBE], "hang")
        self.assertTrue(any("hang+0x" in line and "hang_at_load.so" in line
                            for line in run.cases()[PROBE]["stacks"]), run.cases()[PROBE])
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


THREAD = {"kind": "thread", "pattern": "vendor-ev*", "most": 1, "reason": "the driver's events"}
DESCRIPTOR = {"kind": "descriptor", "pattern": "anon_inode:?eventfd?", "most": 1,
              "reason": "what wakes it"}


class Runtimes(SuiteCase):
    """What the runtime under a plugin keeps for the life of the process: told, bounded, judged."""

    def run_with(self, name: str, entries: list[dict], status: int, *arguments: object) -> Run:
        plugin = FOLDER / f"kvspan-{name}.so"
        declared = []
        if entries:
            file = self.folder / "retained.json"
            file.write_text(json.dumps(entries))
            declared = ["--retained", file]
        cases = () if "--case" in arguments else ("--case", "CopyTest.*")
        return self.run_suite(*cases, "--effort", 10, *declared, *arguments, plugin=plugin,
                              status=status)

    def left(self, run: Run) -> str:
        return "\n".join(failure["message"] for line in run.cases().values()
                         for failure in line["failures"])

    def test_undeclared_it_is_a_failure_as_ever(self) -> None:
        run = self.run_with("runtime", [], FAILED)
        failed = [case for case, status in run.statuses().items() if status == "fail"]
        self.assertEqual(len(failed), 1, "the first close of the worker")
        self.assertRegex(self.left(run), r"KV-MANNERS-3: thread \d+ \(vendor-events\)")
        self.assertRegex(self.left(run), r"KV-MANNERS-3: descriptor \d+ \(anon_inode")
        self.assertIn("not declared (--retained): KV-MANNERS-3: thread", run.out)

    def test_declared_it_passes_and_every_report_tells(self) -> None:
        run = self.run_with("runtime", [THREAD, DESCRIPTOR], PASSED)
        told = ("warning: retained by the plugin's runtime: 1 thread (vendor-events), at most 1 "
                "declared: the driver's events")
        self.assertIn(told, run.out)
        self.assertIn(html.escape(told).replace("&#x27;", "&#39;"),
                      (run.folder / "report.html").read_text())
        self.assertEqual([one["names"] for one in run.lines()[0]["probe"]["retained"]],
                         [["vendor-events"], ["anon_inode:[eventfd]"]])
        notes = [note for line in run.cases().values() for note in line["notes"]]
        self.assertEqual(len(notes), 1, "the worker's first case")
        self.assertIn("1 of at most 1 of the kind thread", notes[0])
        self.run_with("runtime", [THREAD, DESCRIPTOR], WARNINGS, "--strict")

    def test_half_a_declaration_covers_half(self) -> None:
        run = self.run_with("runtime", [THREAD], FAILED)
        self.assertNotIn("vendor-events", self.left(run))
        self.assertIn("no entry of --retained covers it", self.left(run))
        other = dict(THREAD, pattern="other-events")
        self.assertIn("vendor-events", self.left(self.run_with("runtime", [other, DESCRIPTOR], FAILED)))

    def test_more_with_every_open_is_a_leak_whatever_is_declared(self) -> None:
        wide = [dict(THREAD, most=256), DESCRIPTOR]
        one = ("--case", "CopyTest.FillWrites*")  # each waits two seconds for threads to end
        run = self.run_with("thread_an_open", [THREAD, DESCRIPTOR], FAILED, *one)
        self.assertIn("no entry of --retained covers it", self.left(run))
        run = self.run_with("thread_an_open", wide, FAILED, *one, "--case", "CopyTest.Wrong*")
        self.assertEqual({status for case, status in run.statuses().items() if case != PROBE},
                         {"fail"}, "every case, not the first alone")
        run = self.run_with("thread_an_open", wide, FAILED, "--case", "UnloadTest.AHundred*")
        self.assertRegex(self.left(run), r"thread \d+ \(vendor-events\)")

    def test_unloading_is_judged_with_what_is_declared(self) -> None:
        unload = ("--case", "UnloadTest.*")
        self.run_with("runtime", [], FAILED, *unload)
        run = self.run_with("runtime", [THREAD, DESCRIPTOR], PASSED, *unload)
        self.assertEqual(run.statuses()["UnloadTest.NothingIsLeftBehind"], "pass")
        self.assertEqual(run.statuses()["UnloadTest.AHundredRoundsHoldNoMoreMemoryThanTen"], "pass")

    def test_careless_declarations_are_refused(self) -> None:
        plugin = FOLDER / "kvspan-runtime.so"
        file = self.folder / "careless.json"
        for entries, word in (([], "no JSON list with entries"), ([3], "no object"),
                              ([dict(THREAD, reason="")], "reason"),
                              ([dict(THREAD, pattern="*")], "three letters"),
                              ([dict(THREAD, kind="mood")], "mood"), ([dict(THREAD, most=0)], "most"),
                              ([dict(THREAD, most=257)], "most"), ([dict(THREAD, owner="me")], "owner")):
            file.write_text(json.dumps(entries))
            self.refused(["--retained", word], plugin, "--retained", file)
        self.refused(["--retained", "cannot be read"], plugin, "--retained", self.folder / "none")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
