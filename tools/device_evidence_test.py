#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""device_evidence.py makes what it accepts, and refuses whatever proves less."""
import copy
import json
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


if __name__ == "__main__":
    unittest.main()
