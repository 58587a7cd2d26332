#include "core/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

namespace tensorcache {
namespace {

using Shape = std::vector<int64_t>;

std::string TestPath() { return ::testing::TempDir() + "/safetensors_test.safetensors"; }

// A file from a header's text and `data_bytes` of data.
std::string File(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file.append(header).append(data_bytes, '\x01');
}

Result<SafetensorsFile> Parse(std::string_view file) {
  return SafetensorsFile::FromMemory(std::as_bytes(std::span(file)), "test");
}

std::string ErrorOf(std::string_view file) {
  const auto result = Parse(file);
  if (result.ok()) return "ok";
  EXPECT_EQ(result.status().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(result.status().message().starts_with("test: ")) << result.status().message();
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  return result.status().message().substr(6);
}

std::string HeaderError(std::string_view header, size_t data_bytes) { return ErrorOf(File(header, data_bytes)); }

// The content of a small file with every kind of entry, as the writer makes it.
std::string SmallFile() {
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const std::vector<int8_t> bytes = {1, 2, 3};
  SafetensorsWriter writer;
  writer.Add("b.bytes", {3}, bytes.data());
  writer.Add("a.weights", {2, 3}, weights.data());
  writer.Add("empty", {0, 5}, weights.data());
  writer.Add("scalar", {}, weights.data());
  writer.SetMetadata("format", "t\u00e9st");
  EXPECT_TRUE(writer.Write(TestPath()).ok());
  return ReadWholeFile(TestPath(), 1 << 20).value();
}

TEST(Safetensors, RoundTrip) {
  SmallFile();
  const auto opened = SafetensorsFile::Open(TestPath());
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const SafetensorsFile& file = *opened;
  EXPECT_EQ(file.names(), (std::vector<std::string_view>{"a.weights", "b.bytes", "empty", "scalar"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "t\u00e9st"}}));
  const auto weights = file.Values<float>("a.weights", Shape{2, 3});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(std::vector<float>(weights->begin(), weights->end()), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ((*file.Values<int8_t>("b.bytes", Shape{3}))[2], 3);
  EXPECT_EQ(file.Values<float>("scalar", Shape{})->size(), 1u);
  EXPECT_EQ(file.Values<float>("empty", Shape{0, 5})->size(), 0u);
  const auto any = file.Find("b.bytes");
  EXPECT_EQ(any->dtype, DType::kI8);
  EXPECT_EQ(any->data.size(), 3u);
}

TEST(Safetensors, EveryDtypeHasItsNameAndSize) {
  for (const auto& [name, bytes] : std::map<std::string, int64_t>{{"F64", 8},
                                                                  {"F32", 4},
                                                                  {"F16", 2},
                                                                  {"BF16", 2},
                                                                  {"I64", 8},
                                                                  {"I32", 4},
                                                                  {"I16", 2},
                                                                  {"I8", 1},
                                                                  {"U64", 8},
                                                                  {"U32", 4},
                                                                  {"U16", 2},
                                                                  {"U8", 1},
                                                                  {"BOOL", 1},
                                                                  {"F8_E4M3", 1},
                                                                  {"F8_E5M2", 1}}) {
    const auto dtype = DTypeFromName(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(DTypeName(*dtype), name);
    EXPECT_EQ(DTypeBytes(*dtype), bytes) << name;
  }
  EXPECT_EQ(DTypeFromName("F4"), std::nullopt);
}

TEST(Safetensors, TheFileDoesNotDependOnTheOrderOfAdding) {
  const std::vector<double> data = {1, 2};
  const auto write = [&](bool forward) {
    SafetensorsWriter writer;
    for (int i = 0; i < 20; ++i) {
      const int k = forward ? i : 19 - i;
      writer.Add(std::string("t").append(std::to_string(k)), k % 2 == 0 ? DType::kF64 : DType::kU8, {k % 3},
                 data.data());
    }
    EXPECT_TRUE(writer.Write(TestPath()).ok());
    return ReadWholeFile(TestPath(), 1 << 20).value();
  };
  const std::string file = write(true);
  EXPECT_EQ(write(false), file);
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
  EXPECT_TRUE(SafetensorsFile::Open(TestPath())->Values<double>("t2", Shape{2}).ok());
}

TEST(Safetensors, TensorsMadeWhileWritingAreLikeOthers) {
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const auto write = [&](bool made) {
    SafetensorsWriter writer;
    if (made) {
      writer.AddMade("b", DType::kF32, {2, 3}, [&](std::span<std::byte> out) {
        ASSERT_EQ(out.size(), 24u);
        std::memcpy(out.data(), weights.data(), out.size());
      });
    } else {
      writer.Add("b", {2, 3}, weights.data());
    }
    writer.Add("a", {1}, weights.data());
    writer.Add("empty", DType::kF32, {0}, nullptr);
    EXPECT_EQ(writer.data_bytes(), 28);
    std::vector<int64_t> reports;
    EXPECT_TRUE(writer
                    .Write(TestPath(),
                           [&](int64_t done, int64_t total) {
                             EXPECT_EQ(total, 28);
                             reports.push_back(done);
                           })
                    .ok());
    EXPECT_EQ(reports, (std::vector<int64_t>{4, 28}));
    return ReadWholeFile(TestPath(), 1 << 20).value();
  };
  EXPECT_EQ(write(true), write(false));
}

TEST(Safetensors, AnEmptyFileOfNoTensorsIsValid) {
  ASSERT_TRUE(SafetensorsWriter().Write(TestPath()).ok());
  EXPECT_TRUE(SafetensorsFile::Open(TestPath())->names().empty());
}

TEST(Safetensors, NamesMayBeAnything) {
  const uint8_t byte = 5;
  SafetensorsWriter writer;
  for (const std::string name : {"", "quote\"back\\slash", "new\nline", "\u20ac"}) writer.Add(name, {1}, &byte);
  ASSERT_TRUE(writer.Write(TestPath()).ok());
  EXPECT_TRUE(SafetensorsFile::Open(TestPath())->Values<uint8_t>("quote\"back\\slash", Shape{1}).ok());
}

TEST(Safetensors, LookupErrorsSayWhatIsThere) {
  SmallFile();
  const auto file = SafetensorsFile::Open(TestPath());
  const Status missing = file->Find("a.weight").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), TestPath() + ": no tensor 'a.weight'; did you mean 'a.weights'?");
  EXPECT_EQ(file->Find("transformer").status().message(), TestPath() + ": no tensor 'transformer' among its 4");
  const Status shape = file->Values<float>("a.weights", Shape{3, 2}).status();
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.message(), TestPath() + ": tensor 'a.weights' is F32 [2, 3], expected F32 [3, 2]");
  EXPECT_FALSE(file->Values<int32_t>("a.weights", Shape{2, 3}).ok());
}

TEST(Safetensors, UnalignedValuesAreRefusedNotRead) {
  const std::string file = File(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                R"("y":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                                R"("z":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}})",
                                9);
  const auto parsed = Parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  int refused = 0;
  std::vector<char> copy(file.size() + 4);
  for (int shift = 0; shift < 4; ++shift) {  // wherever the buffer starts, one of four starts aligns y
    std::memcpy(copy.data() + shift, file.data(), file.size());
    const auto moved = Parse(std::string_view(copy.data() + shift, file.size()));
    refused += moved->Values<float>("y", Shape{1}).status().code() == StatusCode::kUnsupported;
  }
  EXPECT_EQ(refused, 3);
}

TEST(Safetensors, OpenErrorsNameTheFile) {
  EXPECT_EQ(SafetensorsFile::Open(TestPath() + ".none").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(TestPath(), "").ok());
  const Status empty = SafetensorsFile::Open(TestPath()).status();
  EXPECT_EQ(empty.code(), StatusCode::kCorrupt);
  EXPECT_TRUE(empty.message().starts_with(TestPath()));
}

TEST(SafetensorsCorrupt, HeaderLength) {
  EXPECT_EQ(ErrorOf("1234567"), "not a safetensors file: shorter than 8 bytes");
  EXPECT_EQ(ErrorOf(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "truncated: a header of 3 bytes in a file of 10");
  EXPECT_EQ(ErrorOf(std::string(8, '\xff') + "{}"),
            "not a safetensors file: a header of 18446744073709551615 bytes, allowed are 100000000");
  EXPECT_EQ(HeaderError("", 0), "not a safetensors file: the header does not start with '{'");
  EXPECT_EQ(HeaderError(" {}", 0), "not a safetensors file: the header does not start with '{'");
}

TEST(SafetensorsCorrupt, HeaderText) {
  EXPECT_EQ(HeaderError("{\"\xff\": 1}", 0), "header: line 1, column 3: not UTF-8");
  EXPECT_EQ(HeaderError("{]", 0).substr(0, 30), "header: line 1, column 2: synt");
  EXPECT_EQ(HeaderError("{} {}", 0).substr(0, 30), "header: line 1, column 4: synt");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{}})", 1),
            "header: line 1, column 56: duplicate key 'x'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"U8","dtype":"U8"}})", 1), "header: line 1, column 26: duplicate key 'dtype'");
  EXPECT_EQ(HeaderError(R"({"x":{"shape":[[1]]}})", 0), "header: line 1, column 16: nested deeper than 3");
  std::string many = R"({"x":{"shape":[0)";
  for (int i = 0; i < 4'000'000; ++i) many += ",0";
  EXPECT_NE(HeaderError(many + "]}}", 0).find("more than 4000000 values"), std::string::npos);
}

TEST(SafetensorsCorrupt, TensorEntries) {
  EXPECT_EQ(HeaderError(R"({"x":7})", 0), "tensor 'x': not an object");
  EXPECT_EQ(HeaderError(R"({"x":{"shape":[],"data_offsets":[0,0]}})", 0), "tensor 'x': no string 'dtype'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":1,"shape":[],"data_offsets":[0,0]}})", 0), "tensor 'x': no string 'dtype'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"F31","shape":[],"data_offsets":[0,0]}})", 0),
            "tensor 'x': unknown dtype 'F31'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"F32","data_offsets":[0,0]}})", 0), "tensor 'x': no array 'shape'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"F32","shape":[]}})", 0), "tensor 'x': no array 'data_offsets'");
  EXPECT_EQ(HeaderError(R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4],"y":0}})", 4),
            "tensor 'x': unknown key 'y'");
  EXPECT_EQ(HeaderError(R"({"a\nb":7})", 0), "tensor 'a\\x0ab': not an object");
}

TEST(SafetensorsCorrupt, Shapes) {
  const auto error = [](const std::string& shape) {
    return HeaderError(R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]}})", 8);
  };
  EXPECT_EQ(error("[2]"), "ok");
  EXPECT_EQ(error("[-2]"), "tensor 'x': 'shape' holds -2, which is not a size");
  EXPECT_EQ(error("[2.0]"), "tensor 'x': 'shape' holds 2.0, which is not a size");
  EXPECT_EQ(error("[1.5]"), "tensor 'x': 'shape' holds 1.5, which is not a size");
  EXPECT_EQ(error("[\"2\"]"), "tensor 'x': 'shape' holds string, which is not a size");
  EXPECT_EQ(error("[9223372036854775808]"), "tensor 'x': 'shape' holds 9223372036854775808, which is not a size");
  EXPECT_EQ(error("[1e30]"), "tensor 'x': 'shape' holds 1e+30, which is not a size");
  EXPECT_EQ(error("[9223372036854775807]"), "tensor 'x': its shape has too many elements");
  EXPECT_EQ(error("[4294967296,4294967296]"), "tensor 'x': its shape has too many elements");
  EXPECT_EQ(error("[4294967296,1073741824,2]"), "tensor 'x': its shape has too many elements");
  EXPECT_EQ(error("2"), "tensor 'x': no array 'shape'");
  EXPECT_EQ(error("[3]"), "tensor 'x': F32 [3] needs 12 bytes, its data_offsets hold 8");
}

TEST(SafetensorsCorrupt, Offsets) {
  const auto error = [](const std::string& offsets) {
    return HeaderError(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}}", 4);
  };
  EXPECT_EQ(error("[0,4]"), "ok");
  EXPECT_EQ(error("[0,5]"), "tensor 'x': ends at 5, past the data's 4 bytes");
  EXPECT_EQ(error("[0,9223372036854775807]"), "tensor 'x': ends at 9223372036854775807, past the data's 4 bytes");
  EXPECT_EQ(error("[4,0]"), "tensor 'x': begins at 4, after its end 0");
  EXPECT_EQ(error("[-4,0]"), "tensor 'x': 'data_offsets' holds -4, which is not a size");
  EXPECT_EQ(error("[0]"), "tensor 'x': 1 data_offsets instead of 2");
  EXPECT_EQ(error("[0,4,4]"), "tensor 'x': 3 data_offsets instead of 2");
  EXPECT_EQ(error("{}"), "tensor 'x': no array 'data_offsets'");
}

TEST(SafetensorsCorrupt, Coverage) {
  const auto two = [](int begin_x, int end_x, int begin_y, int end_y) {
    std::ostringstream header;
    const auto entry = [&](std::string_view name, int begin, int end) {
      header << '"' << name << R"(":{"dtype":"U8","shape":[)" << end - begin << R"(],"data_offsets":[)" << begin << ','
             << end << "]}";
    };
    header << '{';
    entry("x", begin_x, end_x);
    header << ',';
    entry("y", begin_y, end_y);
    header << '}';
    return HeaderError(header.str(), 8);
  };
  EXPECT_EQ(two(0, 4, 4, 8), "ok");
  EXPECT_EQ(two(4, 8, 0, 4), "ok");
  EXPECT_EQ(two(0, 8, 8, 8), "ok");
  EXPECT_EQ(two(0, 0, 0, 8), "ok");
  EXPECT_EQ(two(0, 5, 4, 8), "tensors 'x' and 'y' overlap");
  EXPECT_EQ(two(0, 8, 0, 8), "tensors 'x' and 'y' overlap");
  EXPECT_EQ(two(0, 8, 3, 3), "tensors 'x' and 'y' overlap");
  EXPECT_EQ(two(0, 3, 4, 8), "1 bytes before tensor 'y' belong to no tensor");
  EXPECT_EQ(two(1, 4, 4, 8), "1 bytes before tensor 'x' belong to no tensor");
  EXPECT_EQ(two(0, 4, 4, 6), "the last 2 bytes belong to no tensor");
  EXPECT_EQ(HeaderError("{}", 3), "the last 3 bytes belong to no tensor");
}

TEST(SafetensorsCorrupt, Metadata) {
  EXPECT_EQ(HeaderError(R"({"__metadata__":{"a":"b"}})", 0), "ok");
  EXPECT_EQ(HeaderError(R"({"__metadata__":[]})", 0), "__metadata__: not an object");
  EXPECT_EQ(HeaderError(R"({"__metadata__":{"a":1}})", 0), "__metadata__: the value of 'a' is not a string");
}

TEST(SafetensorsCorrupt, EveryTruncationIsAnError) {
  const std::string file = SmallFile();
  for (size_t size = 0; size < file.size(); ++size) EXPECT_NE(ErrorOf(file.substr(0, size)), "ok") << size;
  EXPECT_NE(ErrorOf(file + "x"), "ok");
}

// A flipped byte may leave a valid file (a letter of a name); it must never crash, and what is found must be readable.
TEST(SafetensorsCorrupt, EveryFlippedHeaderByteIsHandled) {
  const std::string file = SmallFile();
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  int valid = 0;
  for (size_t at = 0; at < 8 + length; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string broken = file;
      broken[at] = static_cast<char>(value);
      const auto parsed = Parse(broken);
      if (!parsed.ok()) continue;
      ++valid;
      unsigned sum = 0;
      for (const std::string_view name : parsed->names()) {
        const TensorRef tensor = parsed->Find(name).value();
        for (const std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
      }
      EXPECT_GT(sum, 0u);
    }
  }
  EXPECT_GT(valid, static_cast<int>(length));  // at least the unbroken ones
}

TEST(SafetensorsWriterDeathTest, MisuseIsABug) {
  const float x = 0;
  SafetensorsWriter writer;
  writer.Add("a", {1}, &x);
  EXPECT_DEATH(writer.Add("a", {1}, &x), "CHECK failed");
  EXPECT_DEATH(writer.Add("b", {-1}, &x), "CHECK failed");
  EXPECT_DEATH(writer.Add("\xff", {1}, &x), "CHECK failed");
  EXPECT_DEATH(writer.Add("__metadata__", {1}, &x), "CHECK failed");
}

}  // namespace
}  // namespace tensorcache
