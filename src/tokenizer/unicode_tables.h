// What scripts/make_unicode_tables.py knows of Unicode. Use unicode.h and nfc.h.
#pragma once

#include <cstdint>
#include <span>

namespace tensorcache::tokenizer {

extern const std::span<const uint32_t> kCharClassRuns;  // first code << 2 | CharClass, of each run of equal classes
extern const std::span<const uint32_t> kCombiningClassRuns;  // first code << 8 | canonical combining class, likewise
extern const std::span<const uint64_t> kDecompositions;  // composes << 63 | code << 42 | first << 21 | second, by code

}  // namespace tensorcache::tokenizer
