#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The test of the cases: each mutation (calls.hpp) must turn the case that guards against it red.

A case that stays green while the plugin is called wrongly proves nothing. The same cases without a
mutation must be green.
Usage: mutations_test.py <worker> <kvspan-stub.so>
"""
import os
import subprocess
import sys

SHUFFLED = "seed=3 queues=shuffled"

# mutation, the case that guards against it, options of the stub
CASES = [
    ("nudge_scale", "AttentionNumerics.EveryPairOfTypesIsWithinTheErrorClass", ""),
    ("swap_strides", "AttentionNumerics.EveryPairOfTypesIsWithinTheErrorClass", ""),
    ("hide_token", "AttentionNumerics.RandomDecodeShapesAreWithinTheErrorClass", ""),
    ("nudge_advance", "AttentionInvariance.RunHasTheBitsOfAnyCutIntoParts", ""),
    ("reveal_dead", "PoisonTest.DeadRowsOfThePageGiveExactlyTwo", ""),
    ("hide_token", "Needle.IsFoundInTheFirstAndTheLastToken", ""),
    ("skip_waits", "Needle.IsFoundInEveryPageThroughARingOfFour", SHUFFLED),
    ("skip_waits", "FenceMemory.ACopyThatWaitsForEncodeSeesItsBytes", SHUFFLED),
    ("skip_waits", "FenceRandom.EveryOrderOfWorkGivesTheModelsBytes", SHUFFLED),
    ("signal_early", "FenceMemory.MemoryIsVisibleBehindAReachedPoint", ""),
    ("short_encode", "CodecTest.EncodeStoresTheReferencesBytesAndNothingElse", ""),
    ("long_copy", "CopyTest.RandomSegmentsMoveExactlyTheirBytes", ""),
    ("swallow_errors", "RefusalAttention.WorkspacesAreExact", "deadlock_ms=200"),
    ("swallow_errors", "CapabilityTest.QueryRulesAndBehaviourTellTheSame", "deadlock_ms=200"),
    ("swallow_errors", "RefusalTest.CodecItemsThatCannotBe", ""),
    ("leak_memory", "MemoryTest.HostMemoryMapsAlignedAndInPlace", ""),
    ("leak_memory", "LifetimeTest.SettledObjectsEndInAnyOrder", ""),
    ("long_copy", "CancelTest.AtAnyMomentSettlesAndWritesNothingElse", ""),
    ("signal_early", "LitmusTest.WhoPollsSeesTheBytesToo", ""),
    ("skip_waits", "LitmusTest.AMessageGoesUpAndDownThroughTwoQueues", SHUFFLED),
    ("skip_waits", "LitmusTest.TwoQueuesTakeTurnsOnOneByteRange", SHUFFLED),
    ("skip_waits", "StreamTest.AnEngineThatNeverWaitsGetsTheSameBytes", SHUFFLED),
    ("stale_page", "StreamTest.EveryArenaHasTheBytesOfTheResidentRun", ""),
    ("stale_page", "StreamTest.CancelledBetweenAnyTwoCallsItGoesOnFromTheLastCommit", ""),
    ("drop_span", "StreamTest.EveryArenaHasTheBytesOfTheResidentRun", ""),
    ("drop_span", "AttentionCoverage.CornersOfTheLengthAreWithinTheErrorClass", ""),
    ("nudge_advance", "AttentionCuts.EveryCutUpToEightGranulesHasTheBitsOfRun", ""),
]


def failures(program: str, plugin: str, name: str, case: str, options: str) -> str:
    """What is wrong with one run; empty when it went red as it should, or green without a mutation."""
    environment = {key: value for key, value in os.environ.items() if key != "GTEST_OUTPUT"}
    command = [program, "--worker", "--plugin", plugin, "--effort", "20", "--cases", case]
    command += [word for option in options.split() for word in ("--option", option)]
    command += ["--mutate", name] if name else []
    ended = subprocess.run(command, env=environment, timeout=100, capture_output=True, text=True,
                           check=False)
    if f"[ RUN      ] {case}" not in ended.stdout:
        return "there is no such case"
    if not name:
        return "" if ended.returncode == 0 else "red without a mutation:\n" + ended.stdout[-2000:]
    if f"[  FAILED  ] {case}" in ended.stdout and ended.returncode == 1:
        return ""
    return f"stayed green, or ended with {ended.returncode}"


def main() -> int:
    program, plugin = sys.argv[1:3]
    wrong = 0
    seen = set()
    for name, case, options in CASES:
        for run in ([] if (case, options) in seen else [""]) + [name]:
            text = failures(program, plugin, run, case, options)
            wrong += bool(text)
            print(f"{'ok  ' if not text else 'FAIL'} {run or 'no mutation'}: {case} {options} {text}")
        seen.add((case, options))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
