// Writes a re-cut checkpoint as a folder of another program.
//
// Each file is written and synced as "files/FILE.part". What later steps need to know about
// it is written as "notes/N". Then the file gets its name: so a file with its name is
// finished. When all files are finished, what depends on all of them is written, and the
// folder is opened for its seals. At the end "files" is renamed to the target.
#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/base/number_text.h"
#include "holdfast/reshard/target_writer.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/store/location.h"

namespace holdfast {
namespace {

// What a kind of folder is made of.
class FolderKind {
 public:
  virtual ~FolderKind() = default;
  virtual int64_t files() const = 0;
  virtual std::string file_name(int64_t file) const = 0;
  // Returns a text that finish() gets.
  virtual Result<std::string> write(int64_t file, Sink& sink,
                                    const ReadForFile& read) const = 0;
  virtual Result<void> finish(Env& env, const Path& folder,
                              const std::vector<std::string>& notes) const = 0;
  virtual Result<Contents> open(Env& env, const Path& folder) const = 0;
};

class DcpKind : public FolderKind {
 public:
  explicit DcpKind(DcpFolder folder, int64_t files)
      : folder_(std::move(folder)), files_(files) {}

  static Result<std::unique_ptr<FolderKind>> create(const ReshardPlan& plan) {
    const Layout& layout = plan.files->layout();
    std::vector<std::vector<DcpBox>> files(layout.holders().size());
    for (TensorId t = 0; t < layout.tensor_count(); ++t) {
      for (const Slice& slice : layout.slices(t)) {
        if (slice.box.empty()) continue;  // DcpFolder adds those itself
        files[layout.holder(slice.first)].push_back(
            {source_tensor(plan, t), slice.box});
      }
    }
    const int64_t count = std::max<int64_t>(std::ssize(files), 1);
    DcpFolder folder =
        HOLDFAST_TRY(DcpFolder::create(plan.contents, std::move(files)));
    return std::unique_ptr<FolderKind>(
        std::make_unique<DcpKind>(std::move(folder), count));
  }

  int64_t files() const override { return files_; }
  std::string file_name(int64_t file) const override {
    return DcpFolder::file_name(static_cast<size_t>(file));
  }
  Result<std::string> write(int64_t file, Sink& sink,
                            const ReadForFile& read) const override {
    return folder_.write_file(static_cast<size_t>(file), sink, read);
  }
  Result<void> finish(Env& env, const Path& folder,
                      const std::vector<std::string>& notes) const override {
    return env.replace_file(folder / kDcpMetadataFile,
                            HOLDFAST_TRY(folder_.metadata(notes)));
  }
  Result<Contents> open(Env& env, const Path& folder) const override {
    return open_dcp(env, folder);
  }

 private:
  const DcpFolder folder_;
  const int64_t files_;
};

class MegatronKind : public FolderKind {
 public:
  explicit MegatronKind(const ReshardPlan& plan)
      : target_(*plan.megatron_target), rules_(plan.rule_set) {}

  int64_t files() const override { return target_.files(); }
  std::string file_name(int64_t file) const override {
    return target_.file_name(file);
  }
  Result<std::string> write(int64_t file, Sink& sink,
                            const ReadForFile& read) const override {
    const Contents contents = HOLDFAST_TRY(target_.contents_of(file, read));
    HOLDFAST_TRY(write_torch_with_classes(sink, contents));
    return std::string();
  }
  Result<void> finish(Env& env, const Path& folder,
                      const std::vector<std::string>&) const override {
    return env.replace_file(folder / "latest_checkpointed_iteration.txt",
                            bytes_of(target_.tracker_text()));
  }
  Result<Contents> open(Env& env, const Path& folder) const override {
    const auto found = HOLDFAST_TRY(find_megatron(env, folder));
    if (!found) return corrupt("{}: has no ranks of Megatron", folder.native());
    OpenedMegatron opened = HOLDFAST_TRY(open_megatron(env, *found, rules_));
    return std::move(opened.contents);
  }

 private:
  const MegatronTarget& target_;
  const RuleSet& rules_;
};

Result<std::unique_ptr<FolderKind>> kind_of(const ReshardPlan& plan) {
  if (plan.format == kDcpFormat) return DcpKind::create(plan);
  return std::unique_ptr<FolderKind>(std::make_unique<MegatronKind>(plan));
}

// Carries out one call of write_folder().
class FolderWriter : public TargetWriter {
 public:
  FolderWriter(Env& env, const ReshardPlan& plan, const Path& to,
               const ReshardOptions& options, const FolderKind& kind)
      : TargetWriter(env, plan, to, options, kind.files(),
                     plan.figures.moved + plan.files->bytes() + bytes_to_seal(plan)),
        kind_(kind),
        notes_(static_cast<size_t>(kind.files())) {}

 private:
  // What is kept about a finished file.
  struct Note {
    int64_t bytes = 0;   // that were read for it
    std::string text{};  // of the kind of folder

    std::string encoded() const { return fmt::format("{}\n{}", bytes, text); }
    static Result<Note> decode(const std::string& encoded) {
      std::string_view rest = encoded;
      const auto bytes = take_number<int64_t>(rest);
      if (!bytes || !rest.starts_with('\n')) {
        return corrupt("a note without the bytes of its file");
      }
      return Note{.bytes = *bytes, .text = std::string(rest.substr(1))};
    }
  };

  Result<void> begin(const Run&) override {
    HOLDFAST_TRY(env_.create_folders(work_ / "notes"));
    for (int64_t file = 0; file < kind_.files(); ++file) {
      HOLDFAST_TRY(env_.create_folders(folder_of(files_ / kind_.file_name(file))));
    }
    return {};
  }

  Result<void> remove_files() override {
    HOLDFAST_TRY(env_.remove_all(files_));
    return env_.remove_all(work_ / "notes");
  }

  Path note_path(int64_t file) const { return work_ / "notes" / std::to_string(file); }

  Result<int64_t> load_finished(int64_t file) override {
    HOLDFAST_TRY(env_.info(files_ / kind_.file_name(file)));
    Note note = HOLDFAST_TRY(
        Note::decode(HOLDFAST_TRY(env_.read_text(note_path(file), int64_t{1} << 30))));
    notes_[static_cast<size_t>(file)] = std::move(note.text);
    return note.bytes;
  }

  Result<void> write_file(int64_t file) override {
    const Path path = files_ / kind_.file_name(file);
    const Path part = path.native() + ".part";
    HOLDFAST_TRY(env_.remove_all(part));
    Note note = HOLDFAST_TRY(write_part(file, part));
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.replace_file(note_path(file), bytes_of(note.encoded())));
    HOLDFAST_TRY(env_.rename(part, path));
    HOLDFAST_TRY(env_.sync_names(folder_of(path)));
    notes_[static_cast<size_t>(file)] = std::move(note.text);
    return {};
  }

  Result<Note> write_part(int64_t file, const Path& part) {
    const auto sink = HOLDFAST_TRY(FileSink::create(env_, part));
    Note note;
    Result<std::string> text = kind_.write(
        file, *sink,
        [&](HolderId holder, TensorId tensor, const Box& box, int64_t first,
            ByteSpan into) {
          note.bytes += std::ssize(into);
          return read(holder, tensor, box, first, into);
        });
    if (!text.ok()) {
      static_cast<void>(env_.remove_all(part));
      return text.error();
    }
    HOLDFAST_TRY(sink->finish());
    note.text = *std::move(text);
    return note;
  }

  Result<void> join_files() override {
    HOLDFAST_TRY(kind_.finish(env_, files_, notes_));
    for (int64_t file = 0; file < kind_.files(); ++file) {
      for (Path folder = folder_of(files_ / kind_.file_name(file)); folder != files_;
           folder = folder_of(folder)) {
        HOLDFAST_TRY(env_.sync_names(folder));
      }
    }
    return env_.sync_names(files_);
  }

  Result<void> publish() override { return env_.rename_new(files_, to_); }
  void leave() override { static_cast<void>(env_.remove_all(work_)); }

  Result<int64_t> check_seals() override {
    const Contents written = HOLDFAST_TRY(kind_.open(env_, files_));
    const Collection& source = plan_.contents->collection;
    for (TensorId t = 0; t < source.tensors().size(); ++t) {
      const Tensor& tensor = source.tensor(t);
      const auto id = written.collection.find(tensor.name);
      if (!id) {
        return corrupt("{}: is not in the target; expected all tensors",
                       shown(tensor.name));
      }
      HOLDFAST_TRY(compare(written, *id, t).within(shown(tensor.name)));
    }
    HOLDFAST_TRY(check_copies(written));
    return std::ssize(source.tensors());
  }

  // The seals are those of the first copy of each box.
  Result<void> check_copies(const Contents& written) const {
    Counter counter({.stop = options_.reading.stop}, 0);
    const Result<void> equal = check_replicas(written, counter);
    if (equal.ok() || equal.error().code() != ErrorCode::kInvalid) return equal;
    return corrupt("{}", equal.error().message());
  }

  // Pad rows, which are the last ones, may be fewer or more than in the source.
  Result<void> compare(const Contents& written, TensorId id, TensorId of_source) {
    const Tensor& source = plan_.contents->collection.tensor(of_source);
    const Tensor& target = written.collection.tensor(id);
    if (source.dtype != target.dtype || source.shape.rank() != target.shape.rank()) {
      return corrupt("is {} {}; expected {} {}", name_of(target.dtype),
                     to_string(target.shape), name_of(source.dtype),
                     to_string(source.shape));
    }
    const int64_t bytes = std::min(source.bytes(), target.bytes());
    const auto recorded = recorded_seal(plan_, of_source);
    const Seal expected =
        recorded && bytes == source.bytes()
            ? *recorded
            : HOLDFAST_TRY(seal_of_tensor(*plan_.contents, of_source, bytes, counter_));
    const Seal seal = HOLDFAST_TRY(seal_of_tensor(written, id, bytes, counter_));
    if (seal == expected) return {};
    return corrupt("has the seal {} in the target; expected {} as in the source",
                   print_seal(seal, target.dtype, target.shape),
                   print_seal(expected, source.dtype, source.shape));
  }

  const FolderKind& kind_;
  std::vector<std::string> notes_;  // each thread sets those of its files
};

}  // namespace

Result<Resharded> write_folder(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options) {
  const auto kind = HOLDFAST_TRY(kind_of(plan));
  return FolderWriter(env, plan, to, options, *kind).write();
}

}  // namespace holdfast
