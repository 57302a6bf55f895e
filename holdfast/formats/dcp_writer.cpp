// Writes the folders of DCP: an item for each tensor and object, and then the metadata.
#include <unordered_map>

#include "holdfast/base/json_text.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/dcp_entries_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast {
namespace dcp {
namespace {

constexpr const char* kItemsFile = "__0_0.distcp";

// Writes items, and notes where they are.
class ItemWriter {
 public:
  ItemWriter(Sink& sink, const Contents& contents) : sink_(sink), contents_(contents) {}

  Result<Item> put(const Object& object) {
    const int64_t offset = sink_.size();
    HOLDFAST_TRY(torch_zip::write_object(sink_, contents_, object));
    return Item{kItemsFile, offset, sink_.size() - offset};
  }

  Result<void> put_entry(PlannedEntry& planned) {
    Entry& entry = planned.entry;
    if (!planned.tensor) {
      entry.object = HOLDFAST_TRY(put(*planned.object).within(shown(entry.name)));
      return {};
    }
    const Tensor& tensor = contents_.collection.tensor(*planned.tensor);
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    auto item = item_of_.find(*planned.tensor);
    if (item == item_of_.end()) {
      Item written = HOLDFAST_TRY(put(Object(Object::TensorName{tensor.name})));
      item = item_of_.emplace(*planned.tensor, std::move(written)).first;
    }
    entry.chunks = {{Box::whole(tensor.shape), item->second}};
    return {};
  }

 private:
  Sink& sink_;
  const Contents& contents_;
  std::unordered_map<TensorId, Item> item_of_;
};

Result<Metadata> write_items(Sink& sink, const Contents& contents) {
  EntryPlanner planner(contents);
  HOLDFAST_TRY(planner.plan());
  const KeptTexts kept = HOLDFAST_TRY(kept_texts(contents, planner));
  ItemWriter items(sink, contents);
  Metadata metadata;
  for (PlannedEntry& planned : planner.entries()) {
    HOLDFAST_TRY(items.put_entry(planned));
    metadata.entries.push_back(std::move(planned.entry));
  }
  for (const auto& [key, text] : kept) {
    Entry entry{.name = key, .path = {Object(key)}};
    entry.object = HOLDFAST_TRY(items.put(Object(text)));
    metadata.entries.push_back(std::move(entry));
  }
  return metadata;
}

}  // namespace
}  // namespace dcp

Result<void> write_dcp(Env& env, const Path& folder, const Contents& contents) {
  HOLDFAST_TRY(env.create_folder(folder));
  const auto sink = HOLDFAST_TRY(FileSink::create(env, folder / dcp::kItemsFile));
  const dcp::Metadata metadata = HOLDFAST_TRY(dcp::write_items(*sink, contents));
  HOLDFAST_TRY(sink->finish());
  HOLDFAST_TRY(env.write_file(folder / dcp::kMetadataFile,
                              HOLDFAST_TRY(dcp::encode_metadata(metadata))));
  return env.sync_names(folder);
}

}  // namespace holdfast
