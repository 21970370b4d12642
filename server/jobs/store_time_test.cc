#include "server/jobs/store_time.h"

#include <gtest/gtest.h>

#include "tests/jobs/fake_clock.h"

namespace tessera::server {
namespace {

TEST(StoreTimeTest, RecordsFollowTheCalendarWhenItJumpsAndWaitsDoNot) {
  FakeClock clock;
  StoreTime time(clock, clock.Now(), absl::ZeroDuration());
  const absl::Time begun = clock.Now();
  for (const absl::Duration jump : {absl::Hours(72), -absl::Hours(24 * 365), absl::Hours(24 * 4400)}) {
    clock.Jump(jump);
    clock.Advance(absl::Minutes(1));
    time.Follow(clock.Now());
    EXPECT_EQ(time.Calendar(), clock.Now()) << jump;
  }
  EXPECT_EQ(time.Now(), begun + absl::Minutes(3));
  EXPECT_EQ(time.Running(), absl::Minutes(3));
}

TEST(StoreTimeTest, RecordsOfAClockThatIsDisciplinedAreInTheirOrder) {
  FakeClock clock;
  StoreTime time(clock, clock.Now(), absl::ZeroDuration());
  const absl::Time begun = clock.Now();
  clock.Jump(-absl::Milliseconds(900));
  time.Follow(clock.Now());
  EXPECT_EQ(time.Calendar(), begun);
}

TEST(StoreTimeTest, ForeseesWhenARetentionIsOver) {
  FakeClock clock;
  StoreTime time(clock, clock.Now(), absl::Hours(100));
  const absl::Time expiry = clock.Now() + absl::Hours(24);
  EXPECT_EQ(time.CalendarAt(absl::Hours(124)), expiry);
  clock.Advance(absl::Hours(7));
  EXPECT_EQ(time.CalendarAt(absl::Hours(124)), expiry) << "it is the same at every call";
  clock.Jump(absl::Hours(1));
  time.Follow(clock.Now());
  EXPECT_EQ(time.CalendarAt(absl::Hours(124)), expiry + absl::Hours(1)) << "the clock was wrong by so much";
  time.SetRunning(absl::Hours(110));  // other servers have measured three hours more
  EXPECT_EQ(time.CalendarAt(absl::Hours(124)), expiry - absl::Hours(2));
}

}  // namespace
}  // namespace tessera::server
