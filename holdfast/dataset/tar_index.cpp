// Finds the samples of a tar archive: the members that follow each other under one key.
#include <set>

#include "holdfast/dataset/sample_table.h"
#include "holdfast/dataset/tar_members.h"

namespace holdfast {
namespace {

class TarSamples {
 public:
  TarSamples(const std::string& name, const AppendWord& append)
      : name_(name), append_(append) {}

  Result<void> add(const TarMember& member) {
    const TarField field = tar_field_of(member.name);
    if (field.field.empty()) return {};
    if (field.key != key_ || range_.end == 0) {
      HOLDFAST_TRY(finish());
      key_ = field.key;
      range_ = {member.header, member.end()};
    }
    if (!fields_.insert(field.field).second) {
      return corrupt("{}: the member at byte {} is a second \"{}\" of the sample \"{}\"",
                     name_, member.header, field.field, field.key);
    }
    range_.end = member.end();
    if (range_.size() <= kMostSample) return {};
    return unsupported("{}: the sample at byte {} is larger than 1 GiB", name_,
                       range_.begin);
  }

  Result<void> finish() {
    fields_.clear();
    if (range_.end == 0) return {};
    HOLDFAST_TRY(append_(range_.begin));
    return append_(range_.end);
  }

 private:
  const std::string& name_;
  const AppendWord& append_;
  std::string key_{};
  SampleRange range_{};
  std::set<std::string> fields_{};
};

}  // namespace

Result<void> scan_tar(ScannedFile& file, const AppendWord& append) {
  TarSamples samples(file.name(), append);
  while (const auto member = HOLDFAST_TRY(next_tar_member(file))) {
    HOLDFAST_TRY(samples.add(*member));
  }
  return samples.finish();
}

}  // namespace holdfast
