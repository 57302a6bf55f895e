// Folders of files of torch.save, as the tools of Hugging Face wrote large models before
// safetensors. The files are called pytorch_model-00001-of-00002.bin, and
// pytorch_model.bin.index.json maps every tensor to its file, as in
// sharded_safetensors.h. A small model is one file, pytorch_model.bin.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"

namespace holdfast {

inline constexpr std::string_view kTorchIndexSuffix = ".bin.index.json";

// True for the names in a folder that has such an index, or just one file of a model.
bool is_torch_folder(std::span<const std::string> names);

// `path` is the folder or its index. Fails with kCorrupt, naming the file or tensor, if
// index and files disagree and if a file that the index names is missing; with kInvalid
// for a folder with several indexes; and as open_torch().
Result<Contents> open_torch_folder(Env& env, const Path& path);

// Plans a patch of the files (Format::plan_patch). Its journal lies in the folder.
Result<Patch> plan_torch_folder_patch(Env& env, const Path& path,
                                      std::span<const Flip> flips, Checksums checksums);

// Checks every file as verify_torch() does.
Result<FormatReport> verify_torch_folder(Env& env, const Path& path,
                                         const Progress& progress);

}  // namespace holdfast
