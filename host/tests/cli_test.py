#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The command line as a child process: ctest's host.cli. What each file tests is in its head.

One file or case by hand, with the three variables of kvspan_tool.py set:
    host/tests/cli_test.py cli_run_test.Interruption
"""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    import kvspan_tool

    kvspan_tool.main(*(sys.argv[1:] or ["cli_bench_test", "cli_input_test", "cli_plan_test",
                                        "cli_plugin_test", "cli_run_test", "cli_sim_test"]))
