#include "holdfast/transport/agreement.h"

#include <gtest/gtest.h>

#include "holdfast/env/memory_env.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

class AgreementTest : public ::testing::Test {
 protected:
  // What each rank hears if they say this.
  std::vector<Result<std::vector<Bytes>>> heard(const std::vector<Result<Bytes>>& own) {
    std::vector<Result<std::vector<Bytes>>> all(own.size(), unavailable("did not call"));
    on_ranks(static_cast<int>(own.size()), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      all[r] = agree({.env = &env_, .transport = &network_.endpoint(rank)}, own[r], 1h,
                     &heard_all_[r]);
    });
    return all;
  }

  MemoryEnv env_;
  LocalNetwork network_{env_, 3};
  bool heard_all_[3] = {};
};

Bytes said(std::string_view text) { return copy_of(bytes_of(text)); }

TEST_F(AgreementTest, AllRanksHearWhatAllHaveSaid) {
  for (const auto& all : heard({said("a"), said(""), said("\xff")})) {
    ASSERT_OK(all);
    EXPECT_EQ(*all, (std::vector<Bytes>{said("a"), said(""), said("\xff")}));
  }
}

TEST_F(AgreementTest, AllReturnTheErrorOfTheLowestRankThatHasOne) {
  for (const auto& all : heard({said("a"), no_space("full"), io_error("later")})) {
    EXPECT_ERROR(all, ErrorCode::kNoSpace);
    EXPECT_EQ(message_of(all), "rank 1: full");
  }
  EXPECT_TRUE(heard_all_[0] && heard_all_[1] && heard_all_[2]);
}

TEST_F(AgreementTest, ACauseComesBeforeItsConsequences) {
  for (const auto& all :
       heard({timed_out("waited in vain"), unavailable("lost rank 2"), corrupt("bad")})) {
    EXPECT_EQ(message_of(all), "rank 2: bad");
  }
}

TEST_F(AgreementTest, ARankThatDoesNotHearAllSaysSo) {
  network_.kill(2);
  const auto all = heard({said("a"), io_error("b"), said("c")});
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_ERROR(all[rank], ErrorCode::kUnavailable);
    EXPECT_FALSE(heard_all_[rank]);
  }
}

TEST_F(AgreementTest, OneRankAgreesWithItself) {
  const JobRanks alone{.env = &env_};
  EXPECT_EQ(*agree(alone, Result<Bytes>(said("a")), 1h), std::vector<Bytes>{said("a")});
  EXPECT_EQ(message_of(agree(alone, Result<void>(invalid("no")), 1h)), "no");
}

TEST(OutcomeTest, EveryCodeIsReadBackAndOtherBytesAreRefused) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kIo); ++code) {
    const Error error(static_cast<ErrorCode>(code), "why\xff");
    const auto read = decode_outcome(encode_outcome(error));
    EXPECT_ERROR(read, error.code());
    EXPECT_EQ(message_of(read), "why\xff");
  }
  EXPECT_ERROR(decode_outcome({}), ErrorCode::kCorrupt);
  EXPECT_ERROR(decode_outcome(said("\x7f")), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast
