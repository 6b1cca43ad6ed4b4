#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The parent over scripted workers: every way to end a worker gives one right record a case.

    conformance/tests/runner_test.py SCRIPTED_SUITE ANY_PLUGIN [CASE...]

The plugin's file is read for its identity alone. Scripts: scripted_suite.cpp.
"""
import datetime
import json
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conformance_tool import CRASHED, FAILED, MACHINE, PASSED, USAGE, SuiteCase, main

BRIEF = ("--timeout", "400ms")  # of a scripted case: it sleeps or ends at once


def day(offset: int) -> str:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (today + datetime.timedelta(days=offset)).isoformat()


class Statuses(SuiteCase):
    """One suite of scripts each."""

    def test_everything_good_passes(self) -> None:
        run = self.run_suite("--case", "Good.*", status=PASSED)
        self.assertEqual(set(run.statuses().values()), {"pass"})
        self.assertIn("PASSED: executed 3 of 3 mandatory, 0 skipped", run.out)
        self.assertEqual(run.junit().get("errors"), "0")

    def test_a_failure_has_its_values_everywhere(self) -> None:
        run = self.run_suite("--case", "Bad.Fails", "--seed", 7, status=FAILED)
        failure = run.cases()["Bad.Fails"]["failures"][0]
        self.assertEqual(failure["expected"], "0x2a 0x2b")
        self.assertIn("0x2a 0x00", failure["actual"])
        for word in ("expected: 0x2a 0x2b", "0x2a 0x00", "--case Bad.Fails --seed 7 --in-process"):
            self.assertIn(word, run.out)
        error = run.junit_case("Bad.Fails").find("failure")
        self.assertIn("<offset> & \"length\"", error.get("message"))
        self.assertIn("0x2a 0x2b", error.text)

    def test_each_crash_is_its_own_and_the_rest_runs(self) -> None:
        run = self.run_suite("--case", "Bad.*", *BRIEF, status=CRASHED)
        self.assertEqual({c: s for c, s in run.statuses().items() if c.startswith("Bad")},
                         {"Bad.Fails": "fail", "Bad.Segfaults": "crash", "Bad.Exits": "crash",
                          "Bad.Hangs": "hang", "Bad.Passes": "pass"})
        cases = run.cases()
        self.assertIn("signal 11", cases["Bad.Segfaults"]["reason"])
        self.assertIn("it crashes alone too", cases["Bad.Segfaults"]["alone"])
        self.assertIn("ended with status 0 in the case", cases["Bad.Exits"]["reason"])
        self.assertEqual(run.junit_case("Bad.Hangs").find("error").get("type"), "hang")

    def test_a_case_that_crashes_only_after_its_neighbours(self) -> None:
        run = self.run_suite("--case", "Order.*", status=CRASHED)
        crashed = run.cases()["Order.Suffers"]
        self.assertEqual(crashed["status"], "crash")
        self.assertIn("only after its neighbours", crashed["alone"])
        self.assertIn("--case 'Order.*'", crashed["reproduce"])
        self.assertEqual(run.statuses()["Order.MakesTrouble"], "pass")

    def test_who_prints_fails_and_nobody_else(self) -> None:
        for _ in range(5):  # the texts of fast cases arrive together, in another way each time
            run = self.run_suite("--case", "Loud.*", status=FAILED)
            self.assertEqual(run.statuses()["Loud.Prints"], "fail")
            self.assertEqual(run.statuses()["Loud.Passes"], "pass")
            self.assertEqual(run.statuses()["Loud.PassesToo"], "pass")
            failure = run.cases()["Loud.Prints"]["failures"][0]
            self.assertEqual(failure["actual"], "hello from the plugin\n")
            self.assertEqual(failure["rule"], "KV-HOST-1")

    def test_a_damaged_stream_is_the_worker_s_error(self) -> None:
        run = self.run_suite("--case", "Stream.*", status=CRASHED)
        cases = run.cases()
        self.assertEqual(cases["Stream.Garbage"]["status"], "crash")
        self.assertIn("no record", cases["Stream.Garbage"]["reason"])
        self.assertEqual(cases["Stream.HalfLine"]["status"], "crash")
        self.assertIn("within a record", cases["Stream.HalfLine"]["reason"])

    def test_a_child_that_keeps_the_pipes_delays_nothing(self) -> None:
        begin = time.monotonic()
        run = self.run_suite("--case", "Stream.LeavesAChild", status=FAILED)
        self.assertLess(time.monotonic() - begin, 15, "the child lives 20 s")
        self.assertIn("outlived", run.cases()["Stream.LeavesAChild"]["failures"][0]["message"])

    def test_inconclusive_is_neither_passed_nor_executed(self) -> None:
        run = self.run_suite("--case", "Odd.Inconclusive", "--case", "Good.Passes", status=PASSED)
        self.assertEqual(run.statuses()["Odd.Inconclusive"], "inconclusive")
        self.assertIn("executed 1 of 2 mandatory, 0 skipped, 1 inconclusive", run.out)
        self.run_suite("--case", "Odd.Inconclusive", status=USAGE)

    def test_a_case_that_skips_itself_is_the_suite_s_mistake(self) -> None:
        run = self.run_suite("--case", "Odd.SkipsItself", status=MACHINE)
        self.assertEqual(run.statuses()["Odd.SkipsItself"], "suite_error")

    def test_a_worker_that_runs_nothing_is_a_crash(self) -> None:
        run = self.run_suite("--case", "Good.P*", "--option", "silent=1", status=CRASHED)
        self.assertEqual(run.statuses()["Good.Passes"], "crash")
        self.assertEqual(run.statuses()["Good.PassesToo"], "crash")

    def test_all_at_once_on_three_workers(self) -> None:
        run = self.run_suite("--jobs", 3, *BRIEF, status=MACHINE)  # one skips itself
        self.assertEqual(run.verdict()["counts"]["pass"], 10)
        self.assertEqual(run.verdict()["counts"]["crash"], 5)
        self.assertEqual(run.verdict()["counts"]["hang"], 1)

    def test_a_case_that_runs_alone_meets_nobody(self) -> None:
        meeting = self.folder / "meeting"
        meeting.mkdir()
        chosen = ("--case", "Good.*", "--case", "Shared.*", "--case", "Loud.Passes*")
        for budget in ((), ("--budget", "1m")):  # which changes the order
            with self.subTest(budget=budget):
                run = self.run_suite("--jobs", 3, *chosen, *budget, "--option", f"meeting={meeting}",
                                     "--option", "naps=1", status=PASSED)
                self.assertEqual(run.statuses()["Shared.MeetsNobody"], "pass")
                self.assertEqual(run.verdict()["counts"]["pass"], 7)


class Probes(SuiteCase):
    """A plugin that cannot even be probed gets a report, not a lost run."""

    def probed(self, how: str, status: int, *arguments: object):
        return self.run_suite("--option", f"probe={how}", "--case", "Good.*", *arguments,
                              status=status)

    def test_death_in_the_probe(self) -> None:
        for how, words in (("segfault", "signal 11"), ("exit", "without an answer"),
                           ("garbage", "no record"), ("hang", "ran past its time")):
            with self.subTest(how=how):
                run = self.probed(how, CRASHED, *BRIEF)
                probe = run.cases()["Probe.LoadsOpensAndAnswers"]
                self.assertEqual(probe["status"], "hang" if how == "hang" else "crash")
                self.assertIn(words, probe["reason"])
                self.assertEqual(run.statuses()["Good.Passes"], "not_run")
                self.assertIn("executed 0 of 3 mandatory", run.out)

    def test_an_orderly_refusal_fails_the_probe(self) -> None:
        run = self.probed("refuse", FAILED)
        self.assertEqual(run.statuses()["Probe.LoadsOpensAndAnswers"], "fail")
        self.assertIn("the moon is in the wrong house", run.out)
        self.assertEqual(run.statuses()["Good.Attends"], "not_run", "nothing is proven: no skip")

    def test_printing_in_the_probe_fails(self) -> None:
        run = self.probed("print", FAILED)
        self.assertIn("a greeting", run.out)
        self.assertEqual(run.statuses()["Good.Passes"], "pass")

    def test_a_skip_has_its_proof(self) -> None:
        run = self.probed("no_attention", PASSED)
        self.assertEqual(run.statuses()["Good.Attends"], "skip")
        self.assertIn("skipped 1: the plugin offers no attention table", run.out)
        self.assertIn("executed 2 of 2 mandatory, 1 skipped", run.out)
        skipped = run.junit_case("Good.Attends").find("skipped")
        self.assertIn("no attention table", skipped.get("message"))

    def test_all_skipped_is_no_pass(self) -> None:
        run = self.run_suite("--option", "probe=no_attention", "--profile", "attention")
        self.assertEqual(run.status, USAGE)
        self.assertIn("NOTHING PROVEN", run.out)
        run = self.run_suite("--option", "probe=no_attention", "--profile", "attention",
                             "--profile", "copy", "--case", "Good.*")
        self.assertEqual(run.status, USAGE)
        self.assertIn("--profile attention: nothing of it was executed", run.out)

    def test_a_machine_that_no_longer_answers_blocks_the_rest(self) -> None:
        run = self.run_suite("--option", "probe=once", "--option",
                             f"state={self.folder / 'state'}", "--case", "Bad.[HP]*",
                             "--case", "Loud.Passes", *BRIEF, status=MACHINE)
        self.assertEqual(run.statuses()["Bad.Hangs"], "hang")
        self.assertEqual(run.statuses()["Bad.Passes"], "blocked")
        self.assertEqual(run.statuses()["Loud.Passes"], "blocked")
        self.assertIn("after Bad.Hangs hung the plugin no longer opens", run.out)


class Selection(SuiteCase):
    """What is asked for is what runs; what matches nothing is no success."""

    def chosen(self, *arguments: object) -> set[str]:
        done = subprocess.run([str(w) for w in (self.tool, "--list", *arguments)],
                              capture_output=True, check=True, text=True)
        return {line.split()[0] for line in done.stdout.splitlines()}

    def test_filters(self) -> None:
        self.assertEqual(self.chosen("--rule", "KV-COPY-[12]"),
                         {"Good.Passes", "Good.PassesToo", "Bad.Fails"})
        self.assertEqual(self.chosen("--profile", "attention"), {"Good.Attends"})
        self.assertEqual(self.chosen("--case", "Good.*", "--rule", "KV-ATTN-*"), {"Good.Attends"})
        self.assertEqual(self.chosen("--tuple", "k=q8_0,v=q4_0"), {"Good.Attends"})

    def test_shards_are_a_partition(self) -> None:
        shards = [self.chosen("--shard", f"{i}/4") for i in range(1, 5)]
        self.assertEqual(set().union(*shards), self.chosen())
        self.assertEqual(sum(map(len, shards)), len(self.chosen()))

    def test_nothing_selected(self) -> None:
        plugin = self.plugin
        self.refused(["--case Godo.*", "none of the 21 cases"], plugin, "--case", "Godo.*")
        self.refused(["--case Godo.*"], plugin, "--case", "Good.*", "--case", "Godo.*")
        self.refused(["--rule KV-COPPY-1"], plugin, "--rule", "KV-COPPY-1")
        self.refused(["--profile stream", "no case"], plugin, "--profile", "stream")
        self.refused(["select none"], plugin, "--profile", "attention", "--rule", "KV-COPY-1")
        self.refused(["--shard 3/3 is empty"], plugin, "--case", "Bad.Fails", "--shard", "3/3")
        self.refused(["--device 4", "1 devices"], plugin, "--device", "4")
        self.refused(["--tuple k=f16", "no attention"], plugin, "--tuple", "k=f16")

    def test_wrong_options(self) -> None:
        plugin = self.plugin
        for words, arguments in (
                (["no plugin is named"], ()),
                (["--profile", "attn", "core, copy"], (plugin, "--profile", "attn")),
                (["--shard 5/4", "i/n"], (plugin, "--shard", "5/4")),
                (["--shard x", "i/n"], (plugin, "--shard", "x")),
                (["--budget 60", "60s"], (plugin, "--budget", "60")),
                (["--budget -1s"], (plugin, "--budget=-1s")),
                (["--tuple k=q8_0,k=q4_0"], (plugin, "--tuple", "k=q8_0,k=q4_0")),
                (["--tuple hd=x"], (plugin, "--tuple", "hd=x")),
                (["--option nothing", "key=value"], (plugin, "--option", "nothing")),
                (["--jobs 0"], (plugin, "--jobs", "0")),
                (["nobody knows this option"], (plugin, "--option", "unknown=1")),
                (["--wrong", "--help"], (plugin, "--wrong"))):
            with self.subTest(arguments=arguments):
                self.refused(words, *arguments)

    def test_no_plugin(self) -> None:
        text = self.folder / "kvspan-text.so"
        text.write_text("no plugin")
        self.refused(["kvspan-text.so is not an ELF file", "give"], text)
        self.refused(["kvspan-none.so cannot be opened"], self.folder / "kvspan-none.so")
        self.refused(["is not a shared object"], "/usr/bin/python3")
        self.refused(["has no kvspan note"], "/lib/x86_64-linux-gnu/libm.so.6")

    def test_a_budget_begins_no_case_after_its_end(self) -> None:
        run = self.run_suite("--budget", "100ms", "--timeout", "300ms", "--case", "Bad.Hangs",
                             "--case", "Bad.Passes", "--case", "Good.Passes")
        statuses = run.statuses()
        self.assertEqual(statuses["Bad.Hangs"], "not_run" if statuses["Bad.Passes"] == "pass" else "hang")
        self.assertIn("not_run", statuses.values())
        self.assertIn("the budget of 100 ms was spent", run.out)

    def budgeted(self, status: int, *cases: str):
        chosen = [word for case in cases for word in ("--case", case)]
        return self.run_suite("--budget", "100ms", "--option", "naps=1", *chosen, status=status)

    def test_a_budget_must_reach_every_profile(self) -> None:
        run = self.budgeted(USAGE, "Good.*")
        self.assertIn("NOTHING PROVEN: the budget of 100 ms ended before any case of the profile "
                      "attention; give more", run.out)

    def test_a_budget_that_leaves_areas_out_says_so(self) -> None:
        run = self.budgeted(PASSED, "Good.Passes*")
        self.assertEqual(run.statuses()["Good.PassesToo"], "not_run")
        self.assertIn("BUDGET ENDED: executed 1 of 2 mandatory", run.out)
        run = self.budgeted(PASSED, "Loud.Passes*")  # one area, and a case of it ran
        self.assertIn("PASSED SO FAR: executed 1 of 2 mandatory", run.out)

    def test_repeat_until_fail_stops_at_the_seed(self) -> None:
        run = self.run_suite("--repeat-until-fail", 9, "--seed", 1, "--case", "Seed.*", status=FAILED)
        self.assertEqual(run.lines()[0]["seed"], 3)
        self.assertIn("--seed 3 --in-process", run.cases()["Seed.FailsFromThree"]["reproduce"])


class Waivers(SuiteCase):
    """A known failure is written down with an owner and an end, or it is a failure."""

    def file(self, *waivers: dict) -> pathlib.Path:
        path = self.folder / "waivers.json"
        path.write_text(json.dumps(waivers))
        return path

    def waiver(self, **changes: object) -> dict:
        waiver = {"case": "Bad.Fails", "rule": "KV-COPY-1", "reason": "driver bug 12",
                  "owner": "the author", "expires": day(200)}
        waiver.update(changes)
        return {key: value for key, value in waiver.items() if value is not None}

    def test_a_waived_failure_is_no_failure(self) -> None:
        run = self.run_suite("--case", "Bad.Fails", "--waivers", self.file(self.waiver()), status=PASSED)
        self.assertEqual(run.statuses()["Bad.Fails"], "waived")
        self.assertIn("by the author: driver bug 12", run.cases()["Bad.Fails"]["reason"])
        self.assertIn("1 waived", run.out)

    def test_a_waived_case_that_passes_is_told(self) -> None:
        waivers = self.file(self.waiver(case="Good.Passes"))
        run = self.run_suite("--case", "Good.Passes", "--waivers", waivers, status=FAILED)
        self.assertEqual(run.statuses()["Good.Passes"], "unexpected_pass")

    def test_a_waiver_covers_its_status_only(self) -> None:
        waivers = self.file(self.waiver(case="Bad.Segfaults", rule=None))
        self.run_suite("--case", "Bad.Segfaults", "--waivers", waivers, status=CRASHED)
        waivers = self.file(self.waiver(case="Bad.Segfaults", rule=None, status="crash", expires=day(29)))
        self.run_suite("--case", "Bad.Segfaults", "--waivers", waivers, status=PASSED)

    def test_careless_waivers_are_refused_by_name(self) -> None:
        for words, changes in (
                (["waiver 2 (Bad.Fails)", "no \"owner\""], {"owner": None}),
                (["waiver 2 (Bad.Fails)", "no \"reason\""], {"reason": ""}),
                (["waiver 2 (Bad.Fails)", "no \"expires\""], {"expires": None}),
                (["waiver 2 (Bad.Fails)", "expired on"], {"expires": day(-1)}),
                (["waiver 2 (Bad.Fails)", "no day"], {"expires": "2030-02-31"}),
                (["waiver 2 (Bad.Fails)", "at most 30 days"], {"status": "hang", "expires": day(31)}),
                (["waiver 2 (Bad.Fails)", "unknown key \"until\""], {"until": "tomorrow"}),
                (["waiver 2 (Bad.Fails)", "only fail, crash and hang"], {"status": "skip"}),
                (["waiver 2 (Bed.Fails)", "covers no case"], {"case": "Bed.Fails"})):
            with self.subTest(changes=changes):
                waivers = self.file(self.waiver(), self.waiver(**changes))
                self.refused(words, self.plugin, "--waivers", waivers)
        path = self.folder / "waivers.json"
        path.write_text("{")
        self.refused(["waivers.json", "no JSON list"], self.plugin, "--waivers", path)


class Reports(SuiteCase):
    """A run that is lost is red, and a report that cannot be written is no success."""

    def test_a_lost_run_is_red(self) -> None:
        out = self.folder / "out"
        child = subprocess.Popen([str(w) for w in (self.tool, self.plugin, "--out", out, "--case",
                                                   "Good.Passes", "--case", "Bad.Hangs")],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while "Good.Passes" not in (out / "results.jsonl").read_text() if (
                    out / "results.jsonl").exists() else True:
                self.assertIsNone(child.poll(), "it ended by itself")
                time.sleep(0.01)
        finally:
            child.kill()
            child.wait()
        junit = (out / "junit.xml").read_text()
        self.assertIn("errors=\"3\"", junit)
        self.assertIn("the run was lost", junit)
        self.assertFalse((out / "report.html").exists())

    def test_a_report_that_cannot_be_written(self) -> None:
        taken = self.folder / "file"
        taken.write_text("")
        done = subprocess.run([self.tool, self.plugin, "--out", taken, "--case", "Good.*"],
                              capture_output=True, check=False, text=True)
        self.assertEqual(done.returncode, MACHINE)
        self.assertRegex(done.stderr, r"^error: --out \S+ cannot be made")

    def test_the_page_escapes_what_a_plugin_says(self) -> None:
        run = self.run_suite("--case", "Bad.Fails", status=FAILED)
        page = (run.folder / "report.html").read_text()
        self.assertNotIn("<script>document", page)
        self.assertIn("&lt;script&gt;document", page)
        self.assertIn("scripted &lt;one&gt;", page)
        self.assertNotIn("http://", page)
        self.assertNotIn("https://", page)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
