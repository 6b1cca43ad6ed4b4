#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Real text from the real model while only a part of its K/V fits: ctest's host.recall_*.

    host/tests/e2e_test.py Recall2048 [Recall8192 ...]     with kvspan_tool.py's variables set

Each prompt has a number planted near its start and asks for it at its end, so a page that is lost,
stale or misplaced changes the answer. One byte is one token. K/V bytes of a token: 6 layers x 2
heads x the rows of 64 elements of K and V.
"""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from kvspan_tool import DATA, MODEL, ToolCase, main  # noqa: E402

LAYERS, KV_HEADS = 6, 2
ROW_BYTES = {"f16": 128, "q8_0": 68, "q4_0": 36}  # of 64 elements
NEWLINE = 10
TOKENS = 7


def answer_ids(number: int) -> list[int]:
    return [ord(digit) for digit in str(number)] + [ord("."), NEWLINE]


class Recall(ToolCase):
    """What every recall has to show."""

    def generate(self, prompt: object, *more: object, plugin: str = "cpu") -> dict:
        target = self.folder / "out.json"
        self.accepted("generate", "--plugin", plugin, "--model", MODEL, "--prompt-file", prompt,
                      "--tokens", TOKENS, "--json", target, *more)
        return self.load(target)

    def load(self, target: pathlib.Path) -> dict:
        return json.loads(target.read_text())

    def history_bytes(self, tokens: int, types: tuple[str, str]) -> int:
        return tokens * LAYERS * KV_HEADS * (ROW_BYTES[types[0]] + ROW_BYTES[types[1]])

    def streamed(self, said: dict, arena: int) -> None:
        """The run did not fit, stayed inside its arena and touched the host's pages."""
        self.assertEqual(said["mode"], "streaming")
        self.assertEqual(said["arena_bytes"], arena)
        self.assertLessEqual(said["device_bytes_high_water"], arena)
        self.assertGreater(said["device_bytes_high_water"], 0)
        self.assertGreater(said["streamed_pages"], 0)
        self.assertGreater(said["streamed_bytes"], arena)
        self.assertLess(said["resident_pages"], said["total_pages"])

    def verified(self, said: dict, tokens: int = TOKENS) -> None:
        self.assertTrue(said["verify"]["equal"], said)
        self.assertEqual(said["verify"]["compared_tokens"], tokens)

    def recall(self, size: int, number: int, types: tuple[str, str], arena: int,
               *more: object) -> dict:
        prompt = DATA / "prompts" / f"recall-{size}.txt"
        self.assertEqual(prompt.stat().st_size, size)
        self.assertLessEqual(arena * 4, self.history_bytes(size, types), "more than a quarter")
        said = self.generate(prompt, "--arena", arena, "--k-type", types[0], "--v-type", types[1],
                             *more)
        self.assertEqual(said["ids"], answer_ids(number))
        self.assertEqual(said["text"], f"{number}.\n")
        self.assertEqual(said["history_tokens"], size + TOKENS - 1)
        self.streamed(said, arena)
        return said

    def beginning(self, size: int, plugin: str) -> tuple[pathlib.Path, int, dict]:
        """The first bytes of the smallest prompt with a quarter of their K/V, verified."""
        text = (DATA / "prompts" / "recall-2048.txt").read_bytes()[:size]
        prompt = self.file("prompt.txt", text)
        arena = self.history_bytes(size, ("f16", "f16")) // 4
        page_tokens = {"stub": 16, "cpu": 32}[plugin]  # of the backend's granule
        said = self.generate(prompt, "--arena", arena, "--page-tokens", page_tokens, "--verify",
                             plugin=plugin)
        self.streamed(said, arena)
        self.verified(said)
        return prompt, arena, said


class Recall2048(Recall):
    """48213 from 2,048 tokens with a quarter of their K/V, three pairs of types; also the stub."""

    def test_every_pair_of_types(self) -> None:
        pairs = [(("f16", "f16"), 64), (("q8_0", "q4_0"), 32), (("q4_0", "q4_0"), 32)]
        for types, page_tokens in pairs:
            with self.subTest(types=types):
                arena = self.history_bytes(2048, types) // 4
                said = self.recall(2048, 48213, types, arena, "--page-tokens", page_tokens,
                                   "--verify")
                self.verified(said)

    def test_the_stub_backend(self) -> None:
        prompt, arena, said = self.beginning(300, "stub")
        exact = self.generate(prompt, "--arena", 2 * arena, "--page-tokens", 32)
        self.assertEqual(said["ids"], exact["ids"], "stub and cpu continue differently")


class Beginning(Recall):
    """What a sanitizer, which makes each run ten times as long, is shown instead: every path of a
    streamed and verified run, over less text than holds the question."""

    def test_cpu(self) -> None:
        self.beginning(600, "cpu")

    def test_stub(self) -> None:
        self.beginning(200, "stub")


class Invariance2048(Recall):
    """Neither the number of threads nor the arena changes one bit of any logit."""

    PROMPT = DATA / "prompts" / "recall-2048.txt"

    def test_threads(self) -> None:
        arena = self.history_bytes(2048, ("q8_0", "q4_0")) // 4
        runs = [self.generate(self.PROMPT, "--arena", arena, "--k-type", "q8_0", "--v-type", "q4_0",
                              "--page-tokens", 32, "--threads", n) for n in (1, 2, 3)]
        for said in runs:
            self.streamed(said, arena)
            self.assertEqual(said["ids"], answer_ids(48213))
            self.assertEqual(said["logits_hash"], runs[0]["logits_hash"])

    def test_arenas_from_the_minimum_to_everything(self) -> None:
        common = ("--page-tokens", 64)
        whole = self.generate(self.PROMPT, "--arena", "100%", *common)
        self.assertEqual((whole["mode"], whole["streamed_pages"]), ("resident", 0))
        least, most = whole["minimum_arena_bytes"], whole["arena_bytes"]
        arenas = [least + (most - least) * step // 8 for step in range(9)]
        shares = set()
        for arena in arenas:
            with self.subTest(arena=arena):
                said = self.generate(self.PROMPT, "--arena", arena, *common)
                self.assertEqual(said["ids"], answer_ids(48213))
                self.assertEqual(said["logits_hash"], whole["logits_hash"])
                self.assertLessEqual(said["device_bytes_high_water"], arena)
                shares.add(said["resident_pages"])
        self.assertGreater(len(shares), 5, "the arenas should differ in what they keep")

    def test_hash_is_of_the_logits(self) -> None:
        one = self.generate(self.PROMPT, "--k-type", "q4_0", "--v-type", "q4_0")
        other = self.generate(self.PROMPT)
        self.assertEqual(one["ids"], other["ids"])
        self.assertNotEqual(one["logits_hash"], other["logits_hash"])


class Recall8192(Recall):
    """90572, as in the demo."""

    def test_f16(self) -> None:
        self.verified(self.recall(8192, 90572, ("f16", "f16"), 6_291_456, "--verify"))

    def test_q8_0_and_q4_0(self) -> None:
        self.verified(self.recall(8192, 90572, ("q8_0", "q4_0"), 2_555_904, "--verify"))


class Recall32768(Recall):
    """31846 from 32,768 tokens."""

    def test_f16(self) -> None:
        arena = self.history_bytes(32768, ("f16", "f16")) // 4
        self.verified(self.recall(32768, 31846, ("f16", "f16"), arena, "--verify"))


if __name__ == "__main__":
    main(*(f"e2e_test.{name}" for name in sys.argv[1:]))
