#include "runtime/session/stop_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace manyhead {
namespace {

std::string Stream(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                   bool* stopped) {
  StopText stream(stops);
  std::string shown;
  for (const std::string& piece : pieces) shown += stream.Push(piece);
  *stopped = stream.stopped();
  return shown + stream.Flush();
}

TEST(StopText, EndsBeforeAStopThatSpansPieces) {
  bool stopped = false;
  EXPECT_EQ(Stream({"END"}, {"abc E", "N", "D xyz", "more"}, &stopped), "abc ");
  EXPECT_TRUE(stopped);
}

TEST(StopText, TakesTheEarliestOfSeveral) {
  bool stopped = false;
  EXPECT_EQ(Stream({"b", "ab"}, {"xxab"}, &stopped), "xx");
  EXPECT_TRUE(stopped);
}

TEST(StopText, GivesBackWhatOnlyLookedLikeAStop) {
  bool stopped = true;
  EXPECT_EQ(Stream({"aab"}, {"a", "a", "a", "a", "c", "aa"}, &stopped), "aaaacaa");
  EXPECT_FALSE(stopped);
}

TEST(StopText, HoldsBackNoMoreThanAPossibleBeginning) {
  StopText stream({"\n\n", "###"});
  EXPECT_EQ(stream.Push("one\n"), "one");
  EXPECT_EQ(stream.Push("two##"), "\ntwo");
  EXPECT_EQ(stream.Push("!"), "##!");
}

TEST(StopText, WithoutStopsPassesEverything) {
  bool stopped = true;
  EXPECT_EQ(Stream({}, {"a", "", "b"}, &stopped), "ab");
  EXPECT_FALSE(stopped);
}

}  // namespace
}  // namespace manyhead
