// The metadata of DCP's folders as plain data. Shared by dcp_*.cpp.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holdfast/archive/inflated_source.h"
#include "holdfast/contents/contents.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/state/object.h"
#include "holdfast/state/tensor.h"

namespace holdfast::dcp {

inline constexpr const char* kMetadataFile = kDcpMetadataFile;
inline constexpr std::string_view kItemsSuffix = ".distcp";

// The place of an item, which is a zip archive of torch.save, in a file of the folder.
struct Item {
  std::string file{};
  int64_t offset = 0;
  int64_t length = 0;

  friend auto operator<=>(const Item&, const Item&) = default;
};

// A part of a tensor that has an item of its own.
struct Chunk {
  Box box{};
  Item item{};

  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// A tensor or an object of the state dict.
struct Entry {
  std::string name{};  // its key in the flattened state dict
  // The keys (texts) and indices of lists (integers) that lead to it in the state dict
  // before it was flattened.
  std::vector<Object> path{};
  bool tensor = false;
  // A tensor has these three.
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  // Parts without elements are left out, unless the tensor itself has none.
  std::vector<Chunk> chunks{};
  // An object has this one.
  Item object{};
  // Why the entry cannot be read although the metadata is good: the line of
  // Contents::left_out without the name. Then it has no dtype, shape, chunks or object.
  std::string odd{};
};

// An item and the entry that it belongs to.
struct NamedItem {
  Item item{};
  std::string entry{};
  bool transformed = false;  // compressed, for example, and so no zip archive
};

struct Metadata {
  std::vector<Entry> entries{};
  std::vector<NamedItem> items{};  // all of them, in order of file and offset
};

// Decodes the pickle. Checks all that can be checked without the files: that each chunk
// has an item and lies in its tensor, that the chunks of a tensor do not overlap, and
// that each item belongs to a chunk. `where` is the path, for messages.
Result<Metadata> decode_metadata(ByteView pickle, const std::string& where);
// The pickle. `items` is not used.
Result<Bytes> encode_metadata(const Metadata& metadata);

// Reads and decodes the metadata of a folder.
Result<Metadata> read_metadata(Env& env, const Path& folder);

// An item as a source of its own. Fails with kCorrupt if it lies outside of the file.
Result<std::shared_ptr<const Source>> open_item(std::shared_ptr<const Source> file,
                                                const NamedItem& item);

// Opens the files of a folder, each once.
class Files {
 public:
  Files(Env& env, Path folder) : env_(env), folder_(std::move(folder)) {}
  // Fails with kCorrupt if the file is missing.
  Result<std::shared_ptr<const Source>> open(const std::string& name);

 private:
  Env& env_;
  const Path folder_;
  std::map<std::string, std::shared_ptr<const Source>> files_;
};

// Contents with the names of their tensors: `names` leads from the name of an entry to
// the tensor that it has in the contents.
struct OpenedFolder {
  Contents contents;
  std::unordered_map<std::string, std::string> names{};
};

Result<OpenedFolder> open_folder(Env& env, const Path& folder,
                                 const Metadata& metadata);

// Puts values together to the state dict before it was flattened.
class TreeBuilder {
 public:
  TreeBuilder();
  ~TreeBuilder();
  TreeBuilder(TreeBuilder&&) noexcept;
  TreeBuilder& operator=(TreeBuilder&&) noexcept;

  // False, and nothing changes, if the path is empty, does not begin with a text or is
  // too long, and if it leads through another value or to one.
  bool add(const std::vector<Object>& path, Object value);
  // The dict. As in torch, missing items of a list are None. Fails with kCorrupt if a
  // list would have too many of them.
  Result<Object> finish(const std::string& where) const;

 private:
  struct Node;
  std::unique_ptr<Node> root_;
};

// What a leaf of the state dict is called, if it is the entry `name` of this tensor.
// `first` says that no entry before it has the same tensor.
Object leaf_of(const Tensor& tensor, const std::string& name, bool first);

// True for a tensor at the top of the state dict. If all entries are such ones, the
// state dict is a flat dict of tensors.
bool is_flat(const Entry& entry);

}  // namespace holdfast::dcp
