# SPDX-License-Identifier: Apache-2.0
"""`kvspan sim`: the same seeds say the same, whatever the number of jobs. Run by cli_test.py.

That seeds find planted bugs is sim.plants' and sim.mutant's business: the shipped tool has none.
"""
import json

from kvspan_tool import WRONG_INPUT, ToolCase


class Sim(ToolCase):
    def test_seeds_say_the_same_with_any_number_of_jobs(self) -> None:
        one = self.json_of("sim", "--seeds", 40, "--first", 7, "--jobs", 1)
        two = self.json_of("sim", "--seeds", 40, "--first", 7, "--jobs", 2)
        self.assertEqual(one, two)
        self.assertEqual((one["first"], one["seeds"], one["failed"]), (7, 40, 0))
        self.assertEqual(one["failures"], [])
        for what in ("steps", "submits", "checked_rows", "streamed_pages", "failed_calls"):
            self.assertGreater(one["done"][what], 40, what)

    def test_the_text_names_seeds_and_what_was_done(self) -> None:
        target = self.folder / "out.json"
        said = self.accepted("sim", "--seeds", 3, "--show", "--shrink", "--json", target)
        self.assertIn("seed 1, tags\n", said.out)
        self.assertIn("0. add_sequence", said.out)
        self.assertIn("3 seeds from 1: 0 failed; ", said.out)
        self.assertEqual(json.loads(target.read_text())["seeds"], 3)

    def test_wrong_values_are_refused(self) -> None:
        for words, more in ((["--seeds"], ("--seeds", 0)),
                            (["--jobs"], ("--jobs", 2000)),
                            (["--plant"], ("--plant", "stale_slot"))):
            with self.subTest(more=more):
                self.refused(WRONG_INPUT, words, "sim", *more)
