// escape_for_terminal(): text of other processes must not control the terminal, and readable characters must stay
// readable.
#include "base/terminal_text.h"

#include <gtest/gtest.h>

namespace orthant::terminal_text_test {
namespace {

TEST(TerminalText, ReadableTextStays) {
  const std::string text = "rank 1: loss \u2248 3.2\tin \u201etext.txt\u201c\n  \U0001f600 \\x1b";
  EXPECT_EQ(escape_for_terminal(text), text);
  EXPECT_EQ(escape_for_terminal(""), "");
}

TEST(TerminalText, ControlCharactersAreEscaped) {
  EXPECT_EQ(escape_for_terminal("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(escape_for_terminal("a\rb\b\x7f"), "a\\x0db\\x08\\x7f");
  EXPECT_EQ(escape_for_terminal(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(TerminalText, ControlsOfUnicodeAreEscaped) {
  EXPECT_EQ(escape_for_terminal("\u009b31m"), "\\u{009b}31m");  // CSI in one character
  EXPECT_EQ(escape_for_terminal("a\u202eb\u2066c\u2028d"), "a\\u{202e}b\\u{2066}c\\u{2028}d");
}

TEST(TerminalText, InvalidUtf8IsEscapedByteByByte) {
  EXPECT_EQ(escape_for_terminal("\xff\xc0\xaf"), "\\xff\\xc0\\xaf");
  EXPECT_EQ(escape_for_terminal("a\xe2\x82"), "a\\xe2\\x82");              // cut off
  EXPECT_EQ(escape_for_terminal("\xed\xa0\x80"), "\\xed\\xa0\\x80");       // a surrogate
  EXPECT_EQ(escape_for_terminal("\xe0\x80\x9b"), "\\xe0\\x80\\x9b");       // overlong
  EXPECT_EQ(escape_for_terminal("\x9b" "31m"), "\\x9b31m");                // CSI in one byte
}

TEST(TerminalText, LengthIsBounded) {
  EXPECT_EQ(escape_for_terminal("abcdef", 6), "abcdef");
  EXPECT_EQ(escape_for_terminal("abcdef", 4), "abcd... (2 bytes omitted)");
  EXPECT_EQ(escape_for_terminal("abc\u20ac", 4), "abc... (3 bytes omitted)");  // never half a character
  EXPECT_EQ(escape_for_terminal("abc\x1b", 4), "abc... (1 byte omitted)");     // never half an escape
  EXPECT_LT(escape_for_terminal(std::string(1 << 20, '\x1b')).size(), 5000u);
}

TEST(TerminalText, LengthsOfCharacters) {
  const std::string text = "a\u00e9\u20ac\U0001f600\xff";
  EXPECT_EQ(utf8_length(text, 0), 1u);
  EXPECT_EQ(utf8_length(text, 1), 2u);
  EXPECT_EQ(utf8_length(text, 2), 0u);  // within a character
  EXPECT_EQ(utf8_length(text, 3), 3u);
  EXPECT_EQ(utf8_length(text, 6), 4u);
  EXPECT_EQ(utf8_length(text, 10), 0u);
  EXPECT_EQ(utf8_length(text, 11), 0u);  // the end
}

TEST(EscapeLine, HasNoNewline) {
  EXPECT_EQ(escape_line("one\ntwo\x1b"), "one\\ntwo\\x1b");
  EXPECT_NE(escape_for_terminal("one\ntwo").find('\n'), std::string::npos);
}

}  // namespace
}  // namespace orthant::terminal_text_test
