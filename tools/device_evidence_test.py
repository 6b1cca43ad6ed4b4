#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""device_evidence.py makes what it accepts, and refuses whatever proves less."""
import copy
import json
import pathlib
import tempfile
import unittest

import device_evidence

LINES = [
    {"record": "header", "suite_version": "0.1.0", "probe": {"retained": ["thread driver"]},
     "plugin": {"name": "x", "version": "1", "build_id": "ab", "header_hash": "cd", "file": "/tmp/x"}},
    {"record": "case", "case": "A.One", "status": "pass", "reason": ""},
    {"record": "case", "case": "A.Two", "status": "skip", "reason": "the device has no such thing"},
    {"record": "verdict", "sentence": "PASSED", "executed": 1, "mandatory": 1},
]


def evidence():
    lines = [json.dumps(line) for line in LINES]
    return device_evidence.made(lines, "0123abc", "a card", "1.2")


class DeviceEvidence(unittest.TestCase):
    def test_a_green_run_has_no_faults(self):
        self.assertEqual(device_evidence.faults(evidence()), [])

    def test_no_path_of_the_machine_is_kept(self):
        self.assertNotIn("/tmp", json.dumps(evidence()))

    def test_everything_less_is_refused(self):
        changes = {
            "schema": lambda e: e.update(schema=2),
            "commit": lambda e: e.update(commit="0123abc-dirty"),
            "device": lambda e: e.update(device=""),
            "driver": lambda e: e.pop("driver"),
            "mandatory": lambda e: e.update(mandatory=2),
            "executed": lambda e: e.update(executed=0, mandatory=0),
            "green": lambda e: e["cases"].update({"A.One": "fail"}),
            "lists": lambda e: e["cases"].pop("A.One"),
            "reason": lambda e: e["skipped"].clear(),
        }
        for word, change in changes.items():
            spoilt = copy.deepcopy(evidence())
            change(spoilt)
            with self.subTest(word):
                self.assertTrue(device_evidence.faults(spoilt))

    def test_cases_behind_the_evidence_are_listed_or_refused(self):
        have = {"A.One", "A.Two"}
        for suite, listed, faults in (
            (have, set(), 0),
            (have | {"A.New"}, set(), 1),
            (have | {"A.New"}, {"A.New"}, 0),
            (have, {"A.New"}, 1),  # not in the suite
            (have, {"A.One"}, 1),  # run meanwhile
            ({"A.One"}, set(), 0),  # one is gone: told, no fault
        ):
            with self.subTest(suite=sorted(suite), listed=sorted(listed)):
                wrong = device_evidence.behind_faults(evidence(), suite, listed)
                self.assertEqual(len(wrong), faults, wrong)

    def test_an_older_evidence_says_so_by_name(self):
        self.assertEqual(len(device_evidence.state(evidence(), {"A.One", "A.Two"})), 1)
        told = " ".join(device_evidence.state(evidence(), {"A.One", "A.New"}))
        self.assertIn("OLDER than the suite: 1 of today's 2 cases were never run there: A.New", told)
        self.assertIn("1 of its cases are not in today's suite: A.Two", told)

    def test_cases_are_read_from_their_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a_test.cpp").write_text(
                'KVSPAN_CASE(A, One, "KV-1") {}\nKVSPAN_CASE(\n    A, Two, "KV-1") {}\n'
                'KVSPAN_CASE(B,\n            Three,\n            "KV-1") {}\n// KVSPAN_CASE(C, D,\n')
            self.assertEqual(device_evidence.suite_cases(folder), {"A.One", "A.Two", "B.Three"})

    def test_a_list_has_comments(self):
        self.assertEqual(device_evidence.listed_cases("# why\nA.One # new\n\n"), {"A.One"})


if __name__ == "__main__":
    unittest.main()
