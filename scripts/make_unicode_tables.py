#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.cc from python's unicodedata, or from the package unicodedata2.

  scripts/make_unicode_tables.py            write the file
  scripts/make_unicode_tables.py --digests  print the figures that unicode_test.cc compares with
"""
import pathlib
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# Of the regular expressions in Hugging Face's tokenizers 0.22: \p{L}, \p{N} and \s are the same for every code point.
VERSION = "16.0.0"
LAST = 0x10FFFF
OTHER, LETTER, NUMBER, SPACE = range(4)
SURROGATES = range(0xD800, 0xE000)
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/tokenizer/unicode_tables.cc"


def char_class(code):
    category = unicodedata.category(chr(code))
    # The property White_Space is exactly the separators, TAB to CR and NEL.
    if category[0] == "Z" or 0x09 <= code <= 0x0D or code == 0x85:
        return SPACE
    return {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)


def runs(value_of, bits):
    """(first code << bits | value) of each maximal run of equal values."""
    packed, last = [], None
    for code in range(LAST + 1):
        value = value_of(code)
        if value != last:
            packed.append(code << bits | value)
        last = value
    return packed


def decompositions():
    """composes << 63 | code << 42 | first << 21 | second, by code; second is 0 for singletons."""
    packed = []
    for code in range(LAST + 1):
        mapping = unicodedata.decomposition(chr(code))
        if not mapping or mapping.startswith("<"):
            continue
        parts = [int(part, 16) for part in mapping.split()]
        composes = len(parts) == 2 and unicodedata.normalize("NFC", "".join(map(chr, parts))) == chr(code)
        first, second = (parts + [0])[:2]
        packed.append(composes << 63 | code << 42 | first << 21 | second)
    return packed


def table(kind, name, values, width):
    per_line = 119 // (width + 4)
    lines = ["    " + ", ".join(f"0x{v:0{width}X}" for v in values[i:i + per_line]) + ","
             for i in range(0, len(values), per_line)]
    lines[-1] = lines[-1].rstrip(",")
    return (f"static constexpr {kind} k{name}Values[] = {{\n" + "\n".join(lines) + "};\n"
            f"constinit const std::span<const {kind}> k{name} = k{name}Values;\n")


def write():
    parts = [
        f"// Made by scripts/make_unicode_tables.py from Unicode {VERSION}. Do not edit.\n"
        '#include "tokenizer/unicode_tables.h"\n\n// clang-format off\nnamespace tensorcache::tokenizer {\n',
        table("uint32_t", "CharClassRuns", runs(char_class, 2), 6),
        table("uint32_t", "CombiningClassRuns", runs(lambda code: unicodedata.combining(chr(code)), 8), 8),
        table("uint64_t", "Decompositions", decompositions(), 16),
        "}  // namespace tensorcache::tokenizer\n",
    ]
    OUTPUT.write_text("\n".join(parts))


def fnv1a(digest, data):
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return digest


def print_digests():
    basis = 0xCBF29CE484222325
    classes, normalized = basis, basis
    for code in range(LAST + 1):
        classes = fnv1a(classes, [char_class(code)])
        if code not in SURROGATES:
            text = chr(code) + "a" + chr(code) + "\u0301\u0323" + chr(code)
            normalized = fnv1a(normalized, unicodedata.normalize("NFC", text).encode())
    print(f"classes 0x{classes:016X}\nnormalized 0x{normalized:016X}")


if __name__ == "__main__":
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this is Unicode {unicodedata.unidata_version}, not {VERSION}; pip install unicodedata2=={VERSION}")
    if sys.argv[1:] == ["--digests"]:
        print_digests()
    elif not sys.argv[1:]:
        write()
    else:
        sys.exit(__doc__)
