#include "runtime/text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace manyhead {
namespace {

/// The encoding by arithmetic, for every code point.
std::string Encode(unsigned code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 + code / (1u << shift) % 64); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 + code / 64), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 + code / 4096), tail(6), tail(0)};
  return {static_cast<char>(0xF0 + code / 262144), tail(12), tail(6), tail(0)};
}

TEST(Utf8, EveryCodePointHasItsLength) {
  for (unsigned code = 0; code <= 0x10FFFF; ++code) {
    const std::string text = Encode(code);
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    ASSERT_EQ(Utf8CharLength(text), surrogate ? 0 : text.size()) << code;
    ASSERT_EQ(Utf8CharLength(text + "x"), surrogate ? 0 : text.size()) << code;
    for (std::size_t cut = 1; !surrogate && cut < text.size(); ++cut) {
      const std::string_view part = std::string_view(text).substr(0, cut);
      ASSERT_EQ(Utf8CharLength(part), 0) << code;
      ASSERT_EQ(Utf8UnfinishedTail(part), cut) << code;
    }
    if (!surrogate) {
      ASSERT_EQ(Utf8UnfinishedTail(text), 0) << code;
    }
  }
}

TEST(Utf8, WhatIsNoCharacter) {
  for (std::string_view text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xE2(\x82", "\xC3("}) {
    EXPECT_EQ(Utf8CharLength(text), 0) << ::testing::PrintToString(text);
  }
  EXPECT_EQ(Utf8CharLength(""), 0);
  EXPECT_EQ(Utf8CharLength(std::string_view("\0", 1)), 1);
}

TEST(Utf8, TailThatNoByteCanCompleteIsNotUnfinished) {
  EXPECT_EQ(Utf8UnfinishedTail("\xC1"), 0);          // would be overlong
  EXPECT_EQ(Utf8UnfinishedTail("\xE0\x9F"), 0);      // overlong
  EXPECT_EQ(Utf8UnfinishedTail("\xED\xA0"), 0);      // a surrogate
  EXPECT_EQ(Utf8UnfinishedTail("\xF4\x90"), 0);      // above U+10FFFF
  EXPECT_EQ(Utf8UnfinishedTail("\x80"), 0);          // no lead byte
  EXPECT_EQ(Utf8UnfinishedTail("\xE2\x82\xE2"), 1);  // only the last one can go on
  EXPECT_EQ(Utf8UnfinishedTail("a\xE2\x82"), 2);
  EXPECT_EQ(Utf8UnfinishedTail("\xF0\x9F\xA6"), 3);
  EXPECT_EQ(Utf8UnfinishedTail(""), 0);
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(Utf8ValidPrefix("a\xC4\x8F\xFFz"), 3);
  EXPECT_EQ(Utf8ValidPrefix("\xE2\x82\xAC"), 3);
  EXPECT_EQ(Utf8ValidPrefix("\xE2\x82"), 0);
  EXPECT_EQ(Utf8ValidPrefix(""), 0);
}

}  // namespace
}  // namespace manyhead
