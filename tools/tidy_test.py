#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tidy.py tested: a small clean tree passes, and one planted violation per check turns exactly that
check red.

Every check and every word of tidy.py must be named by a plant here; the last test counts them.
"""
import pathlib
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tidy  # noqa: E402
import tidy_parts  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A file of the test.\n"
HASH = "# SPDX-License-Identifier: Apache-2.0\n# A file of the test.\n"
CLEAN = {
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n",
    "CMakeLists.txt": HASH
    + "# utils.cpp isa_${isa}.cpp a.cpp a.h a.hpp a_test.cpp arena.cpp config.cpp\n",
    "core/memory/arena.cpp": HEAD + "int f() {\n  return 1;\n}\n",
    "docs/CODEMAP.md": "# Map\n\n`core/` `core/memory/` `docs/` `host/`\n",
    "host/config.cpp": HEAD + 'const char* f() { return getenv("HOME"); }\n',
}
LONG_BODY = "int f() {\n" + "  g();\n" * 70 + "}\n"
# rule -> (path, content) that must raise it, and nothing else
PLANTS = [
    ("file-budget", "core/memory/a.cpp", HEAD + "int a;\n" * 600),
    ("line-width", "core/memory/a.cpp", HEAD + "// " + "x" * 98 + "\n"),
    ("line-width", "core/memory/a.cmake", HASH + "# " + "x" * 119 + "\n"),
    ("function-budget", "core/memory/a.cpp", HEAD + LONG_BODY),
    (
        "function-budget",
        "core/memory/a.cpp",
        HEAD + "namespace n { struct S { " + LONG_BODY + "}; }\n",
    ),
    (
        "function-budget",
        "core/memory/a.cpp",
        HEAD + "A::A(int x) : a_{x}, b_(2), c_{3} {\n" + "  g();\n" * 70 + "}\n",
    ),
    (
        "function-budget",
        "core/memory/a.cpp",
        HEAD
        + '#define X(a) {\nconst char* s = "}";\nstruct t* f(void) {\n'
        + "  g('{');\n" * 70
        + "}\n",
    ),
    ("include-direction", "abi/include/kvspan/a.h", HEAD + "#include <vector>\n"),
    ("include-direction", "abi/include/kvspan/sdk/a.hpp", HEAD + "#include <tl/expected.hpp>\n"),
    ("include-direction", "core/memory/a.cpp", HEAD + "#include <dlfcn.h>\n"),
    ("include-direction", "core/memory/a.cpp", HEAD + '#include "host/config.hpp"\n'),
    ("include-direction", "core/memory/a.cpp", HEAD + '#include "plugins/cpu/queue.hpp"\n'),
    ("include-direction", "core/memory/a.cpp", HEAD + "#include <kvspan/sdk/loader.hpp>\n"),
    ("include-direction", "plugins/cpu/a.cpp", HEAD + '#include "kvspan/core/error.hpp"\n'),
    ("include-direction", "plugins/cpu/a.cpp", HEAD + '#include "../stub/queue.hpp"\n'),
    ("include-direction", "host/model/a.cpp", HEAD + '#include "plugins/cpu/codec.hpp"\n'),
    ("include-direction", "host/a.cpp", HEAD + '#include "../plugins/cpu/codec.hpp"\n'),
    ("include-direction", "conformance/a.cpp", HEAD + '#include "host/config.hpp"\n'),
    (
        "include-direction",
        "conformance/runner/a.cpp",
        HEAD + '#include "kvspan/core/session/session.hpp"\n',
    ),
    ("include-direction", "conformance/runner/a.cpp", HEAD + '#include "../../core/a.hpp"\n'),
    ("include-direction", "conformance/runner/a.cpp", HEAD + "#include <dlfcn.h>\n"),
    (
        "include-direction",
        "conformance/runner/a.cpp",
        HEAD + "#include <kvspan/sdk/loader.hpp>\n",
    ),
    ("environment", "host/a.cpp", HEAD + 'auto v = std::getenv("X");\n'),
    ("open-library", "host/a.cpp", HEAD + "void* p = dlopen(name, 0);\n"),
    ("backend-name", "core/memory/a.cpp", HEAD + "// as CUDA does\n"),
    ("backend-name", "core/memory/a.cpp", HEAD + 'auto s = "kvspan-cpu.so";\n'),
    ("model-name", "plugins/cpu/a.cpp", HEAD + "// Llama only\n"),
    ("model-name", "core/memory/a.cpp", HEAD + "int qwen3_layers;\n"),
    ("clock", "core/memory/a.cpp", HEAD + "auto t = std::chrono::steady_clock::now();\n"),
    ("clock", "core/memory/a.cpp", HEAD + "auto t = clock_gettime(a, b);\n"),
    ("process-end", "host/a.cpp", HEAD + "void f() { std::abort(); }\n"),
    ("process-end", "plugins/cpu/a.cpp", HEAD + "void f() { exit(1); }\n"),
    ("open-end", "core/memory/a.cpp", HEAD + "// FIX" + "ME: later\n"),
    ("open-end", "core/memory/a.cpp", HEAD + "// TO" + "DO: later\n"),
    ("disabled-test", "core/tests/a_test.cpp", HEAD + "TEST(A, DISABLED_B) {}\n"),
    ("foreign-path", "docs/a.md", "# A\n\nsee /home" + "/me/notes\n"),
    ("foreign-path", "docs/a.md", "# A\n\nsee .." + "/shared/notes\n"),
    ("cmake-glob", "core/CMakeLists.txt", HASH + "file(GLOB sources *.cpp)\n"),
    ("unlisted", "core/memory/b.cpp", HEAD),
    ("unlisted", "abi/include/kvspan/b.h", HEAD),
    ("empty-name", "core/memory/utils.cpp", HEAD),
    ("empty-name", "core/memory/arena_helper.hpp", HEAD),
    ("spdx", "core/memory/a.cpp", "// A file.\n"),
    ("spdx", "core/memory/a.py", '#!/usr/bin/python3\n"""A file."""\n'),
    ("head", "core/memory/a.hpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"),
    ("title", "docs/a.md", "# A\n\n# B\n"),
    ("title", "docs/a.md", "No title.\n"),
    ("dead-link", "docs/a.md", "# A\n\n[b](b.md)\n"),
    ("changelog", "CHANGELOG.md", "# Changelog\n\n## Version one\n"),
    ("changelog", "CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n### News\n"),
    ("blob", "docs/a.txt", "x" * 100_001),
    ("codemap", "core/newfolder/a.cpp", HEAD),
    (
        "codemap",
        "docs/CODEMAP.md",
        "# Map\n\n`core/` `core/memory/` `docs/` `host/` `core/gone/`\n",
    ),
]
ALLOWED = [
    ("core/memory/a.cpp", HEAD + "// getenv and dlopen() are the host's\nint next_exit(int a);\n"),
    ("core/memory/a.cpp", HEAD + "// TO" + "DO (#12): faster\n"),
    ("core/memory/a.cpp", HEAD + "void f() { budget.exit(1); on_exit(2); }\n"),
    (
        "core/memory/a.cpp",
        HEAD + "int a[] = {\n" + "  1,\n" * 90 + "};\nint f() {\n  return 1;\n}\n",
    ),
    ("core/memory/a.cpp", HEAD + "struct alignas(64) S {\n" + "  int a;\n" * 90 + "};\n"),
    ("core/memory/a.cpp", HEAD + "int f() {\n" + "  g();\n" * 68 + "}\n"),
    ("core/memory/isa_v2.cpp", HEAD),
    (
        "docs/a.md",
        "# A\n\n```sh\n# not a title\n```\n\n[map](CODEMAP.md) [web](https://example.org)\n",
    ),
]


def findings(files: dict[str, str]) -> list[tidy.Finding]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        return [f for f in tidy.run(root) if f.fatal]


def with_folders_mapped(files: dict[str, str], path: str, rule: str) -> dict[str, str]:
    """The plant's own folders are described, so that only the planted rule speaks."""
    if rule == "codemap":
        return files
    pieces = path.split("/")[:-1][:2]
    names = "".join(f" `{'/'.join(pieces[:n])}/`" for n in range(1, len(pieces) + 1))
    return {**files, "docs/CODEMAP.md": files["docs/CODEMAP.md"].rstrip() + names + "\n"}


class Tidy(unittest.TestCase):
    def test_clean_tree_passes(self):
        self.assertEqual(findings(CLEAN), [])

    def test_empty_tree_is_an_error(self):
        self.assertEqual([f.rule for f in findings({})], ["empty"])

    def test_each_plant_raises_its_rule_only(self):
        for rule, path, content in PLANTS:
            with self.subTest(rule=rule, path=path, content=content[:120]):
                found = findings(with_folders_mapped({**CLEAN, path: content}, path, rule))
                self.assertEqual({f.rule for f in found}, {rule}, [str(f) for f in found])

    def test_what_is_allowed_passes(self):
        for path, content in ALLOWED:
            with self.subTest(path=path, content=content[:120]):
                found = findings(with_folders_mapped({**CLEAN, path: content}, path, ""))
                self.assertEqual(found, [])

    def test_soft_budget_warns_only(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "a.cpp").write_text(HEAD + "int a;\n" * 450)
            rules = [(f.rule, f.fatal) for f in tidy.run(pathlib.Path(folder))]
        self.assertIn(("file-budget", False), rules)
        self.assertNotIn(("file-budget", True), rules)

    def test_every_rule_has_a_plant(self):
        source = "".join(pathlib.Path(m.__file__).read_text() for m in (tidy, tidy_parts))
        rules = set(re.findall(r'Finding\(\s*[^"]*?"([a-z-]+)",', source)) | {
            w.rule for w in tidy_parts.WORDS
        }
        self.assertEqual(rules - {rule for rule, _, _ in PLANTS} - {"empty"}, set())
        self.assertGreaterEqual(len(rules), 18)


if __name__ == "__main__":
    unittest.main()
