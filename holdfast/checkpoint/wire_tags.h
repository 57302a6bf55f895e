// The tags of all conversations between ranks. A conversation uses its tag and the next
// number (channel.h), so tags are even.
#pragma once

#include "holdfast/transport/transport.h"

namespace holdfast {

inline constexpr Tag kBeginTag = 0x4800;     // a save, phase 1: begin
inline constexpr Tag kVoteTag = 0x4802;      // a save, phases 2 and 4: vote and outcome
inline constexpr Tag kAgreeTag = 0x4804;     // Saver::save()
inline constexpr Tag kRestoreTag = 0x4806;   // restore.h
inline constexpr Tag kAgendaTag = 0x4808;    // job/agenda.h: what is due
inline constexpr Tag kStopTag = 0x480a;      // job/agenda.h: a rank asks to stop
inline constexpr Tag kFetchTag = 0x480c;     // Job::open(): steps from tiers
inline constexpr Tag kOpenTag = 0x480e;      // Saver::open()
inline constexpr Tag kCloseTag = 0x4810;     // Saver::close()
inline constexpr Tag kReadableTag = 0x4812;  // restore.h
inline constexpr Tag kEndTag = 0x4814;       // Job::all_agree()
inline constexpr Tag kWishTag = 0x4816;      // job/agenda.h: a rank asks for a save
inline constexpr Tag kGateTag = 0x4820;      // recovery/gate.h: I am ready
inline constexpr Tag kRecordTag = 0x4822;    // recovery/gate.h: records for buddies
// 0x4824 and 0x4825 are for second buddies: python/holdfast/torch/recover/buddies.py.
inline constexpr Tag kCallLogTag = 0x4826;  // recovery/call_log.h: records for a replacement
inline constexpr Tag kPassOnTag = 0x4828;   // recovery/call_log.h: a record for another rank to keep
inline constexpr Tag kLaterRecordTag = 0x482a;  // recovery/gate.h: a record had no room

}  // namespace holdfast
