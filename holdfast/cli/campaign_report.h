// The output of `holdfast campaign`, for people and for programs.
#pragma once

#include <span>
#include <string>

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

std::string campaign_json(const std::string& folder, const CampaignResult& done,
                          const CampaignAnalysis& analysis);
std::string analysis_json(std::span<const Path> parts,
                          const CampaignAnalysis& analysis);
std::string pairs_json(const PairedFolders& folders, const PairedAnalysis& pairs);
std::string strata_json(const StrataAnalysis& strata);

}  // namespace holdfast
