#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The ABI's layout, read from the compiled headers, and the gate that keeps it append only.

A manifest lists every struct (size, alignment, fields with offset, size and type, slots with their
whole signature) and every KVSPAN_ constant, on which all compilers here must agree. Its SHA-256
gives KVSPAN_HEADER_HASH in version.h, which pairs host and plugin while the ABI's major is 0.

    tools/layout_manifest.py --check    the gate: headers, abi/frozen/<major>.<minor>.json and hash
                                        agree, and each frozen manifest is a prefix of the headers
    tools/layout_manifest.py --prefix   only the last of these
    tools/layout_manifest.py --write    regenerate manifest and hash. Major 0 may break, 1 may not
    tools/layout_manifest.py --print    show the manifest

Not seen: the names of a slot's arguments and what they mean. How a compiler is asked:
layout_view.py. layout_manifest_test.py plants one change per kind and expects the right answer.
"""
import argparse
import hashlib
import json
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from layout_view import COMPILERS, Compiler, GateError, view  # noqa: E402

STABLE, DRAFTS = ["kvspan.h"], ["graph.h"]
HASH_LINE = re.compile(r"^(#define KVSPAN_HEADER_HASH )0x[0-9a-fA-F]{16}ull$", re.M)


# --- the manifest ------------------------------------------------------------


def version(include: pathlib.Path) -> tuple[int, int]:
    text = (include / "kvspan/version.h").read_text()
    found = [
        re.search(rf"^#define KVSPAN_ABI_{part} (\d+)u$", text, re.M) for part in ("MAJOR", "MINOR")
    ]
    if not all(found):
        raise GateError("version.h does not define KVSPAN_ABI_MAJOR and KVSPAN_ABI_MINOR as <n>u")
    return int(found[0].group(1)), int(found[1].group(1))


def draft_names(include: pathlib.Path) -> set[str]:
    """What the draft headers define: their structs, handles and constants."""
    text = "\n".join((include / "kvspan" / header).read_text() for header in DRAFTS)
    return set(re.findall(r"\bstruct (kvspan_\w+)", text) + re.findall(r"#define (KVSPAN_\w+)", text))


def split(everything: dict, drafts: set[str]) -> dict:
    """The view with what is a draft apart under "drafts"."""
    stable, apart = {}, {}
    for part, entries in everything.items():
        if part == "opaque":
            stable[part] = [name for name in entries if name not in drafts]
            apart[part] = [name for name in entries if name in drafts]
        else:
            stable[part] = {name: entry for name, entry in entries.items() if name not in drafts}
            apart[part] = {name: entry for name, entry in entries.items() if name in drafts}
    return {**stable, "drafts": {part: entries for part, entries in apart.items() if entries}}


def manifest(root: pathlib.Path, compilers: list[Compiler]) -> dict:
    """The layout of root/include, on which all compilers agree."""
    include = root / "include"
    reference = None
    for compiler in compilers:
        seen = split(view(compiler, include, STABLE + DRAFTS), draft_names(include))
        if reference is not None and seen != reference:
            raise GateError(
                f"{compiler.name} and {compilers[0].name} see different layouts:\n"
                + "\n".join(differences(reference, seen))
            )
        reference = seen
    if reference is None or not reference["structs"] or not reference["constants"]:
        raise GateError("no compiler, or nothing found in the headers")
    major, minor = version(include)
    return {"format": 1, "abi": {"major": major, "minor": minor}, **reference}


def canonical(value: dict) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def header_hash(value: dict) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()[:16]


def differences(old, new, path: str = "") -> list[str]:
    """Leaves that differ, by path, for a person."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted(set(old) | set(new)):
            found += differences(old.get(key), new.get(key), f"{path}/{key}")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, pair in enumerate(zip(old, new))
            for line in differences(*pair, f"{path}[{i}]")
        ]
    return [] if old == new else [f"  {path}: {old} -> {new}"]


def breaks(old: dict, new: dict) -> list[str]:
    """Why a binary built for `old` would not work with `new`; empty when things were appended."""
    found = []
    for part in ("constants", "strings", "functions"):
        for name, entry in old[part].items():
            if new[part].get(name) != entry:
                found.append(f"{name} was {entry}, is {new[part].get(name, 'gone')}")
    found += [
        f"{name} is gone"
        for name in old["opaque"]
        if name not in new["opaque"] + list(new["structs"])
    ]
    for name, struct in old["structs"].items():
        found += struct_breaks(name, struct, new["structs"].get(name))
    return found


def struct_breaks(name: str, old: dict, new: "dict | None") -> list[str]:
    if new is None:
        return [f"{name} is gone"]
    found = []
    for i, field in enumerate(old["fields"]):
        now = new["fields"][i] if i < len(new["fields"]) else "nothing"
        if now != field:
            found.append(f"{name}: field {i} was {field}, is {now}")
    sized = bool(old["fields"]) and old["fields"][0]["name"] == "struct_size"
    if old["alignment"] != new["alignment"] or (old["size"] != new["size"] and not sized):
        found.append(
            f"{name}: {old['size']} bytes, aligned to {old['alignment']}, became {new['size']} and "
            f"{new['alignment']}; only structs that begin with struct_size may grow"
        )
    return found


# --- commands ------------------------------------------------------------


def frozen(root: pathlib.Path, major: int) -> dict[pathlib.Path, dict]:
    return {
        path: json.loads(path.read_text())
        for path in sorted((root / "frozen").glob(f"{major}.*.json"))
    }


def prefix_findings(root: pathlib.Path, now: dict) -> list[str]:
    baselines = frozen(root, now["abi"]["major"])
    if not baselines:
        return [
            f"{root}/frozen holds no manifest of major {now['abi']['major']}: a gate without a "
            "baseline checks nothing"
        ]
    return [f"{path.name}: {text}" for path, old in baselines.items() for text in breaks(old, now)]


def check(root: pathlib.Path, now: dict) -> list[str]:
    found = prefix_findings(root, now)
    path = root / "frozen" / f"{now['abi']['major']}.{now['abi']['minor']}.json"
    if not path.exists():
        found.append(f"{path.name} is missing")
    else:
        found += [
            f"{path.name} is stale:{line}"
            for line in differences(json.loads(path.read_text()), now)
        ]
    written = re.search(
        r"KVSPAN_HEADER_HASH 0x([0-9a-fA-F]{16})ull",
        (root / "include/kvspan/version.h").read_text(),
    )
    if written is None or written.group(1).lower() != header_hash(now):
        found.append(
            f"KVSPAN_HEADER_HASH in version.h is {written.group(1) if written else 'not there'}, "
            f"the headers have {header_hash(now)}"
        )
    return found


def write(root: pathlib.Path, now: dict) -> list[str]:
    major, minor = now["abi"]["major"], now["abi"]["minor"]
    for path, old in frozen(root, major).items():
        broken = breaks(old, now)
        if broken and major > 0:
            return [f"{path.name}: {text}" for text in broken]
        if broken and path.name != f"{major}.{minor}.json":
            print(f"removed {path.name}: these headers break it, which major 0 may")
            path.unlink()
    (root / "frozen").mkdir(exist_ok=True)
    target = root / "frozen" / f"{major}.{minor}.json"
    target.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    header = root / "include/kvspan/version.h"
    text, count = HASH_LINE.subn(rf"\g<1>0x{header_hash(now)}ull", header.read_text())
    if count != 1:
        return ["version.h has no line `#define KVSPAN_HEADER_HASH 0x<16 digits>ull` to write to"]
    header.write_text(text)
    print(f"wrote {target.name}, KVSPAN_HEADER_HASH 0x{header_hash(now)}")
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    for name in ("check", "prefix", "write", "print"):
        mode.add_argument("--" + name, action="store_true")
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "abi"
    )
    parser.add_argument(
        "--compilers", default="", help="words that a compiler's name holds, comma separated"
    )
    options = parser.parse_args()
    wanted = [word for word in options.compilers.split(",") if word]
    compilers = [
        c
        for c in COMPILERS
        if shutil.which(c.command[0])
        and (not wanted or any(word == c.command[0] for word in wanted))
    ]
    try:
        now = manifest(options.root, compilers)
        if options.print:
            print(json.dumps(now, indent=1, sort_keys=True))
            return 0
        found = (write if options.write else check if options.check else prefix_findings)(
            options.root, now
        )
    except GateError as problem:
        found = [str(problem)]
    for text in found:
        print(f"layout: {text}")
    if found:
        print("layout: after a change that is meant: tools/layout_manifest.py --write")
    elif not options.write:
        print(
            f"layout: {', '.join(c.name for c in compilers)} agree on "
            f"{len(now['structs'])} structs and "
            f"{len(now['constants'])} constants; hash {header_hash(now)}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
