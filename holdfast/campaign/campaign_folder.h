// The folder of a campaign while a process works in it.
#pragma once

#include "holdfast/campaign/campaign_file.h"
#include "holdfast/campaign/trial_record.h"

namespace holdfast {

// Until keep() is called, the destructor removes a folder that was created here. It
// always removes the work folder. Not thread safe.
//
// The file "running" names the process that works in the folder. It is created by a
// rename that replaces nothing, so of two processes one is refused. A mark of a dead
// process is replaced. That of a process on another machine counts as alive.
//
// A process that was killed may leave a program behind that still writes. So each call
// has a work folder with a random name, and removes older ones.
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
  const Path& work() const { return work_; }
  Path golden_state() const { return folder_ / "golden-state"; }
  // What the folder held when it was entered; nullopt if it is new.
  const std::optional<CampaignFile>& found() const { return found_; }
  // Makes the campaign durable: from here on it can be continued.
  Result<void> keep(const CampaignFile& file);

 private:
  CampaignFolder(Env& env, Path folder);

  Path owner_path() const { return folder_ / "running"; }
  Result<void> check_contents(const CampaignFile& wanted);
  Result<void> take_ownership();
  // Fails with kConflict, unless the mark that is there is of a dead process.
  Result<void> check_dead(const std::string& mark, const Identity& self) const;
  Result<void> remove_dead_mark(const std::string& mark);
  // Removes what killed processes have left.
  Result<void> remove_leftovers();

  Env& env_;
  const Path folder_;
  const Path work_;
  std::optional<CampaignFile> found_{};
  bool created_ = false;  // and not kept yet
  bool owned_ = false;
};

}  // namespace holdfast
