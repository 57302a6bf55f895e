// The output of `holdfast campaign`, for people and for programs.
#pragma once

#include <span>
#include <string>

#include "holdfast/base/json_fields.h"
#include "holdfast/campaign/analysis.h"
#include "holdfast/campaign/campaign.h"

namespace holdfast {

// "golden: 2 runs, bit-equal, 3.1 s each; 385 trials, about 10 min".
std::string golden_text(const GoldenReport& golden);
// What was done, and which outcomes the campaign has.
std::string campaign_text(const std::string& folder, const CampaignResult& done,
                          const CampaignAnalysis& analysis);
// Tables of outcomes, and of the bits, roles and layers that were hit.
std::string analysis_text(std::span<const Path> parts,
                          const CampaignAnalysis& analysis);
std::string pairs_text(const PairedAnalysis& pairs);
std::string strata_text(const StrataAnalysis& strata);

// The members of the same reports as JSON.
void put_members(FieldWriter& field, const std::string& folder,
                 const CampaignResult& done, const CampaignAnalysis& analysis);
void put_members(FieldWriter& field, const std::vector<Path>& parts,
                 const CampaignAnalysis& analysis);
void put_members(FieldWriter& field, const PairedFolders& folders,
                 const PairedAnalysis& pairs);
void put_members(FieldWriter& field, const StrataAnalysis& strata);

}  // namespace holdfast
