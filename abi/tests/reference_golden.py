#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes reference_golden.hpp: rows of 32 floats and the bytes that each quantised type must store.
# Independent of the C reference: it knows the formulas of the format only, and computes every f32
# operation twice, in exact fractions rounded once and in doubles rounded to f32, and stops where
# the two differ.
# Use: reference_golden.py --write FILE | --check FILE   (exit 1: FILE is not what this writes)
import argparse
import math
import random
import struct
import sys
from fractions import Fraction

NAN = float("nan")
INF = float("inf")
FLT_MAX = float(2**128 - 2**104)


def bits_of(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def nearest(exact, precision, least_exponent, greatest):
    """The Fraction nearest to `exact`, ties to even, with `precision` bits and units of at least
    2**least_exponent. None where it rounds beyond `greatest`."""
    if exact == 0:
        return Fraction(0)
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, least_exponent)
    quotient = magnitude / unit
    whole = quotient.numerator // quotient.denominator
    rest = quotient - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    rounded = whole * unit
    if rounded > greatest:
        return None
    return rounded if exact > 0 else -rounded


def f32(value):
    """A double rounded to f32."""
    if math.isnan(value) or math.isinf(value):
        return value
    rounded = nearest(Fraction(value), 24, -149, Fraction(FLT_MAX))
    if rounded is None:
        return math.copysign(INF, value)
    return math.copysign(abs(float(rounded)), value)


def operation(name, x, y):
    """One f32 operation by doubles, which also gives Inf and NaN their IEEE rules; where both
    sides are finite it must equal the exact result rounded once."""
    function = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
    }[name]
    result = f32(function(x, y))
    if math.isfinite(x) and math.isfinite(y):
        exact = function(Fraction(x), Fraction(y))
        rounded = nearest(exact, 24, -149, Fraction(FLT_MAX))
        expected = math.copysign(INF, exact) if rounded is None else float(rounded)
        if expected != result:
            sys.exit(f"{x!r} {name} {y!r}: exact way {expected!r}, by doubles {result!r}")
    return result


def f16_bits(value):
    if math.isnan(value):
        return (bits_of(value) >> 16 & 0x8000) | 0x7E00
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    rounded = None if math.isinf(value) else nearest(abs(Fraction(value)), 11, -24, Fraction(65504))
    if rounded is None:
        return sign | 0x7C00
    return sign | struct.unpack("<H", struct.pack("<e", float(rounded)))[0]


def low_byte(value):
    if math.isnan(value) or not -(2.0**31) <= value < 2.0**31:
        return 0
    return int(value) & 0xFF  # int() truncates toward zero


def round_half_away(value):
    if math.isnan(value) or math.isinf(value):
        return value
    return math.copysign(math.floor(Fraction(abs(value)) + Fraction(1, 2)), value)


def as_i8(byte):
    return byte - 256 if byte > 127 else byte


def reciprocal(d):
    return 0.0 if d == 0 else operation("/", 1.0, d)


def nibbles(numbers):
    return bytes((numbers[j] | numbers[j + 16] << 4) & 0xFF for j in range(16))


def fives(numbers):
    high = sum((number >> 4 & 1) << j for j, number in enumerate(numbers))
    return struct.pack("<I", high) + nibbles([number & 15 for number in numbers])


def symmetric(row, levels):
    magnitude, big = 0.0, 0.0
    for x in row:
        if magnitude < abs(x):
            magnitude, big = abs(x), x
    d = operation("/", big, -float(levels))
    scale = reciprocal(d)
    numbers = []
    for x in row:
        shifted = operation("+", operation("*", x, scale), levels + 0.5)
        numbers.append(min(2 * levels - 1, as_i8(low_byte(shifted))) & 0xFF)
    head = struct.pack("<H", f16_bits(d))
    return head + (nibbles(numbers) if levels == 8 else fives(numbers))


def offset(row, most):
    low, high = FLT_MAX, -FLT_MAX
    for x in row:
        if x < low:
            low = x
        if x > high:
            high = x
    d = operation("/", operation("-", high, low), float(most))
    scale = reciprocal(d)
    numbers = []
    for x in row:
        byte = low_byte(operation("+", operation("*", operation("-", x, low), scale), 0.5))
        numbers.append(min(15, as_i8(byte)) & 0xFF if most == 15 else byte)
    head = struct.pack("<HH", f16_bits(d), f16_bits(low))
    return head + (nibbles(numbers) if most == 15 else fives(numbers))


def q8_0(row):
    amax = 0.0
    for x in row:
        amax = amax if amax > abs(x) else abs(x)
    d = operation("/", amax, 127.0)
    scale = reciprocal(d)
    numbers = bytes(low_byte(round_half_away(operation("*", x, scale))) for x in row)
    return struct.pack("<H", f16_bits(d)) + numbers


ENCODERS = [
    ("q8_0", q8_0),
    ("q4_0", lambda row: symmetric(row, 8)),
    ("q4_1", lambda row: offset(row, 15)),
    ("q5_0", lambda row: symmetric(row, 16)),
    ("q5_1", lambda row: offset(row, 31)),
]


def with_value(row, changes):
    row = list(row)
    for index, value in changes.items():
        row[index] = f32(value)
    return row


def cases():
    source = random.Random(20261129)
    ramp = [f32((j - 11) / 7) for j in range(32)]
    yield "zeros", [0.0] * 32
    yield "negative_zeros", [-0.0] * 32
    yield "mixed_zeros", [0.0, -0.0] * 16
    yield "ones", [1.0] * 32
    yield "ramp", ramp
    yield "falling_ramp", [-x for x in ramp]
    yield "largest_is_positive", with_value(ramp, {9: 100.0})
    yield "largest_is_negative", with_value(ramp, {9: -100.0})
    yield "equal_magnitudes_positive_first", with_value(ramp, {3: 8.0, 20: -8.0})
    yield "equal_magnitudes_negative_first", with_value(ramp, {3: -8.0, 20: 8.0})
    # The scale is 1 in the type of the name, which meets exact halves there.
    yield "halves_q8_0", [127.0] + [j - 15.5 for j in range(31)]
    yield "halves_q4_0", [-8.0] + [j / 2 - 7.5 for j in range(31)]
    yield "halves_q5_0", [-16.0] + [j - 15.5 for j in range(31)]
    yield "halves_q4_1", [0.0, 15.0] + [j / 2 for j in range(30)]
    yield "halves_q5_1", [0.0, 31.0] + [j + 0.5 for j in range(30)]
    just_below = float_of(bits_of(0.5) - 1)
    yield "just_below_a_half", [0.0, 15.0, 31.0] + [just_below, -just_below] * 14 + [127.0]
    yield "f16_scale_subnormal", [f32(x * 2.0**-20) for x in ramp]
    yield "f16_scale_underflows", [f32(x * 2.0**-30) for x in ramp]
    yield "f16_scale_overflows", [f32(x * 2.0**24) for x in ramp]
    yield "f16_scale_tie", [f32(127 * (1 + 2.0**-11))] + [1.0] * 31
    yield "reciprocal_overflows", [f32(x * 2.0**-130) for x in ramp]
    yield "f32_subnormals", [float_of(j * 3) if j % 2 else -float_of(j * 5) for j in range(32)]
    yield "least_subnormal", with_value([0.0] * 32, {7: 2.0**-149})
    yield "difference_overflows", with_value(ramp, {0: FLT_MAX, 31: -FLT_MAX})
    yield "positive_infinity", with_value(ramp, {5: INF})
    yield "negative_infinity", with_value(ramp, {21: -INF})
    yield "both_infinities", with_value(ramp, {5: -INF, 21: INF})
    yield "infinities_only", [INF] * 32
    yield "nan_first", with_value(ramp, {0: NAN})
    yield "nan_in_the_middle_resets_q8_0", with_value(ramp, {1: 9000.0, 15: NAN})
    yield "nan_last", with_value(ramp, {31: NAN})
    yield "negative_nan_with_payload_last", ramp[:31] + [-NAN]
    yield "nan_only", [NAN] * 32
    yield "nan_and_infinity", with_value(ramp, {4: NAN, 5: INF})
    for index, spread in enumerate((1.0, 1.0, 0.02, 300.0, 1e-6, 2e4)):
        yield f"random_{index}", [f32(source.gauss(0.0, spread)) for _ in range(32)]


def chunks(text, width):
    return [text[i:i + width] for i in range(0, len(text), width)]


def document():
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Golden rows of the quantised types: 32 floats as bits, and what each type stores.",
        "// Written by reference_golden.py, which is independent of the C reference.",
        "// Not edited by hand: change the script and run it.",
        "// Read next: reference_quant_test.cpp, which compares.",
        "#pragma once",
        "",
        "namespace kvspan::test {",
        "",
        "struct GoldenRow {",
        "  const char* name;",
        "  const char* x;     // 32 u32, 8 hexadecimal digits each, the bits of x[0] first",
        "  const char* q8_0;  // bytes in memory order, 2 digits each; so are the others",
        "  const char* q4_0;",
        "  const char* q4_1;",
        "  const char* q5_0;",
        "  const char* q5_1;",
        "};",
        "",
        "inline constexpr GoldenRow kGoldenRows[] = {",
    ]
    for name, row in cases():
        assert len(row) == 32
        text = "".join(f"{bits_of(x):08x}" for x in row)
        if name.startswith("negative_nan_with_payload"):
            text = text[:-8] + "ffc12345"
        lines.append(f'    {{"{name}",')
        lines += [f'     "{part}"' for part in chunks(text, 80)]
        lines[-1] += ","
        for _, encode in ENCODERS:
            lines.append(f'     "{encode(row).hex()}",')
        lines[-1] = lines[-1][:-1] + "},"
    lines += ["};", "", "}  // namespace kvspan::test", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Golden rows of the quantised types.")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", metavar="FILE")
    group.add_argument("--check", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.write:
        with open(arguments.write, "w", encoding="utf-8") as file:
            file.write(document())
        return 0
    with open(arguments.check, encoding="utf-8") as file:
        if file.read() == document():
            return 0
    print(f"{arguments.check}: not what this script writes; run --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
