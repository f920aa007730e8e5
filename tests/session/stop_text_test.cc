#include "runtime/session/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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

// Stop strings inside each other, as public reports of stop strings in streams have them (vllm,
// llama.cpp): a token may hold several of them.
TEST(StopText, TheOneThatEndsFirstWins) {
  const struct {
    std::vector<std::string> stops;
    std::string text, shown;
  } cases[] = {{{"abcd", "bc"}, "abcdabcd", "a"},
               {{"bc", "abcd"}, "abcdabcd", "a"},
               {{"hello world", "lo"}, "hello world", "hel"},
               {{"world", "lo wor", "o w"}, "hello world", "hell"},
               {{"aab", "ab", "b"}, "xaab", "x"},
               {{"\xC3\xA9\xC3\xA8", "\xC3\xA9"}, "\xC3\xA9\xC3\xA8", ""},
               {{"ab", "ab"}, "cab", "c"}};
  for (const auto& [stops, text, shown] : cases)
    for (std::size_t size = 1; size <= text.size(); ++size) {
      std::vector<std::string> pieces;
      for (std::size_t at = 0; at < text.size(); at += size)
        pieces.push_back(text.substr(at, size));
      bool stopped = false;
      EXPECT_EQ(Stream(stops, pieces, &stopped), shown) << text << " in pieces of " << size;
      EXPECT_TRUE(stopped);
    }
}

/// Returns the text before the stop that is complete first, found by reading single bytes.
std::string ReadByteByByte(const std::vector<std::string>& stops, const std::string& text,
                           bool* stopped) {
  *stopped = true;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops)
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    if (longest > 0) return text.substr(0, end - longest);
  }
  *stopped = false;
  return text;
}

TEST(StopText, PiecesOfAnySizeGiveTheSameText) {
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<std::size_t>(random() % n); };
  const auto word = [&](std::size_t size) {
    std::string made;
    for (std::size_t i = 0; i < size; ++i) made += static_cast<char>('a' + below(2));
    return made;
  };
  int stops_found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops, pieces;
    for (std::size_t i = below(4); i > 0; --i) stops.push_back(word(1 + below(6)));
    const std::string text = word(below(20));
    for (std::size_t at = 0; at < text.size(); at += pieces.back().size())
      pieces.push_back(text.substr(at, 1 + below(7)));
    bool stopped = false, expected_stop = false;
    const std::string expected = ReadByteByByte(stops, text, &expected_stop);
    ASSERT_EQ(Stream(stops, pieces, &stopped), expected) << text;
    ASSERT_EQ(stopped, expected_stop) << text;
    stops_found += stopped;
  }
  EXPECT_GT(stops_found, 500);
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
