#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every installed header compiles by itself, in each language that may include it, with no warning.

The ABI's headers as C11, C17 and C++20 by gcc and clang, without holes in their structs (-Wpadded);
the SDK's C++ headers as C++20 by g++ alone: what includes what is the same to both, and the rest of
what clang may say it says when the sanitizers' tests are built. The C reference in sdk/reference has tests of its own.

    tools/headers_alone.py [--include DIR]      exit 1 when one does not
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

STRICT = ["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror",
          "-march=x86-64-v2"]
C_LANGUAGES = [("gcc", "c11"), ("gcc", "c17"), ("clang-14", "c11"), ("clang-14", "c17")]
CXX_LANGUAGES = [("g++", "c++20"), ("clang++-14", "c++20")]


def compile_alone(command: str, standard: str, include: pathlib.Path, header: str,
                  padded: bool) -> str:
    """The compiler's complaint, or nothing."""
    language = "c++" if "++" in standard else "c"
    # Twice: the guard works. The declaration keeps -Wpedantic content with an otherwise empty file.
    text = f'#include "kvspan/{header}"\n' * 2 + "extern int kvspan_header_alone;\n"
    options = [*STRICT, *(["-Wpadded"] if padded else [])]
    everything = [command, f"-std={standard}", *options, f"-I{include}", "-x", language, "-"]
    done = subprocess.run(everything, input=text, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{header} as {standard} by {command}:\n{done.stderr}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--include", type=pathlib.Path, default=root / "abi" / "include")
    include = parser.parse_args().include
    abi = sorted(p.name for p in (include / "kvspan").glob("*.h"))
    sdk = sorted(f"sdk/{p.name}" for p in (include / "kvspan" / "sdk").glob("*.hpp"))
    if len(abi) < 10 or len(sdk) < 5:
        print(f"headers_alone: {len(abi)} + {len(sdk)} headers in {include}: wrong --include?")
        return 1
    jobs = [(c, s, h, True) for c, s in C_LANGUAGES + CXX_LANGUAGES for h in abi]
    jobs += [(c, s, h, False) for c, s in CXX_LANGUAGES[:1] for h in sdk]
    jobs = [job for job in jobs if shutil.which(job[0])]
    found = [text for c, s, h, padded in jobs if (text := compile_alone(c, s, include, h, padded))]
    for text in found:
        print(text)
    print(f"headers_alone: {len(jobs)} compilations, {len(found)} with complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
