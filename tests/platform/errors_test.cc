#include "runtime/platform/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "runtime/platform/math.h"

namespace manyhead {
namespace {

TEST(Errors, MessagesBeginWithThePlaceAndJoinTheirParts) {
  const std::string name = "head";
  const struct {
    Status status;
    StatusCode code;
  } cases[] = {
      {InvalidArgument("F", name, " = ", -1, "; expected ", 0.5), StatusCode::kInvalidArgument},
      {Unsupported("F", name, " = ", -1, "; expected ", 0.5), StatusCode::kUnsupported},
      {OutOfPages("F", name, " = ", -1, "; expected ", 0.5), StatusCode::kOutOfPages},
      {IoError("F", name, " = ", -1, "; expected ", 0.5), StatusCode::kIoError},
  };
  for (const auto& [status, code] : cases) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "F: head = -1; expected 0.5");
  }
  EXPECT_EQ(MakeError(StatusCode::kIoError, "a", 1, 'b').message(), "a1b");
}

TEST(Errors, RangesIncludeBothEnds) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(CheckRange("F", "n", 3, 3, 5).ok());
  EXPECT_TRUE(CheckRange("F", "n", 5, 3, 5).ok());
  EXPECT_EQ(CheckRange("F", "n", 2, 3, 5).message(), "F: n = 2; expected 3..5");
  EXPECT_EQ(CheckRange("F", "n", 6, 3, 5).message(), "F: n = 6; expected 3..5");
  EXPECT_TRUE(CheckRange("F", "n", kLeast, kLeast, kMost).ok());
  EXPECT_EQ(CheckRange("F", "n", kMost, kLeast, kMost - 1).code(), StatusCode::kInvalidArgument);
}

TEST(Math, RoundsUpWithoutOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t by : {1, 2, 3, 16, 17})
    for (std::int64_t n = 0; n < 60; ++n) {
      std::int64_t quotient = 0;
      while (quotient * by < n) ++quotient;
      EXPECT_EQ(CeilDiv(n, by), quotient) << n << " / " << by;
      EXPECT_EQ(RoundUp(n, by), quotient * by) << n << " to " << by;
    }
  EXPECT_EQ(CeilDiv(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(CeilDiv(kMost, kMost), 1);
  EXPECT_EQ(RoundUp(std::numeric_limits<std::uint64_t>::max() - 7, 8),
            std::numeric_limits<std::uint64_t>::max() - 7);
}

}  // namespace
}  // namespace manyhead
