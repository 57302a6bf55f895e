// The file campaign.json of a campaign's folder: what was asked for, and the golden run.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/campaign/campaign.h"
#include "holdfast/campaign/training_log.h"

namespace holdfast {

inline constexpr const char* kCampaignFile = "campaign.json";
inline constexpr const char* kTrialsFile = "trials.jsonl";

struct CampaignFile {
  std::string base{};         // the path, as it was given
  std::string base_kind{};    // "step", or the name of the format
  std::string base_digest{};  // of all its files
  // Everything that decides the trials, as names and texts.
  std::vector<std::pair<std::string, std::string>> settings{};
  std::vector<std::string> command{};
  Thresholds thresholds{};
  double deadline = 0;  // in seconds; 0 if it is not known yet
  double golden_seconds = 0;
  TrainingLog golden{};
  int64_t sites = 0;  // that the selection has
  // The probability that a trial flips the highest bit of an exponent, which makes a
  // number below 2 huge. Without other harm, it is the expected rate of N-EV.
  std::optional<double> predicted{};
};

std::string encode_campaign(const CampaignFile& file);
// Fails with kInvalid, naming `where`, for anything else than a campaign.
Result<CampaignFile> decode_campaign(std::string_view text, const std::string& where);
Result<CampaignFile> read_campaign(Env& env, const Path& folder);

// Fails with kConflict, naming the first setting that differs, unless a campaign with
// these settings can be continued by one with those of `wanted`. The golden run is not
// compared.
Result<void> check_same_campaign(const CampaignFile& there, const CampaignFile& wanted,
                                 const Path& folder);

// The settings of a new campaign, without its golden run. Reads all bytes of the base.
Result<CampaignFile> describe_campaign(Env& env, const CampaignOptions& options,
                                       const Found& base);

}  // namespace holdfast
