# SPDX-License-Identifier: Apache-2.0
"""Wrong options, models, prompts and arenas: one sentence, the right status, nothing left behind.

Each expectation lists words that the sentence must have: the thing, the limit, the fix. Run by
cli_test.py.
"""
import os
import random
import threading
import unittest

from kvspan_tool import (
    DATA, DONE, MISSING_HERE, MODEL, PLUGINS, WRONG_INPUT, ToolCase, run)

# A geometry for `plan` that every backend of this tree can do.
GEOMETRY = ("--layers", 4, "--q-heads", 4, "--kv-heads", 2, "--head-size", 64, "--context", 1024)


class WrongOptions(ToolCase):
    """What the parser or a range check answers."""

    def refused_option(self, words: list[str], *arguments: object) -> None:
        self.refused(WRONG_INPUT, words + ["--help"], *arguments)

    def test_no_command(self) -> None:
        self.refused_option(["subcommand is required"])

    def test_unknown_command(self) -> None:
        self.refused_option(["frobnicate"], "frobnicate")

    def test_unknown_option(self) -> None:
        for name in ("list", "plan", "generate", "inspect"):
            with self.subTest(command=name):
                self.refused_option(["--bogus"], name, "--bogus")

    def test_missing_required_option(self) -> None:
        self.refused_option(["--model", "required"], "generate", "--prompt-file", "x")
        self.refused_option(["--prompt-file", "required"], "generate", "--model", "x")
        self.refused_option(["--context", "required"], "plan")
        self.refused_option(["plugin", "required"], "inspect")

    def test_option_without_its_value(self) -> None:
        self.refused_option(["--json"], "list", "--json")

    def test_numbers_out_of_range(self) -> None:
        given = ("generate", "--model", MODEL, "--prompt-file", self.prompt())
        for option, values in {
            "--tokens": ("0", "-5", "abc", "1048577", "99999999999", ""),
            "--prefill-rows": ("0", "65537", "-1"),
            "--threads": ("-1", "257", "4294967295"),
        }.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refused_option([option], *given, f"{option}={value}")

    def test_plan_numbers_out_of_range(self) -> None:
        for option, values in {
            "--layers": ("4294967295", "65537", "-1"),
            "--prefill-rows": ("0", "65537"),
            "--decode-rows": ("0", "65"),
            "--sequences": ("0", "65537", "4294967295"),
            "--context": ("0", "-1", "18446744073709551615"),
        }.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.refused_option([option], "plan", *GEOMETRY, f"{option}={value}")

    def test_plan_without_a_geometry(self) -> None:
        self.refused(WRONG_INPUT, ["--model", "--layers"], "plan", "--context", 1024)

    def test_bad_arenas(self) -> None:
        for value in ("nonsense", "-1", "nan", "inf", "1e30", "6.3 MB", "6.3XB", "25%%", "%", "0x10",
                      "18446744073709551616", "-25%", "1e400", "é"):
            with self.subTest(arena=value):
                words = [value, "6MiB", "25%"]
                self.refused(WRONG_INPUT, words, "plan", *GEOMETRY, f"--arena={value}")
        self.refused(WRONG_INPUT, ["'much'", "25%"], "generate", "--model", MODEL,
                     "--prompt-file", self.prompt(), "--arena", "much")

    def test_unknown_types(self) -> None:
        for option in ("--k-type", "--v-type"):
            with self.subTest(option=option):
                words = ["q9_9", "f16", "q4_0"]
                self.refused(WRONG_INPUT, words, "plan", *GEOMETRY, option, "q9_9")
                self.refused(WRONG_INPUT, words, "generate", "--model", MODEL,
                             "--prompt-file", self.prompt(), option, "q9_9")

    def test_head_size_that_a_block_does_not_divide(self) -> None:
        geometry = ("--layers", 2, "--q-heads", 4, "--kv-heads", 2, "--context", 1024)
        self.refused(WRONG_INPUT, ["80", "32-element block of q8_0", "64 or 96"], "plan", *geometry,
                     "--head-size", 80, "--k-type", "q8_0")
        self.refused(WRONG_INPUT, ["V", "80", "q4_0", "64 or 96"], "plan", *geometry,
                     "--head-size", 64, "--head-size-v", 80, "--v-type", "q4_0")

    def test_page_that_is_no_multiple_of_the_granule(self) -> None:
        for plugin in PLUGINS:
            for tokens in (7, 101):
                with self.subTest(plugin=plugin, tokens=tokens):
                    words = [f"pages of {tokens} tokens", "granule", "multiple"]
                    self.refused(WRONG_INPUT, words, "plan", "--plugin", plugin, *GEOMETRY,
                                 "--page-tokens", tokens)
                    self.refused(WRONG_INPUT, words, "generate", "--plugin", plugin, "--model", MODEL,
                                 "--prompt-file", self.prompt(), "--page-tokens", tokens)
        self.refused(WRONG_INPUT, ["page_tokens is 0"], "plan", *GEOMETRY, "--page-tokens", 0)

    def test_device_that_does_not_exist(self) -> None:
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                words = [f"kvspan-{plugin}.so", "device 7 does not exist", "kvspan list"]
                self.refused(MISSING_HERE, words, "plan", "--plugin", plugin, *GEOMETRY, "--device", 7)
                self.refused(MISSING_HERE, words, "generate", "--plugin", plugin, "--model", MODEL,
                             "--prompt-file", self.prompt(), "--device", 7)

    def test_help_and_version_are_no_errors(self) -> None:
        for arguments in (("--help",), ("--version",), ("generate", "--help"), ("plan", "--help")):
            with self.subTest(arguments=arguments):
                self.assertNotEqual(self.accepted(*arguments).out, "")


class WrongModel(ToolCase):
    """A model file that is missing, no file, no GGUF, cut short or damaged."""

    def refused_model(self, status: int, words: list[str], model: object) -> None:
        self.refused(status, words, "generate", "--model", model, "--prompt-file", self.prompt(),
                     "--json", self.folder / "out.json")
        self.refused(status, words, "plan", "--model", model, "--context", 512)

    def test_missing(self) -> None:
        self.refused_model(MISSING_HERE, ["nothing.gguf", "No such file"], self.folder / "nothing.gguf")

    def test_directory(self) -> None:
        self.refused_model(WRONG_INPUT, [str(self.folder), "not a regular file", "give"], self.folder)

    def test_empty(self) -> None:
        self.refused_model(WRONG_INPUT, ["empty.gguf", "is empty"], self.file("empty.gguf"))

    def test_text_file(self) -> None:
        text = self.file("text.gguf", b"It was the best of times.\n" * 99)
        self.refused_model(WRONG_INPUT, ["text.gguf", "not a GGUF file"], text)

    def test_name_with_a_line_break_stays_one_line(self) -> None:
        self.refused_model(MISSING_HERE, ["No such file"], self.folder / "a\nerror: b\x1b[2J.gguf")

    def test_truncated(self) -> None:
        whole = MODEL.read_bytes()
        for size in (3, 4, 8, 16, 24, 100, 1000, 4000, len(whole) // 2, len(whole) - 1):
            with self.subTest(size=size):
                self.refused_model(WRONG_INPUT, ["cut.gguf"], self.file("cut.gguf", whole[:size]))

    def test_flipped_bits_of_the_header(self) -> None:
        # Magic, version, number of tensors and of entries: none of these flips can be meant.
        whole = MODEL.read_bytes()
        for byte in (0, 3, 4, 8, 15, 16, 23):
            with self.subTest(byte=byte):
                damaged = bytearray(whole)
                damaged[byte] ^= 0x40
                self.refused_model(WRONG_INPUT, ["bits.gguf"], self.file("bits.gguf", bytes(damaged)))

    def test_flipped_bits_of_the_index_never_crash(self) -> None:
        # Some flips give another sound file (a letter of the model's name): DONE or a refusal.
        seed = 20240607
        chance = random.Random(seed)
        path = self.file("bits.gguf", MODEL.read_bytes())
        refusals = 0
        with open(path, "r+b") as file:
            for number in range(60):
                at, bit = chance.randrange(24, 9000), 1 << chance.randrange(8)
                file.seek(at)
                was = file.read(1)[0]
                file.seek(at)
                file.write(bytes([was ^ bit]))
                file.flush()
                with self.subTest(seed=seed, number=number, at=at, bit=bit):
                    outcome = run("plan", "--model", path, "--context", 512)
                    self.assertIn(outcome.status, (DONE, WRONG_INPUT), outcome.err)
                    self.assertEqual(len(outcome.errors()), int(outcome.status != DONE), outcome.err)
                    refusals += outcome.status != DONE
                file.seek(at)
                file.write(bytes([was]))
                file.flush()
        self.assertGreater(refusals, 0, "no flip was noticed: do they reach the index at all?")

    def test_index_without_an_entry_that_is_needed(self) -> None:
        whole = MODEL.read_bytes()
        for key in (b"llama.block_count", b"general.architecture", b"tokenizer.ggml.tokens"):
            with self.subTest(key=key):
                self.assertIn(key, whole[:9000])
                other = b"zzzzz" + key[5:]
                damaged = self.file("entry.gguf", whole.replace(key, other, 1))
                self.refused(WRONG_INPUT, ["entry.gguf", key.decode()], "generate", "--model", damaged,
                             "--prompt-file", self.prompt())


class WrongPrompt(ToolCase):
    """Missing is 3; a directory, nothing at all and too much are wrong input: 2."""

    def refused_prompt(self, status: int, words: list[str], path: object, *more: object) -> None:
        self.refused(status, words, "generate", "--model", MODEL, "--prompt-file", path, *more,
                     "--json", self.folder / "out.json")

    def test_missing(self) -> None:
        self.refused_prompt(MISSING_HERE, ["no.txt", "No such file", "prompt"], self.folder / "no.txt")

    def test_directory(self) -> None:
        self.refused_prompt(WRONG_INPUT, [str(self.folder), "directory"], self.folder)

    def test_empty(self) -> None:
        self.refused_prompt(WRONG_INPUT, ["empty.txt", "empty", "give"], self.file("empty.txt"))

    def test_longer_than_the_context(self) -> None:
        words = ["883028 tokens", "context of 131072", "shorten"]
        self.refused_prompt(WRONG_INPUT, words, DATA / "text" / "emma.txt")

    def test_one_token_over_the_context(self) -> None:
        text = (DATA / "text" / "emma.txt").read_bytes()[:131072 - 6]
        words = ["131066 tokens", "7 to generate", "1 more than", "context of 131072"]
        self.refused_prompt(WRONG_INPUT, words, self.file("long.txt", text), "--tokens", 7)

    def test_endless(self) -> None:
        self.refused_prompt(WRONG_INPUT, ["/dev/zero", "256 MiB"], "/dev/zero")

    def test_pipe_is_read(self) -> None:
        # `--prompt-file <(...)` is a pipe: no size, no seeking.
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        text = self.prompt().read_bytes()
        writer = threading.Thread(target=lambda: pipe.write_bytes(text))
        writer.start()
        outcome = self.accepted("generate", "--model", MODEL, "--prompt-file", pipe, "--tokens", 1)
        writer.join()
        self.assertNotEqual(outcome.out, "")


class SmallArena(ToolCase):
    """The minimum runs; one byte less is refused with phase, component and shortfall, on every backend."""

    WORDS = ["is 1 bytes below the minimum of", "phase ", "component ", "at least the minimum"]

    def test_plan(self) -> None:
        for plugin in PLUGINS:
            for types in (("f16", "f16"), ("q8_0", "q4_0")):
                with self.subTest(plugin=plugin, types=types):
                    arguments = ("plan", "--plugin", plugin, *GEOMETRY, "--page-tokens", 64,
                                 "--k-type", types[0], "--v-type", types[1])
                    least = self.json_of(*arguments)["minimum_arena_bytes"]
                    again = self.json_of(*arguments, "--arena", least)
                    self.assertLessEqual(again["arena_bytes"], least)
                    self.refused(MISSING_HERE, self.WORDS + [f"{least} bytes", f"{least - 1} bytes"],
                                 *arguments, "--arena", least - 1)

    def test_generate(self) -> None:
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                types = ("--k-type", "q8_0", "--v-type", "q4_0", "--page-tokens", 32)
                least = self.json_of("plan", "--plugin", plugin, "--model", MODEL, "--context", 163,
                                     *types)["minimum_arena_bytes"]
                arguments = ("generate", "--plugin", plugin, "--model", MODEL, "--prompt-file",
                             self.prompt(160), "--tokens", 3, *types)
                done = self.json_of(*arguments, "--arena", least)
                self.assertEqual(done["minimum_arena_bytes"], least, "plan and generate disagree")
                self.assertLessEqual(done["device_bytes_high_water"], least)
                self.assertEqual(done["mode"], "streaming")
                self.refused(MISSING_HERE, self.WORDS + [f"{least} bytes"], *arguments,
                             "--arena", least - 1, "--json", self.folder / "out.json")

    def test_nothing_at_all(self) -> None:
        for arena in ("0", "0%", "1"):
            with self.subTest(arena=arena):
                self.refused(MISSING_HERE, ["arena of", "below the minimum of"], "plan", *GEOMETRY,
                             "--arena", arena)


if __name__ == "__main__":
    unittest.main()
