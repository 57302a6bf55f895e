// The folder of a campaign while a process works in it.
#pragma once

#include "holdfast/campaign/campaign_file.h"
#include "holdfast/campaign/trial_record.h"

namespace holdfast {

// Until keep() is called, the destructor removes a folder that was created here. It
// always removes the work folder. Not thread safe.
class CampaignFolder {
 public:
  // Creates the folder, or enters that of the campaign `wanted`. Fails with kConflict if
  // the folder holds anything else, or if another process is in it.
  static Result<std::unique_ptr<CampaignFolder>> enter(Env& env, const Path& folder,
                                                       const CampaignFile& wanted);
  ~CampaignFolder();
  CampaignFolder(const CampaignFolder&) = delete;
  CampaignFolder& operator=(const CampaignFolder&) = delete;

  const Path& path() const { return folder_; }
  Path work() const { return folder_ / "work"; }
  Path golden_state() const { return folder_ / "golden-state"; }
  // What the folder held when it was entered; nullopt if it is new.
  const std::optional<CampaignFile>& found() const { return found_; }
  // Makes the campaign durable: from here on it can be continued.
  Result<void> keep(const CampaignFile& file);

 private:
  CampaignFolder(Env& env, Path folder) : env_(env), folder_(std::move(folder)) {}

  Path owner_path() const { return folder_ / "running"; }
  Result<void> check_contents(const CampaignFile& wanted);
  Result<void> take_ownership();

  Env& env_;
  const Path folder_;
  std::optional<CampaignFile> found_{};
  bool created_ = false;  // and not kept yet
  bool owned_ = false;
};

}  // namespace holdfast
