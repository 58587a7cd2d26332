#include "pretrained/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "pretrained/tokenizer_files.h"
#include "tokenizer/files.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

constexpr char kPartFile[] = "model.safetensors.part";

Status Remove(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  return error ? IoError(fmt::format("cannot remove {}: {}", Quoted(path.string()), error.message())) : OkStatus();
}

Status Rename(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? IoError(fmt::format("cannot write {}: {}", Quoted(to.string()), error.message())) : OkStatus();
}

// What is left to do once the tensors are on the disk.
Status PutInPlace(const ModelFolder& folder) {
  const fs::path path(folder.path);
  TC_RETURN_IF_ERROR(Remove(path / kConfigFile));
  for (const std::string_view name : TokenizerFileNames()) TC_RETURN_IF_ERROR(Remove(path / name));
  TC_RETURN_IF_ERROR(Rename(path / kPartFile, path / kModelFile));
  for (const NamedFile& file : folder.files) {
    TC_RETURN_IF_ERROR(WriteFileAtomically((path / file.name).string(), file.content));
  }
  return WriteFileAtomically((path / kConfigFile).string(), folder.config);
}

}  // namespace

Status CheckModelFolder(const std::string& folder, const std::string& source, bool force) {
  const fs::path path(folder);
  std::error_code error;
  if (fs::equivalent(path, fs::path(source), error) && !error) {
    return InvalidArgument(fmt::format("--out {} is the folder that is read; name another one", Quoted(folder)));
  }
  if (Exists(path / kTrainStateFile)) {
    return InvalidArgument(fmt::format(
        "--out {} holds a training run, which another model would break; name another folder", Quoted(folder)));
  }
  if (force) return OkStatus();
  for (const char* name : {kConfigFile, kModelFile}) {
    if (!Exists(path / name)) continue;
    return InvalidArgument(fmt::format(
        "--out {} has a model already, {}; name another folder, or replace it with --force", Quoted(folder), name));
  }
  if (const std::string_view found = tokenizer::TokenizerFileIn(folder); !found.empty()) {
    return InvalidArgument(
        fmt::format("--out {} has a tokenizer already, {}; name another folder, or replace it with --force",
                    Quoted(folder), found));
  }
  return OkStatus();
}

Status WriteModelFolder(const ModelFolder& folder) {
  TC_RETURN_IF_ERROR(MakeFolder(folder.path));
  const fs::path part = fs::path(folder.path) / kPartFile;
  TC_RETURN_IF_ERROR(folder.tensors.Write(part.string(), folder.progress));
  const Status status = PutInPlace(folder);
  if (!status.ok()) (void)Remove(part);
  return status;
}

}  // namespace tensorcache::pretrained
