// Token files, with a checksum that is right: an error, or documents that can be read.
#include <algorithm>
#include <cstring>
#include <span>

#include "core/checksum.h"
#include "data/token_file.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

using data::TokenFile;
using data::TokenFileWriter;

constexpr size_t kHeader = 16, kFooter = 48, kCounts = 32;

uint64_t Sum(std::initializer_list<std::string_view> parts) {
  Crc64 sum;
  for (const std::string_view part : parts) sum.Add(std::as_bytes(std::span(part)));
  return sum.value();
}

// Puts the checksums that belong there into a file: one for each block of tokens, and one for all else.
std::string Sealed(std::string_view input) {
  constexpr size_t kBlock = size_t{64} << 10;
  std::string file(input);
  if (file.size() < kHeader + kFooter) return file;
  const size_t footer = file.size() - kFooter;
  uint32_t token_bytes = 0;
  uint64_t tokens = 0;
  std::memcpy(&token_bytes, file.data() + 12, sizeof(token_bytes));
  std::memcpy(&tokens, file.data() + footer + 16, sizeof(tokens));
  if (tokens > file.size() || token_bytes > 4) return file;
  const size_t data = (tokens * token_bytes + 7) / 8 * 8, blocks = (data + kBlock - 1) / kBlock;
  const size_t sums = kHeader + data;
  if (sums + 8 * blocks > footer) return file;
  for (size_t i = 0; i < blocks; ++i) {
    const size_t size = std::min(kBlock, data - i * kBlock);
    file.replace(sums + 8 * i, 8, Raw(Sum({std::string_view(file).substr(kHeader + i * kBlock, size)})));
  }
  const std::string_view all = file;
  return file.replace(footer + kCounts, 8,
                      Raw(Sum({all.substr(0, kHeader), all.substr(sums, footer + kCounts - sums)})));
}

}  // namespace

void Run(std::string_view input) {
  const std::string bytes = Sealed(input);
  const auto file = TokenFile::FromMemory(std::as_bytes(std::span(bytes)), "fuzz");
  if (!file.ok()) return CheckMessage(file.status());
  TC_CHECK(file->vocab_size() > 0);
  int64_t at = 0;
  for (int64_t i = 0; i < file->documents(); ++i) {
    const auto [first, end] = file->document(i);
    TC_CHECK(first == at && end >= first);
    at = end;
    std::vector<int32_t> tokens(static_cast<size_t>(end - first));
    if (const Status status = file->Read(first, tokens); !status.ok()) {
      CheckMessage(status);
      continue;
    }
    for (const int32_t token : tokens) TC_CHECK(token >= 0 && token < file->vocab_size());
  }
  TC_CHECK(at == file->tokens());
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const int64_t vocabulary : {300, 100000}) {
    const std::string path = PathOf("tokens");
    auto writer = TokenFileWriter::Create(path, vocabulary, 42);
    TC_CHECK(writer.ok());
    for (const std::vector<int32_t>& document : {std::vector<int32_t>{1, 2, 299}, {}, {7}}) {
      TC_CHECK(writer->Append(document).ok());
      writer->EndDocument();
    }
    TC_CHECK(writer->Commit().ok());
    seeds.push_back(Get(path));
    TC_CHECK(Sealed(seeds.back()) == seeds.back());  // the format is as it is taken for here
  }
  return seeds;
}

std::vector<std::string> Words() {
  return {"tctokens", "tctokend", Raw(uint64_t{1} << 63), Raw(uint64_t{1} << 31), Raw(uint64_t{65536})};
}

}  // namespace tensorcache::fuzz
