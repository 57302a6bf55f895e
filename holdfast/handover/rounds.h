// How ranks tell each other something during a handover: in rounds (agreement.h), in each
// of which every rank says one message and hears those of all.
#pragma once

#include <vector>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/shared_place/shared_place.h"
#include "holdfast/transport/agreement.h"

namespace holdfast {

// Says one message and hears those of all ranks. Called by all together. If a rank says
// an error, or this one does not hear all others, that is returned. `heard` says
// afterwards whether it has heard them.
Result<std::vector<Message>> say_and_hear(const JobRanks& ranks, const Message& own,
                                          Duration at_most, bool* heard = nullptr);

// Files in the text of a message.
std::string pack_files(const SmallFiles& files);
Result<SmallFiles> unpack_files(std::string_view packed);

}  // namespace holdfast
