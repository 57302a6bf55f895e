// Writes folders of DCP whose tensors are cut into boxes, file by file.
#include <fmt/ranges.h>

#include <map>

#include "holdfast/base/json_text.h"
#include "holdfast/base/number_text.h"
#include "holdfast/formats/dcp_entries_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast {

class DcpFolder::State {
 public:
  State(std::shared_ptr<const Contents> contents,
        std::vector<std::vector<DcpBox>> files)
      : contents_(std::move(contents)),
        files_(std::move(files)),
        planner_(*contents_) {}

  Result<void> plan();
  Result<std::string> write_file(size_t file, Sink& sink,
                                 const ReadForFile& read) const;
  Result<Bytes> metadata(const std::vector<std::string>& places) const;

 private:
  // Objects are in the first file, behind its boxes.
  size_t items_in(size_t file) const {
    return files_[file].size() + (file == 0 ? objects_.size() : 0);
  }

  const std::shared_ptr<const Contents> contents_;
  std::vector<std::vector<DcpBox>> files_;
  dcp::EntryPlanner planner_;
  std::vector<dcp::PlannedEntry> entries_;
  std::vector<Object> objects_;
  std::vector<std::string> kept_;  // the names of the last ones of the objects
};

namespace {

// "offset length" of each item, one on each line.
std::string encode_places(const std::vector<dcp::Item>& items) {
  std::string text;
  for (const dcp::Item& item : items) {
    fmt::format_to(std::back_inserter(text), "{} {}\n", item.offset, item.length);
  }
  return text;
}

std::optional<int64_t> take_word(std::string_view& text, char end) {
  const auto number = take_number<int64_t>(text);
  if (!number || !text.starts_with(end)) return std::nullopt;
  text.remove_prefix(1);
  return number;
}

Result<std::vector<dcp::Item>> decode_places(std::string_view text, size_t file,
                                             size_t expected) {
  std::vector<dcp::Item> items;
  while (!text.empty()) {
    const auto offset = take_word(text, ' ');
    const auto length = offset ? take_word(text, '\n') : std::nullopt;
    if (!length) return corrupt("places of items: have a line that is not two numbers");
    items.push_back({DcpFolder::file_name(file), *offset, *length});
  }
  if (items.size() == expected) return items;
  return corrupt("places of items: are {}; expected {}", items.size(), expected);
}

}  // namespace

Result<void> DcpFolder::State::plan() {
  HOLDFAST_TRY(planner_.plan());
  const KeptTexts kept = HOLDFAST_TRY(dcp::kept_texts(*contents_, planner_));
  entries_ = std::move(planner_.entries());
  for (const dcp::PlannedEntry& planned : entries_) {
    if (!planned.tensor) objects_.push_back(*planned.object);
  }
  for (const auto& [name, text] : kept) {
    kept_.push_back(name);
    objects_.emplace_back(text);
  }
  if (files_.empty()) files_.emplace_back();
  // A tensor without elements needs an item, and no box of it is in a layout.
  for (TensorId t = 0; t < contents_->collection.tensors().size(); ++t) {
    const Shape& shape = contents_->collection.tensor(t).shape;
    if (shape.elements() == 0) files_[0].push_back({t, Box::whole(shape)});
  }
  return {};
}

Result<std::string> DcpFolder::State::write_file(size_t file, Sink& sink,
                                                 const ReadForFile& read) const {
  std::vector<dcp::Item> items;
  const auto put = [&](const Contents& contents, const Object& object) -> Result<void> {
    const int64_t offset = sink.size();
    HOLDFAST_TRY(torch_zip::write_object(sink, contents, object));
    items.push_back({"", offset, sink.size() - offset});
    return {};
  };
  for (const DcpBox& box : files_[file]) {
    const Tensor& whole = contents_->collection.tensor(box.tensor);
    std::vector<AssembledTensor> part(1);
    part[0].tensor = {
        .name = whole.name, .dtype = whole.dtype, .shape = box.box.shape()};
    part[0].parts.push_back(part_of_box(read, static_cast<HolderId>(file), box.tensor,
                                        whole.dtype, box.box));
    const Contents own =
        HOLDFAST_TRY(assemble(whole.name, std::move(part), Object()));
    HOLDFAST_TRY(put(own, Object(Object::TensorName{whole.name})).within(whole.name));
  }
  if (file == 0) {
    for (const Object& object : objects_) HOLDFAST_TRY(put(*contents_, object));
  }
  return encode_places(items);
}

Result<Bytes> DcpFolder::State::metadata(const std::vector<std::string>& places) const {
  HOLDFAST_CHECK(places.size() == files_.size(), "{} texts for {} files", places.size(),
                 files_.size());
  std::map<TensorId, std::vector<dcp::Chunk>> chunks;
  std::vector<dcp::Item> objects;
  for (size_t f = 0; f < files_.size(); ++f) {
    auto items = HOLDFAST_TRY(decode_places(places[f], f, items_in(f)));
    for (size_t i = 0; i < files_[f].size(); ++i) {
      chunks[files_[f][i].tensor].push_back({files_[f][i].box, items[i]});
    }
    items.erase(items.begin(), items.begin() + std::ssize(files_[f]));
    if (f == 0) objects = std::move(items);
  }
  dcp::Metadata metadata;
  size_t next = 0;
  for (const dcp::PlannedEntry& planned : entries_) {
    dcp::Entry entry = planned.entry;
    if (planned.tensor) {
      const Tensor& tensor = contents_->collection.tensor(*planned.tensor);
      entry.dtype = tensor.dtype;
      entry.shape = tensor.shape;
      entry.chunks = chunks[*planned.tensor];
    } else {
      entry.object = objects[next++];
    }
    metadata.entries.push_back(std::move(entry));
  }
  for (const std::string& name : kept_) {
    dcp::Entry entry{.name = name, .path = {Object(name)}};
    entry.object = objects[next++];
    metadata.entries.push_back(std::move(entry));
  }
  return dcp::encode_metadata(metadata);
}

DcpFolder::DcpFolder(std::unique_ptr<State> state) : state_(std::move(state)) {}
DcpFolder::~DcpFolder() = default;
DcpFolder::DcpFolder(DcpFolder&&) noexcept = default;
DcpFolder& DcpFolder::operator=(DcpFolder&&) noexcept = default;

Result<DcpFolder> DcpFolder::create(std::shared_ptr<const Contents> contents,
                                    std::vector<std::vector<DcpBox>> files) {
  auto state = std::make_unique<State>(std::move(contents), std::move(files));
  HOLDFAST_TRY(state->plan());
  return DcpFolder(std::move(state));
}

std::string DcpFolder::file_name(size_t file) {
  return fmt::format("__{}_0.distcp", file);
}

Result<std::string> DcpFolder::write_file(size_t file, Sink& sink,
                                          const ReadForFile& read) const {
  return state_->write_file(file, sink, read);
}

Result<Bytes> DcpFolder::metadata(const std::vector<std::string>& places) const {
  return state_->metadata(places);
}

}  // namespace holdfast
