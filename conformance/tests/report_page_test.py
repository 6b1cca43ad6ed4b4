#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what a planted failure expected and got is read back from the DOM.

    conformance/tests/report_page_test.py SCRIPTED_SUITE ANY_PLUGIN [CASE...]

The failure is the one of Bad.Fails in scripted_suite.cpp, whose actual value is a script: a page
that lets a plugin's words become markup shows it. Without /usr/bin/chromium it is skipped.
"""
import html.parser
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from conformance_tool import CRASHED, FAILED, SuiteCase, main

BROWSER = "/usr/bin/chromium"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage")
EXPECTED = "0x2a 0x2b"
ACTUAL = "<script>document.title='owned'</script> 0x2a 0x00"
VOID = ("meta", "br", "input", "link", "hr", "img")
# Appended to a copy of the page: people choose a status and type a word.
CHOOSE = """<script>
document.getElementById("by-status").value = "crash";
document.getElementById("by-status").dispatchEvent(new Event("change"));
document.title = document.querySelectorAll("#cases .row:not(.away)").length + " rows";
</script></body>"""


class Dom(html.parser.HTMLParser):
    """Elements as {tag, attributes, text}; text includes that of the children."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[dict] = []
        self.all: list[dict] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "text": "", "in": [e for e in self.open], **dict(attrs)}
        self.all.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def find(self, tag: str, **attributes: str) -> list[dict]:
        return [e for e in self.all if e["tag"] == tag and
                all(e.get(key.rstrip("_").replace("_", "-")) == value
                    for key, value in attributes.items())]


class ReportPage(SuiteCase):
    """Each page comes out of a run of its own."""

    def dom(self, page: pathlib.Path) -> Dom:
        with tempfile.TemporaryDirectory(prefix="kvspan-browser-", ignore_cleanup_errors=True) as user:
            done = subprocess.run([BROWSER, *FLAGS, f"--user-data-dir={user}", "--dump-dom",
                                   page.as_uri()], capture_output=True, timeout=120, check=False,
                                  env={**os.environ, "HOME": user})
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace")[-2000:])
        text = done.stdout.decode()
        self.assertIn("</html>", text)
        return Dom(text)

    def test_a_planted_failure_is_read_back(self) -> None:
        run = self.run_suite("--case", "Bad.Fails", "--case", "Good.*", status=FAILED)
        dom = self.dom(run.folder / "report.html")
        article = dom.find("article", data_case="Bad.Fails", data_status="fail")
        self.assertEqual(len(article), 1)
        inside = lambda element: any(e is article[0] for e in element["in"])
        expected = [e["text"] for e in dom.find("pre", class_="expected") if inside(e)]
        actual = [e["text"] for e in dom.find("pre", class_="actual") if inside(e)]
        self.assertEqual(expected, [EXPECTED])
        self.assertEqual(actual, [ACTUAL])
        self.assertEqual(dom.find("title")[0]["text"], "kvspan-conformance: " + self.name(run))
        verdict = dom.find("p", id="verdict")[0]
        self.assertEqual(verdict["data-exit-status"], str(FAILED))
        self.assertIn("executed 4 of 4 mandatory", verdict["text"])

    def test_a_hang_shows_where_it_was(self) -> None:
        run = self.run_suite("--case", "Bad.Hangs", "--case", "Good.*", "--timeout", "400ms",
                             status=CRASHED)
        stacks = self.dom(run.folder / "report.html").find("pre", class_="stacks")
        self.assertEqual(len(stacks), 1)
        self.assertIn("has no handler for the signal; in system call", stacks[0]["text"])
        self.assertIn(stacks[0]["text"].splitlines()[1], run.out)

    def name(self, run) -> str:
        return run.lines()[0]["plugin"]["name"]

    def test_matrix_and_rules_are_there(self) -> None:
        run = self.run_suite("--case", "Good.*", status=0)
        dom = self.dom(run.folder / "report.html")
        self.assertEqual([e["text"] for e in dom.find("td", data_k="q8_0", data_v="q4_0")], ["native"])
        self.assertEqual([e["text"] for e in dom.find("td", data_k="f16", data_v="f16")],
                         ["unsupported"])
        rows = dom.find("tr", data_rules="KV-ATTN-1", data_status="pass")
        self.assertEqual(len(rows), 2, "one of the rules, one of the cases")

    def test_the_script_filters_and_its_absence_hides_nothing(self) -> None:
        run = self.run_suite("--case", "Bad.[FS]*", "--case", "Good.*", status=CRASHED)
        page = (run.folder / "report.html").read_text()
        self.assertIn("<form id=\"filters\" hidden>", page, "only the script shows it")
        self.assertNotIn("class=\"row away\"", page)
        chosen = self.folder / "chosen.html"
        chosen.write_text(page.replace("</body>", CHOOSE))
        self.assertEqual(self.dom(chosen).find("title")[0]["text"], "1 rows")


if __name__ == "__main__":
    if not pathlib.Path(BROWSER).exists():
        print(f"SKIPPED: {BROWSER} is not installed: `./dev setup browser` installs it")
        sys.exit(77)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
