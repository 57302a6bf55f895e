// The meaning of torch's pickles. Shared by torch_zip_*.cpp.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/archive/pickle_reader.h"
#include "holdfast/archive/zip_reader.h"
#include "holdfast/contents/contents.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/state/object.h"
#include "holdfast/state/strided.h"
#include "holdfast/state/tensor.h"

namespace holdfast::torch_zip {

// How torch reads the names of records. It never compresses them.
inline constexpr ZipOptions kZipOptions{.ignore_case = true, .deflated = false};

// The largest pickle that is read.
inline constexpr int64_t kMaxPickleBytes = int64_t{1} << 28;

// Whether a file is in the format before torch 1.6 (torch_legacy.cpp).
Result<bool> is_legacy(const Source& source);
Result<Contents> open_legacy(std::shared_ptr<const Source> source);

// Fails with kUnsupported for TorchScript.
Result<void> refuse_script(const Source& source);

// A tensor as the pickle describes it. Only its shape has been checked.
struct View {
  std::string name{};  // for example model.fc.weight
  std::string path{};  // for messages, for example ["model"]["fc.weight"]
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  std::array<int64_t, kMaxRank> strides{};  // in elements
  int64_t offset = 0;                       // in elements
  // The key of its storage.
  std::string key{};
  int64_t storage_bytes = 0;
  // Bits that differ between a stored element and its value, as long as an element: the
  // signs of a conjugated or negated view. Empty for all other views.
  Bytes mask{};
};

struct Tree {
  Object objects{};
  std::vector<View> views{};              // in order of the tree
  std::vector<std::string> simplified{};  // as in Contents
  std::vector<std::string> left_out{};    // as in Contents
};

// One tensor of an archive and where it lies, for all places in the tree that refer to
// it.
struct Placed {
  Tensor tensor;
  Map map;
  ByteRange range;
  // Views that overlap have different holders, all of which are the archive.
  HolderId holder = 0;
  Bytes mask{};  // as in View
};

// Says where the bytes of a storage are.
struct StorageRecord {
  std::string name{};  // for messages
  int64_t offset = 0;
  int64_t size = 0;
};
// Finds the record of a storage by its key. Returns nullopt if there is none.
using FindStorage = std::function<std::optional<StorageRecord>(const std::string& key)>;

struct PlacedViews {
  std::vector<Placed> stored{};
  // Views that are computed from stored bytes when they are read (computed_views.h).
  std::vector<Placed> computed{};
  HolderId holders = 1;  // how many holders the stored tensors have
};
// Finds the bytes of each view. `where` is for messages. Fails with kCorrupt if a view
// does not lie inside its storage.
Result<PlacedViews> place_views(const std::string& where, const FindStorage& find,
                                std::vector<View> views);
// Makes contents of the tensors and objects. `digests` may be null.
Result<Contents> contents_of_views(const std::shared_ptr<const Source>& source,
                                   const std::shared_ptr<const DigestCheck>& digests,
                                   PlacedViews views, Tree tree);

// What is in a zip archive of torch.
struct OpenedArchive {
  std::vector<ZipEntry> entries{};  // in order of offset
  PlacedViews views{};
  Tree tree{};  // its views are moved away
};

// Reads the directory and the pickle of an archive, but no tensors. Fails as
// open_torch() does.
Result<OpenedArchive> open_archive(const std::shared_ptr<const Source>& source);

// Flips bits of the elements of a file. `source` is the file, `contents` what open_torch()
// has found in it, and `edit` the file as it will be.
Result<void> edit_torch(FileEdit& edit, const std::shared_ptr<const Source>& source,
                        const Contents& contents, std::span<const Flip> flips,
                        Checksums checksums);

// Writes an archive that has this object and the tensors that it names, and nothing
// else. It begins at the current end of the sink.
Result<void> write_object(Sink& sink, const Contents& contents, const Object& object);

// False for names that only an attack uses: functions that run programs, open files or
// evaluate text. They would not be called, but a file with such a name is refused.
bool may_occur(std::string_view global);
// True for functions that this reader understands: those that make tensors (also kinds
// of tensors that are refused), sizes, devices and bytes. Calls of other functions stay
// data.
bool is_known(std::string_view function);

// The keys of the dict that stands for an object of another class. The same dict has
// the object's attributes by their names, or "__state__" if they have no names.
inline constexpr std::string_view kClassKey = "__class__";
inline constexpr std::string_view kArgumentsKey = "__arguments__";
inline constexpr std::string_view kKeywordsKey = "__keywords__";
inline constexpr std::string_view kItemsKey = "__items__";
inline constexpr std::string_view kEntriesKey = "__entries__";
inline constexpr std::string_view kStateKey = "__state__";

// True if the node is a dict from the names of an object's attributes to their values, and
// no name is one of the keys above, which would then mean something else.
bool has_names(const Pickle& pickle, PickleId id);

// The number that a numpy scalar, given as such a dict, has. Returns nullopt for any
// other object and for numbers that Object cannot represent.
std::optional<Object> numpy_scalar(const Object::Dict& object);

// The parts of an object that such a dict stands for.
struct InstanceParts {
  std::string name{};  // of the class or function
  std::vector<Object> arguments{};
  bool first_is_class = false;  // the first argument is the name of a class
  std::optional<Object> state{};
  std::vector<std::pair<Object, Object>> attributes{};  // if there is no state
};
// Returns nullopt for any other dict, and for classes that write_torch_with_classes() does
// not name.
std::optional<InstanceParts> parts_of_instance(const Object::Dict& dict);

// The name of the class or function that a call calls. Empty if it is another value.
std::string_view function_of(const Pickle& pickle, const PickleNode::Call& call);

// Reads the arguments of a call. Errors name the place of the object that it makes.
class ArgumentReader {
 public:
  // `path` is the place of the object in the tree, for messages.
  ArgumentReader(const Pickle& pickle, std::string_view where, std::string path)
      : pickle_(pickle), where_(where), path_(std::move(path)) {}

  Result<std::vector<PickleId>> tuple(PickleId id) const;
  Result<std::string> text(PickleId id) const;
  Result<int64_t> integer(PickleId id) const;
  // The integers of a tuple or torch.Size.
  Result<std::vector<int64_t>> integers(PickleId id) const;

  // The view that one of torch's functions would make of its arguments, without a name.
  // Fails with kUnsupported for functions that make no view.
  Result<View> view(std::string_view function,
                    const std::vector<PickleId>& arguments) const;
  // All of a storage, as a view with one dimension.
  Result<View> storage(PickleId persistent) const;

  Error broken(std::string_view what) const {
    return corrupt("{}: {} {}", where_, path_, what);
  }
  Error odd(std::string_view what) const {
    return unsupported("{}: {} {}", where_, path_, what);
  }
  Error refuse(std::string_view function) const;

 private:
  Result<void> read_storage(PickleId id, std::optional<Dtype> dtype, View& view) const;
  Result<void> read_shape(PickleId sizes, PickleId strides, View& view) const;
  Result<void> read_flags(PickleId id, View& view) const;
  Result<Dtype> find_dtype(PickleId id) const;

  const Pickle& pickle_;
  const std::string_view where_;
  const std::string path_;
};

// Makes the objects and views of a pickle. `where` is for messages. `pickle_bytes` is
// the size of the pickle, which limits the size of the result.
Result<Tree> read_tree(const Pickle& pickle, std::string_view where,
                       size_t pickle_bytes);

// The text of a dict's key in names and messages: model, 0, None.
std::string text_of_key(const Object& key);
// Describes an object in the tree by the keys that lead to it: path_of_keys() returns
// ["model"]["fc.weight"] for messages, name_of_keys() returns model.fc.weight, the name
// of a tensor.
std::string path_of_keys(std::span<const Object> keys);
std::string name_of_keys(std::span<const Object> keys);
// Converts UTF-8 text to one byte for each code point. Returns nullopt if a code point
// is 256 or more.
std::optional<Bytes> bytes_of_latin1(std::string_view text);
// Returns equal texts exactly for keys that are equal in Python: 1, 1.0 and True are
// the same key.
std::string identity_of_key(const Object& key);

// The dtype of a typed storage: F32 for torch.FloatStorage, and for torch.QInt8Storage
// that of the integers in it. Returns nullopt for any other name.
std::optional<Dtype> dtype_of_storage(std::string_view global);
// The typed storage of a dtype. Empty if torch writes the dtype as an UntypedStorage.
std::string_view storage_of_dtype(Dtype dtype);
// The name of a dtype in torch: "torch.float32".
std::string global_of_dtype(Dtype dtype);
std::optional<Dtype> dtype_of_global(std::string_view global);

}  // namespace holdfast::torch_zip
