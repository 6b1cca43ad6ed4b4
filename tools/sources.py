#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""clang-format and clang-tidy, version 14 exactly, over our C and C++ files.

    tools/sources.py format [--check]
    tools/sources.py lint --build build/dev [--all] [--together] [--jobs N] [part...]

`lint` without --all leaves the static analyzer and the test files out. --together looks at all files
of a part as one, which reads the standard library once and not once a file: a fifteenth of the time,
and what ctest runs. Only a file alone shows aliases that it does not use, and an include that is
missing. What passed is not looked at again until it, one of our headers, its compile command or
.clang-tidy changes.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tidy_tree  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The analyzer takes most of the time; `lint --all` and `./dev tidy` run it.
QUICK = "-clang-analyzer-*"
TOGETHER = "-bugprone-suspicious-include"  # a .cpp that is included: what --together is


def format_sources(check: bool) -> int:
    paths = tidy_tree.Tree(ROOT).sources()
    if not paths:
        print("format: no sources found")
        return 1
    mode = ["--dry-run", "-Werror"] if check else ["-i"]
    done = subprocess.run(["clang-format-14", *mode, *paths], cwd=ROOT, check=False)
    print(f"format: {len(paths)} files {'looked at' if check else 'written'}")
    return done.returncode


def header_digest() -> str:
    digest = hashlib.sha256()
    tree = tidy_tree.Tree(ROOT)
    for path in [p for p in tree.sources() if p.endswith((".h", ".hpp"))] + [".clang-tidy"]:
        digest.update(path.encode() + b"\0" + (ROOT / path).read_bytes())
    return digest.hexdigest()


def flags_of(entry: dict) -> str:
    """What of a compile command is not about this one file."""
    words = shlex.split(entry["command"])
    named = {entry["file"], entry["file"] + ".o"}
    return " ".join(w for w in words if w not in named and not w.endswith((".o", ".o.d")))


def put_together(build: pathlib.Path, part: str, entries: list[dict]) -> list[dict]:
    """For all entries with the same flags, one for a file that includes theirs."""
    by_flags: dict[str, list[dict]] = {}
    for entry in entries:
        by_flags.setdefault(flags_of(entry), []).append(entry)
    return [put_alike_together(build / "tidy-together" / part / str(number), alike)
            for number, alike in enumerate(by_flags.values())]


def put_alike_together(folder: pathlib.Path, entries: list[dict]) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "all.cpp"
    files = sorted(entry["file"] for entry in entries)
    path.write_text("".join(f'#include "{file}"\n' for file in files))
    first = entries[0]
    made = {"directory": first["directory"], "file": str(path),
            "command": first["command"].replace(first["file"], str(path))}
    (folder / "compile_commands.json").write_text(json.dumps([made]))
    return {**made, "files": files}


def lint_one(build: pathlib.Path, entry: dict, everything: bool, headers: str) -> tuple[str, str]:
    """(path, complaint); the complaint is empty when clang-tidy is content."""
    path = pathlib.Path(entry["file"])
    texts = [pathlib.Path(file).read_text() for file in entry.get("files", [path])]
    key = "\0".join([headers, entry["command"], str(everything), *texts])
    stamp = build / "tidy-passed" / hashlib.sha256(key.encode()).hexdigest()
    if stamp.exists():
        return str(path), ""
    # The build's own compiler may know warnings that this one does not.
    together = "files" in entry
    checks = [*([] if everything else [QUICK]), *([TOGETHER] if together else [])]
    command = ["clang-tidy-14", "--quiet", "-p", str(path.parent if together else build), str(path),
               f"--config-file={ROOT / '.clang-tidy'}", "--extra-arg=-Wno-unknown-warning-option"]
    command += ["--checks=" + ",".join(checks)] if checks else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
        return str(path), ""
    return str(path), done.stdout + done.stderr


def lint(build: pathlib.Path, everything: bool, together: bool, jobs: int,
         parts: list[str]) -> int:
    database = build / "compile_commands.json"
    if not database.exists():
        print(f"lint: {database} is missing: configure first (./dev build)")
        return 1
    entries = []
    for entry in json.loads(database.read_text()):
        path = os.path.relpath(entry["file"], ROOT)
        ours = not path.startswith("..") and not path.startswith("build/")
        # Device code is nvcc's: version 14 cannot read CUDA 13.
        ours = ours and not path.endswith(".cu")
        if (
            ours
            and (everything or not tidy_tree.is_test(path))
            and (not parts or path.startswith(tuple(parts)))
        ):
            entries.append(entry)
    if not entries:
        print("lint: no files chosen")
        return 1
    count = len(entries)
    if together:
        of_parts = {part: [e for e in entries if os.path.relpath(e["file"], ROOT).startswith(part)]
                    for part in parts}
        entries = [made for part, some in of_parts.items() for made in put_together(build, part, some)]
    headers, failed = header_digest(), 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in [
            pool.submit(lint_one, build, entry, everything, headers) for entry in entries
        ]:
            path, complaint = future.result()
            if complaint:
                failed += 1
                print(f"--- {path}\n{complaint}")
    print(f"lint: {count} files, {failed} with complaints")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("format").add_argument("--check", action="store_true")
    lint_parser = verbs.add_parser("lint")
    lint_parser.add_argument("--build", type=pathlib.Path, required=True)
    lint_parser.add_argument("--all", action="store_true")
    lint_parser.add_argument("--together", action="store_true")
    lint_parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    lint_parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    if arguments.verb == "format":
        return format_sources(arguments.check)
    return lint(arguments.build.resolve(), arguments.all, arguments.together, arguments.jobs,
                arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
