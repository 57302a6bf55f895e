// Folders of torch.distributed.checkpoint (DCP), as FSDP2 and others save them:
//
//   .metadata        a pickle that says which tensors and objects there are, and where
//   __0_0.distcp     items, one behind the other; each is a zip file of torch.save
//   __1_0.distcp     the items of rank 1
//
// The pickle is read as data (pickle_reader.h): nothing is imported or called. A tensor
// is named by its key in the flattened state dict ("model.fc.weight"). A tensor that
// was sharded over ranks is one tensor, and its chunks are boxes of it. Objects that
// are no tensors are items of their own, which are read as a file of torch.save is read
// (torch_zip.h). contents.objects is the state dict before it was flattened, with the
// tensors as leaves; None if the state dict was a flat dict of tensors. If a folder has
// the same item under several names, they are one tensor with aliases.
//
// What DCP cannot hold is kept in items holdfast.* (side_metadata.h). If holdfast.objects
// is there, it has all objects, and other items repeat parts of it for torch.
//
// This is about the folders that torch itself writes. Python's holdfast.torch.dcp is
// another thing: it lets DCP save into the steps of a run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/assembled.h"
#include "holdfast/contents/contents.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/env.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

// True for the names in a folder of DCP.
bool is_dcp_folder(std::span<const std::string> names);

// Reads the metadata, and the directories and pickles of all items, but no tensors.
// Fails with kCorrupt, naming file and tensor, if the metadata contradicts itself or the
// items: chunks that overlap, leave a hole or lie outside of their tensor, items outside
// of their file or with another dtype or shape. Fails with kUnsupported for items that
// were transformed (compressed), for file names that lead out of the folder, and for all
// that open_torch() does not support.
Result<Contents> open_dcp(Env& env, const Path& folder);

// Writes a new folder with one file of items. dcp.load() and dcp_to_torch_save() of torch
// take it. Syncs everything but the folder's own name. The state dict that torch sees is
// contents.objects if that is a dict, and otherwise a flat dict of all tensors. Its keys
// are texts, because DCP has no others, and a tuple that has tensors in it is a list.
// A tensor with aliases is stored once, and each of its names refers to it. Fails with
// kConflict if the folder exists, and otherwise as write_torch() does.
Result<void> write_dcp(Env& env, const Path& folder, const Contents& contents);

// A box of a tensor, by its number in the contents.
struct DcpBox {
  TensorId tensor = 0;
  Box box{};
};

// Writes a folder in which tensors are cut, as the ranks of a job would write it: each file
// has some boxes. The files can be written at once, in any order, and in several calls of a
// program. The state dict is chosen as write_dcp() does it.
class DcpFolder {
 public:
  // `files` has the boxes of each file. Together they are all elements of all tensors, each
  // once. Fails as write_dcp().
  static Result<DcpFolder> create(std::shared_ptr<const Contents> contents,
                                  std::vector<std::vector<DcpBox>> files);
  ~DcpFolder();
  DcpFolder(DcpFolder&&) noexcept;
  DcpFolder& operator=(DcpFolder&&) noexcept;

  static std::string file_name(size_t file);  // "__0_0.distcp"
  // Writes a file of what `read` gives for it, and returns a text that says where its items
  // are.
  Result<std::string> write_file(size_t file, Sink& sink,
                                 const ReadForFile& read) const;
  // The metadata, from the texts of all files. It is the file ".metadata" of the folder.
  // Fails with kCorrupt if a text is another than write_file() has returned.
  Result<Bytes> metadata(const std::vector<std::string>& places) const;

 private:
  class State;
  explicit DcpFolder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

inline constexpr const char* kDcpMetadataFile = ".metadata";

// Reads every record of every item and checks its CRC. Lists all damage. The metadata
// has no checksum: it is only checked whether it contradicts itself or the items.
Result<FormatReport> verify_dcp(Env& env, const Path& folder, const Progress& progress);

// Plans a patch (Format::plan_patch). Its journal lies in the folder. CRCs are treated as
// those of a file of torch.save.
Result<Patch> plan_dcp_patch(Env& env, const Path& folder, std::span<const Flip> flips,
                             Checksums checksums);

}  // namespace holdfast
