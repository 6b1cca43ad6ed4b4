# SPDX-License-Identifier: Apache-2.0
"""`plan` with a link and a machine: placements, predictions, headroom, automatic arenas; `bench link`
and who reads what it keeps.

Run by cli_test.py.
"""
import json
import pathlib
import unittest

from kvspan_tool import MISSING_HERE, MODEL, PLUGINS, WRONG_INPUT, ToolCase

GEOMETRY = ("--layers", 16, "--q-heads", 24, "--kv-heads", 4, "--head-size", 256,
            "--context", 262144, "--k-type", "q8_0", "--v-type", "q4_0", "--prefill-rows", 1)
LINK = ("--link", "49.2GB", "--copy-ns", 2450, "--gap-ns", 1500000, "--attend", "4620GB")
PAGE = 425984
MIB = 1 << 20


class Placement(ToolCase):
    """The run that the systems kvspan starts from published: a pool of 5,484 pages."""

    def arena(self) -> int:
        return self.json_of("plan", *GEOMETRY)["minimum_arena_bytes"] + 5482 * PAGE + 512

    def test_both_rules(self) -> None:
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                base = ("plan", "--plugin", plugin, *GEOMETRY, *LINK)
                arena = self.json_of(*base)["minimum_arena_bytes"] + 5482 * PAGE + 512
                plan = self.json_of(*base, "--arena", arena)
                self.assertEqual(plan["overlap"]["ring_pages"], 812)
                self.assertEqual(plan["overlap"]["resident_pages"].count(1024), 1)
                self.assertEqual(sum(plan["overlap"]["resident_pages"]), 16 * 292)
                self.assertEqual(plan["overlap"]["streamed_bytes"], 11712 * PAGE)
                self.assertEqual(plan["ring_pages"] + sum(plan["resident_pages"]), 5484)
                self.assertLess(plan["predicted"]["step_ns"], 0.96 * plan["overlap"]["step_ns"])
                theirs = self.json_of(*base, "--arena", arena, "--rule", "overlap")
                self.assertEqual(theirs["predicted"], plan["overlap"])
                self.assertNotIn("overlap", theirs)

    def test_says_why(self) -> None:
        text = self.accepted("plan", *GEOMETRY, *LINK, "--arena", self.arena()).out
        for words in ("ms a step", "the link rules", "208 pages in groups of 32",
                      "172 for the gap of 1.500 ms", "4 for 0.033 ms of attention", "0 for jitter",
                      "overlap rule", "812 pages of ring"):
            self.assertIn(words, text)
        text = self.accepted("plan", *GEOMETRY, *LINK, "--arena", "8GiB").out
        self.assertIn("everything is resident", text)
        text = self.accepted("plan", *GEOMETRY, "--link", "49.2GB", "--gap-ns", 60000000, "--arena",
                             self.arena()).out
        self.assertIn("the other work rules", text)

    def test_the_ring_is_what_comes_while_nobody_takes_pages(self) -> None:
        base = ("plan", *GEOMETRY, "--arena", "2.3GB", "--copy-ns", 2450)
        for gap_ns, link, most in ((100000, 49.2, 76), (0, 55.4, 64), (1500000, 55.4, 260)):
            plan = self.json_of(*base, "--gap-ns", gap_ns, "--link", f"{link}GB", "--attend",
                                "4620GB")
            self.assertLessEqual(plan["ring_pages"], most)
        # Slow attention of what is resident takes ring too, and is told.
        slow = self.json_of(*base, "--gap-ns", 100000, "--link", "20GB", "--attend", "60GB")
        need = slow["ring_need"]
        self.assertGreater(slow["ring_pages"], 2 * slow["group_pages"] + 5)
        self.assertLessEqual(slow["ring_pages"], need["pages"])
        self.assertGreater(need["attention_pages"], 5 * need["gap_pages"])
        idle = need["gap_pages"] + need["attention_pages"] + need["jitter_pages"]
        self.assertEqual(need["pages"], max(2 * slow["group_pages"], slow["group_pages"] + idle))
        text = self.accepted(*base, "--gap-ns", 100000, "--link", "49.2GB", "--attend", "60GB").out
        self.assertIn("with more the other work would not wait less", text)

    def test_phases_in_turns(self) -> None:
        wide = ("plan", *GEOMETRY[:-2], "--prefill-rows", 2048, *LINK, "--arena", "1GiB")
        beside, turns = self.json_of(*wide), self.json_of(*wide, "--turns")

        def pages(plan: dict) -> int:
            return plan["ring_pages"] + sum(plan["resident_pages"])

        self.assertGreater(pages(turns), pages(beside))
        self.assertLess(turns["predicted"]["step_ns"], beside["predicted"]["step_ns"])
        self.assertLessEqual(turns["prompt"]["time_ns"], beside["prompt"]["time_ns"])

    def test_nothing_is_predicted_without_a_link(self) -> None:
        plan = self.json_of("plan", *GEOMETRY, "--arena", self.arena())
        self.assertNotIn("predicted", plan)
        self.assertNotIn("overlap", plan)

    def test_chunks_that_cover_the_stream(self) -> None:
        rows = ("--row-ns", 40000, "--attend-rows", "20000GB")
        wide = (*GEOMETRY[:-2], "--prefill-rows", 8192)
        base = ("plan", "--plugin", "cpu", *wide, *LINK, *rows)
        plan = self.json_of(*base, "--arena", "5GB")
        self.assertEqual(plan["prompt"]["limit"], "work", plan["prompt"]["why"])
        self.assertEqual(plan["prompt"]["time_ns"], plan["prompt"]["work_ns"])
        self.assertEqual(plan["prompt"]["down_bytes"], 16384 * PAGE)
        text = self.accepted(*base, "--arena", "5GB").out
        for words in (f"chunks of {plan['prefill_rows']} rows: the narrowest whose work covers",
                      "whole prompt", "placed for decode", "the last chunk works for"):
            self.assertIn(words, text)
        narrow = self.json_of("plan", "--plugin", "cpu", *GEOMETRY[:-2], "--prefill-rows", 256, *LINK,
                              *rows, "--arena", "2.6GB")
        self.assertGreater(narrow["prompt"]["up_bytes"], 8 * 2048 * PAGE)
        self.refused(WRONG_INPUT, ["fast"], "plan", *GEOMETRY, "--attend-rows", "fast")

    def test_wrong_rules_and_amounts(self) -> None:
        arena = ("--arena", "2GiB")
        self.refused(WRONG_INPUT, ["link"], "plan", *GEOMETRY, *arena, "--rule", "overlap")
        self.refused(WRONG_INPUT, ["1 sequence"], "plan", *GEOMETRY, *arena, *LINK, "--sequences", 2,
                     "--rule", "overlap")
        self.refused(WRONG_INPUT, ["--rule"], "plan", *GEOMETRY, "--rule", "best")
        for option in ("--link", "--attend", "--pinnable", "--host-memory", "--device-memory",
                       "--used"):
            with self.subTest(option=option):
                self.refused(WRONG_INPUT, ["'fast'", "unit"], "plan", "--plugin", "stub", *GEOMETRY,
                             option, "fast")


class Layers(ToolCase):
    """Layers that differ: types, head sizes, windows, V inside K's row."""

    BASE = ("--q-heads", 24, "--kv-heads", 4, "--head-size", 256, "--context", 131072)

    def test_types(self) -> None:
        pairs = (("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "q4_0"), ("f16", "f16"))
        specs = [word for k, v in pairs for word in ("--layer", f"k={k},v={v}")]
        for plugin in PLUGINS:
            with self.subTest(plugin=plugin):
                plan = self.json_of("plan", "--plugin", plugin, *self.BASE, *specs)
                pages = [557056, 425984, 294912, 1048576]
                self.assertEqual(plan["layer_page_bytes"], pages)
                self.assertEqual(plan["host_bytes"], 512 * sum(pages))

    def test_windows_and_latent_layers(self) -> None:
        arguments = ("plan", *self.BASE, "--k-type", "f16", "--v-type", "f16",
                     "--layer", "10:q-heads=32,kv-heads=16,head-size=128",
                     "--layer", "52:q-heads=32,kv-heads=16,head-size=128,window=1024",
                     "--page-tokens", 64)
        plan = self.json_of(*arguments, "--arena", "3GiB")
        self.assertEqual(plan["visible_pages"], [2048] * 10 + [17] * 52)
        self.assertTrue(all(plan["resident_pages"][:10]))
        self.assertFalse(any(plan["resident_pages"][10:]))
        text = self.accepted(*arguments, "--arena", "3GiB").out
        self.assertIn("layers 10-61", text)
        latent = self.json_of("plan", "--context", 163840, "--page-tokens", 64, "--layer",
                              "61:q-heads=16,kv-heads=1,head-size=96,head-size-v=64,latent")
        self.assertEqual(latent["host_bytes"], 61 * 163840 * 192)

    def test_wrong_layers(self) -> None:
        self.refused(WRONG_INPUT, ["'52:windows=3'", "window"], "plan", *self.BASE, "--layer",
                     "52:windows=3")
        self.refused(WRONG_INPUT, ["--layer"], "plan", *self.BASE, "--layers", 3, "--layer", "k=f16")


class Machine(ToolCase):
    """Headroom with a sign, arenas by a stated rule, refusals with the shortfall."""

    def test_headroom(self) -> None:
        for demand, left in ((15500, -97), (15000, 403)):
            with self.subTest(demand=demand):
                plan = self.json_of("plan", "--plugin", "stub", *GEOMETRY, "--arena", "2GiB",
                                    "--device-memory", "16303MiB", "--used", f"{demand + 900}MiB")
                self.assertEqual(plan["headroom_bytes"] + plan["arena_bytes"], left * MIB)
                self.assertEqual(plan["warning"], plan["headroom_bytes"] < 0)
        text = self.accepted("plan", "--plugin", "stub", *GEOMETRY, "--arena", "2GiB",
                             "--device-memory", "2GiB", "--used", "1GiB").out
        self.assertIn("WARNING", text)
        self.refused(WRONG_INPUT, ["--host-memory"], "plan", "--plugin", "cpu", *GEOMETRY,
                     "--device-memory", "2GiB")

    def test_automatic_arena(self) -> None:
        auto = ("plan", "--plugin", "stub", *GEOMETRY, "--arena", "auto", "--reserve", "512MiB")
        plan = self.json_of(*auto, "--free", "3000MiB")
        self.assertLessEqual(plan["arena_bytes"], 2488 * MIB)
        self.assertGreater(plan["arena_bytes"], 2488 * MIB - 2 * PAGE)
        self.assertIn(f"{2488 * MIB // PAGE * PAGE} bytes", plan["arena_rule"])
        least = plan["minimum_arena_bytes"]
        self.refused(MISSING_HERE, [f"{least}", " 1 bytes more"], *auto, "--free",
                     512 * MIB + least - 1)
        self.assertEqual(self.json_of(*auto, "--free", 512 * MIB + least)["arena_bytes"], least)
        plan = self.json_of(*auto, "--free", "1024GiB")
        self.assertEqual(plan["mode"], "resident")
        self.refused(WRONG_INPUT, ["--free"], "plan", "--plugin", "cpu", *GEOMETRY, "--arena", "auto")

    def test_host_memory(self) -> None:
        pinned = self.json_of("plan", *GEOMETRY)["pinned_bytes"]
        for option in ("--host-memory", "--pinnable"):
            with self.subTest(option=option):
                self.accepted("plan", "--plugin", "stub", *GEOMETRY, option, pinned + (1 << 30))
                self.refused(MISSING_HERE, [f"{pinned - 1}", "shorten the context"], "plan",
                             "--plugin", "stub", *GEOMETRY, option, pinned - 1)


CPU_ID = b"host-processor-0".hex()


class Link(ToolCase):
    """Measured once, kept under the device's id, read by `plan`, `generate` and `bench`."""

    def test_kept_and_read(self) -> None:
        file = self.folder / "calibration.json"
        text = self.accepted("bench", "link", "--plugin", "cpu", "--calibration", file).out
        self.assertIn("GB/s", text)
        kept = json.loads(file.read_text())
        (device, numbers), = kept["devices"].items()
        self.assertRegex(device, "^[0-9a-f]{32}$")
        self.assertGreater(numbers["link_bytes_s"], 0)
        # Attention of what is resident, and a wave beyond its bytes: no processor reads a terabyte a
        # second, no wave takes a second.
        self.assertIn("attention", text)
        self.assertGreater(numbers["attend_bytes_s"], 1e6)
        self.assertLess(numbers["attend_bytes_s"], 1e12)
        self.assertGreaterEqual(numbers["wave_ns"], 0)
        self.assertLess(numbers["wave_ns"], 1e9)
        plan = self.json_of("plan", "--plugin", "cpu", *GEOMETRY, "--arena", "2GiB", "--calibration",
                            file)
        self.assertGreater(plan["predicted"]["step_ns"], 0)
        # Another device is kept beside it, and what is not in the file is named.
        kept["devices"] = {"00" * 16: numbers}
        file.write_text(json.dumps(kept))
        self.refused(MISSING_HERE, [device, "bench link"], "plan", "--plugin", "cpu", *GEOMETRY,
                     "--calibration", file)
        self.accepted("bench", "link", "--plugin", "cpu", "--calibration", file)
        self.assertEqual(sorted(json.loads(file.read_text())["devices"]), ["00" * 16, device])

    def calibrations(self, id_text: str, **changes: float) -> pathlib.Path:
        """A file of one device whose numbers nobody measured."""
        numbers = {"name": "Someone's card", "copy_ns": 3000, "link_bytes_s": 2e9, "jitter_ns": 100000,
                   "attend_bytes_s": 5e9, "wave_ns": 20000, **changes}
        return self.file("numbers.json", json.dumps(
            {"kvspan_calibrations": 1, "devices": {id_text: numbers}}).encode())

    def test_generate_and_bench_read_it(self) -> None:
        file = self.calibrations(CPU_ID)
        generate = ("generate", "--model", MODEL, "--prompt-file", self.prompt(), "--tokens", 2,
                    "--arena", "60%", "--page-tokens", 64, "--prefill-rows", 64)
        without = self.accepted(*generate)
        self.assertRegex(without.err, r"placement +by default values.*--calibration")
        self.assertIsNone(self.json_of(*generate)["calibration"])
        outcome = self.accepted(*generate, "--calibration", file, "--verify")
        self.assertRegex(outcome.err, r"placement +for a link of 2\.00 GB/s")
        self.assertEqual(outcome.out, without.out)
        # 2 GB/s for 100 us of jitter are 200,000 bytes: the ring covers them as far as it pays.
        said = self.json_of(*generate, "--calibration", file)
        self.assertEqual(said["calibration"]["link_bytes_s"], 2e9)
        self.assertGreater(said["predicted_step_ns"], 0)
        for name in ("decode", "prefill"):
            bench = ("bench", name, "--geometry", "2/1/128", "--layers", 2, "--page-tokens", 64,
                     "--context", "1K", "--rows", 16)
            self.assertIsNone(self.json_of(*bench)["calibration"])
            with_numbers = self.json_of(*bench, "--calibration", file)
            self.assertEqual(with_numbers["calibration"]["attend_bytes_s"], 5e9)
            self.assertIn("memcmp of ", with_numbers["rows"][0]["check"])

    def test_numbers_make_the_prediction(self) -> None:
        bench = ("bench", "decode", "--geometry", "2/1/128", "--layers", 2, "--page-tokens", 64,
                 "--context", "1K", "--calibration")
        page = 64 * (136 + 72)
        for rate in (1e6, 1e7):
            row = self.json_of(*bench, self.calibrations(CPU_ID, link_bytes_s=rate, copy_ns=0))["rows"][0]
            self.assertAlmostEqual(row["predicted_seconds"], 2 * 16 * page / rate, delta=0.1 * 32 * page / rate)

    def test_another_device_is_refused_by_name(self) -> None:
        file = self.calibrations("ab" * 16)
        words = ["numbers.json", CPU_ID, "Someone's card", "bench link"]
        self.refused(MISSING_HERE, words, "plan", "--plugin", "cpu", *GEOMETRY, "--calibration", file)
        self.refused(MISSING_HERE, words, "generate", "--model", MODEL, "--prompt-file", self.prompt(),
                     "--tokens", 1, "--calibration", file)
        for name in ("decode", "prefill"):
            self.refused(MISSING_HERE, words, "bench", name, "--context", 256, "--layers", 1,
                         "--calibration", file)

    def test_files_that_are_something_else(self) -> None:
        plan = ("plan", "--plugin", "cpu", *GEOMETRY, "--calibration")
        for content in (b"", b"[]", b"{}", b'{"kvspan_calibrations": 2, "devices": {}}',
                        b'{"kvspan_calibrations": 1, "devices": 5}', b"\xff\x00"):
            with self.subTest(content=content):
                file = self.file("wrong.json", content)
                self.refused(WRONG_INPUT, ["wrong.json", "calibrations"], *plan, file)
                self.refused(WRONG_INPUT, ["wrong.json", "calibrations"], "bench", "link", "--plugin",
                             "cpu", "--calibration", file)
                self.assertEqual(file.read_bytes(), content)
        self.refused(WRONG_INPUT, ["nowhere.json"], *plan, self.folder / "nowhere.json")


if __name__ == "__main__":
    unittest.main()
