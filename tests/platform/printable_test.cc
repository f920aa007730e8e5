#include "runtime/platform/printable.h"

#include <gtest/gtest.h>

#include <string>

namespace manyhead {
namespace {

TEST(Printable, KeepsTextAndEscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Printable("plain \\ text"), "plain \\ text");
  EXPECT_EQ(Printable("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\xA6\x99"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\xA6\x99");
  EXPECT_EQ(Printable("\x1B[2J\r\n\x7F"), "\\x1b[2J\\x0d\\x0a\\x7f");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xC2\x9B"), "\\xc2\\x9b");           // a control character of Latin-1
  EXPECT_EQ(Printable("\xE2\x80\xAE"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(Printable("\xE2\x80\xA8"), "\\xe2\\x80\\xa8");  // line separator
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(Printable("\xFF\x80"), "\\xff\\x80");
  EXPECT_EQ(Printable("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(Printable("\xE0\x80\x80"), "\\xe0\\x80\\x80");           // overlong
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(Printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(Printable("\xF0\x9F\xA6"), "\\xf0\\x9f\\xa6");           // cut short
  EXPECT_EQ(Printable("\xF0\x9F\xA6x"), "\\xf0\\x9f\\xa6x");         // cut short
}

TEST(Printable, CutsWholeCharacters) {
  EXPECT_EQ(Printable("abcd", 4), "abcd");
  EXPECT_EQ(Printable("abcde", 4), "abcd...");
  EXPECT_EQ(Printable("abc\xC3\xA9", 4), "abc...");
  EXPECT_EQ(Printable("", 0), "");
}

}  // namespace
}  // namespace manyhead
