# SPDX-License-Identifier: Apache-2.0
"""Runs that are interrupted, and output that cannot be written. Run by cli_test.py.

No sleeps: a signal is sent when the child has said on stderr how far it is.
"""
import json
import os
import pathlib
import signal
import subprocess
import threading
import unittest

from kvspan_tool import (
    CHILD_SECONDS, DATA, DONE, INTERRUPTED, MODEL, WRONG_INPUT, Outcome, Running, ToolCase, command,
    environment)

PROMPT = DATA / "prompts" / "recall-2048.txt"
PREFILL_ROWS = 16
# A quarter of the history's f16 bytes for 2,048 tokens; pages of 64 so that tails and ring fit.
ARENA = ("--arena", 1572864, "--page-tokens", 64)


def generate(*more: object) -> tuple:
    return ("generate", "--model", MODEL, "--prompt-file", PROMPT, "--prefill-rows", PREFILL_ROWS,
            *ARENA, *more)


class Interruption(ToolCase):
    """Ctrl-C: status 130, at a commit, with summary and whole JSON; the next run works."""

    def interrupted(self, outcome: Outcome) -> dict:
        self.assertEqual(outcome.status, INTERRUPTED, outcome.err)
        self.assertEqual(outcome.errors(), [], outcome.err)
        for line in ("ids ", "mode ", "streamed ", "device "):
            self.assertRegex(outcome.err, rf"(?m)^{line}", "the summary is missing")
        said = json.loads((self.folder / "out.json").read_text())
        self.assertEqual([p.name for p in self.folder.glob("out.json*")], ["out.json"])
        self.assertLessEqual(said["device_bytes_high_water"], said["arena_bytes"])
        return said

    def json_file(self) -> tuple:
        return ("--json", self.folder / "out.json")

    def test_in_mid_prefill(self) -> None:
        with Running(*generate("--tokens", 7, *self.json_file())) as running:
            running.wait_for_line("prefill")
            outcome = running.interrupt()
        self.assertIn("interrupted at a commit", outcome.err)
        said = self.interrupted(outcome)
        self.assertTrue(said["interrupted"])
        self.assertEqual(said["ids"], [])
        self.assertGreater(said["history_tokens"], 0)
        self.assertLess(said["history_tokens"], 2048)
        self.assertEqual(said["history_tokens"] % PREFILL_ROWS, 0, "stopped inside a step")

    def test_in_mid_decode(self) -> None:
        with Running(*generate("--tokens", 20000, *self.json_file())) as running:
            running.wait_for_line("decode")
            outcome = running.interrupt()
        said = self.interrupted(outcome)
        self.assertTrue(said["interrupted"])
        self.assertEqual(said["history_tokens"], 2048 + len(said["ids"]))
        self.assertLess(len(said["ids"]), 20000)
        self.assertEqual(said["ids"][:7], [52, 56, 50, 49, 51, 46, 10][:len(said["ids"])])
        self.assertEqual(outcome.out.rstrip("\n"), said["text"].rstrip("\n"))

    def test_the_first_token_has_no_rate_yet(self) -> None:
        with Running(*generate("--tokens", 7, *self.json_file())) as running:
            running.wait_for_line(r"decode +1 / 7 tokens +0\.0 tok/s")
            running.interrupt()

    def test_in_mid_verification(self) -> None:
        with Running(*generate("--tokens", 7, "--verify", *self.json_file())) as running:
            running.wait_for_line(r"decode +7 / 7 tokens")
            running.wait_for_line("prefill", 1 + sum(x.startswith("prefill") for x in running.err))
            outcome = running.interrupt()
        said = self.interrupted(outcome)
        self.assertFalse(said["interrupted"], "the run itself was complete")
        self.assertEqual(said["ids"], [52, 56, 50, 49, 51, 46, 10])
        self.assertTrue(said["verify"]["interrupted"])
        self.assertFalse(said["verify"]["equal"])
        self.assertRegex(outcome.err, r"(?m)^verify +interrupted$")

    def test_terminate_is_the_same(self) -> None:
        with Running(*generate("--tokens", 7, *self.json_file())) as running:
            running.wait_for_line("prefill")
            running.child.send_signal(signal.SIGTERM)
            outcome = running.end()
        self.assertTrue(self.interrupted(outcome)["interrupted"])

    def test_while_the_prompt_is_read(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        arguments = ("generate", "--model", MODEL, "--prompt-file", pipe, "--tokens", 3)
        with Running(*arguments, *ARENA, *self.json_file()) as running:
            with open(pipe, "wb") as prompt:  # returns when the child has opened it too
                running.child.send_signal(signal.SIGINT)
                prompt.write(b"Emma was ")
            outcome = running.end()
        self.assertEqual(self.interrupted(outcome)["history_tokens"], 0)

    def test_the_next_run_works(self) -> None:
        self.test_in_mid_prefill()
        outcome = self.accepted(*generate("--tokens", 7, *self.json_file()))
        self.assertEqual(outcome.out, "48213.\n")
        self.assertFalse(json.loads((self.folder / "out.json").read_text())["interrupted"])

    def test_second_interrupt_ends_at_once(self) -> None:
        with Running(*generate("--tokens", 7)) as running:
            running.wait_for_line("prefill")
            while running.child.poll() is None:
                running.child.send_signal(signal.SIGINT)
            status = running.child.returncode
        # 130 where the first one got to its commit before the second came.
        self.assertIn(status, (-signal.SIGINT, INTERRUPTED))


class JsonFiles(ToolCase):
    """--json FILE: whole or not at all."""

    def plan(self, target: object) -> tuple:
        return ("plan", "--model", MODEL, "--context", 512, "--json", target)

    def test_unwritable(self) -> None:
        for target, why in ((self.folder / "no" / "out.json", "No such file or directory"),
                            (self.folder, "Is a directory"),
                            (pathlib.Path("/proc/out.json"), "")):
            for arguments in (self.plan(target), ("list", "--json", target),
                              ("inspect", "cpu", "--json", target),
                              (*generate("--tokens", 1), "--json", target)):
                with self.subTest(target=str(target), command=arguments[0]):
                    self.refused(WRONG_INPUT, [str(target), why, "give a file"], *arguments)

    def test_full_disk(self) -> None:
        self.refused(WRONG_INPUT, ["/dev/full", "No space left"], *self.plan("/dev/full"))

    def test_an_old_file_is_replaced_when_the_new_one_is_whole(self) -> None:
        target = self.file("out.json", b"old " * 4000)
        self.accepted(*self.plan(target))
        self.assertEqual(json.loads(target.read_text())["pages_a_layer"], 2)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["out.json"])

    def test_an_old_file_survives_a_refusal(self) -> None:
        target = self.file("out.json", b"old")
        self.refused(WRONG_INPUT, ["q9"], *generate("--k-type", "q9", "--json", target))
        self.refused(WRONG_INPUT, ["q9"], *self.plan(target), "--k-type", "q9")
        self.assertEqual(target.read_bytes(), b"old")

    def test_an_old_file_survives_a_kill(self) -> None:
        target = self.file("out.json", b"old")
        with Running(*generate("--tokens", 7, "--json", target)) as running:
            running.wait_for_line("prefill")
            running.child.kill()
            running.end()
        self.assertEqual(target.read_bytes(), b"old")

    def test_a_link_is_followed(self) -> None:
        target = self.file("real.json", b"old")
        link = self.folder / "link.json"
        link.symlink_to(target)
        self.accepted(*self.plan(link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(json.loads(target.read_text())["pages_a_layer"], 2)

    def test_a_pipe_is_written(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        read: list[str] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
        reader.start()
        self.accepted(*self.plan(pipe))
        reader.join()
        self.assertEqual(json.loads(read[0])["pages_a_layer"], 2)

    def test_stdout_holds_nothing_else(self) -> None:
        said = json.loads(self.accepted(*generate("--tokens", 7, "--json", "-")).out)
        self.assertEqual(said["text"], "48213.\n")


class StandardOutput(ToolCase):
    """What cannot be written to stdout is an error that is told; stderr is only for people to read."""

    COMMANDS = (("list",), ("inspect", "cpu"), ("plan", "--model", MODEL, "--context", 512),
                ("list", "--json", "-"), ("--help",), ("--version",),
                ("generate", "--model", MODEL, "--prompt-file", PROMPT, "--tokens", 1))

    def told(self, status: int, err: bytes, words: str) -> None:
        self.assertEqual(status, WRONG_INPUT, err)
        errors = [line for line in err.decode().splitlines() if line.startswith("error:")]
        self.assertEqual(len(errors), 1, err)
        self.assertRegex(errors[0], words)

    def test_full_disk(self) -> None:
        for arguments in self.COMMANDS:
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                done = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE,
                                      env=environment(), timeout=CHILD_SECONDS, check=False)
                self.told(done.returncode, done.stderr, "No space left on device")

    def test_reader_that_went_away(self) -> None:
        for arguments in self.COMMANDS:
            with self.subTest(arguments=arguments):
                read_end, write_end = os.pipe()
                os.close(read_end)
                with open(write_end, "wb") as pipe:
                    done = subprocess.run(command(*arguments), stdout=pipe, stderr=subprocess.PIPE,
                                          env=environment(), timeout=CHILD_SECONDS, check=False)
                self.told(done.returncode, done.stderr, "Broken pipe")

    def test_closed_stdout(self) -> None:
        for arguments in self.COMMANDS:
            with self.subTest(arguments=arguments):
                done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command(*arguments)],
                                      stderr=subprocess.PIPE, env=environment(), check=False,
                                      timeout=CHILD_SECONDS)
                self.told(done.returncode, done.stderr, "Bad file descriptor")

    def test_closed_stdout_does_not_mix_with_a_file(self) -> None:
        # The first file that is opened would otherwise become stdout.
        target = self.folder / "out.json"
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh",
                               *command("plan", "--model", MODEL, "--context", 512, "--json", target)],
                              stderr=subprocess.PIPE, env=environment(), check=False)
        self.told(done.returncode, done.stderr, "Bad file descriptor")
        self.assertEqual(json.loads(target.read_text())["pages_a_layer"], 2)

    def test_unwritable_stderr_costs_nothing_but_words(self) -> None:
        for redirection in ("2>/dev/full", "2>&-"):
            with self.subTest(redirection=redirection):
                line = f'exec "$@" {redirection}'
                done = subprocess.run(["sh", "-c", line, "sh", *command(*generate("--tokens", 7))],
                                      stdout=subprocess.PIPE, env=environment(), check=False,
                                      timeout=CHILD_SECONDS)
                self.assertEqual((done.returncode, done.stdout), (DONE, b"48213.\n"))


if __name__ == "__main__":
    unittest.main()
