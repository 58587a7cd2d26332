#include "pretrained/model_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/folder.h"
#include "core/text.h"
#include "pretrained/tokenizer_files.h"
#include "tokenizer/files.h"

namespace tensorcache::pretrained {
namespace {

namespace fs = std::filesystem;

// All that can be a model's.
FileSet ModelFiles() {
  FileSet files{.names = {kConfigFile, kModelFile}, .key = kConfigFile};
  files.names.insert(files.names.end(), TokenizerFileNames().begin(), TokenizerFileNames().end());
  return files;
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
  TC_ASSIGN_OR_RETURN(FolderReplacement replacement, FolderReplacement::Begin(folder.path, ModelFiles()));
  // Once more, for nobody else writes there now.
  TC_RETURN_IF_ERROR(CheckModelFolder(folder.path, folder.source, folder.force));
  const fs::path& path = replacement.staging();
  TC_RETURN_IF_ERROR(folder.tensors.Write((path / kModelFile).string(), folder.progress));
  for (const NamedFile& file : folder.files) {
    TC_RETURN_IF_ERROR(WriteFileAtomically((path / file.name).string(), file.content));
  }
  TC_RETURN_IF_ERROR(WriteFileAtomically((path / kConfigFile).string(), folder.config));
  return replacement.Commit();
}

}  // namespace tensorcache::pretrained
