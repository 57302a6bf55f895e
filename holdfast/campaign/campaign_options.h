// Checks what a campaign is asked for, before anything runs.
#pragma once

#include "holdfast/campaign/campaign.h"

namespace holdfast {

// Fails with kInvalid, or as check_command() does.
Result<void> check_options(const CampaignOptions& options);

}  // namespace holdfast
