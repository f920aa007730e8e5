#include "runtime/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <string>

#include "runtime/platform/dcheck.h"
#include "runtime/text/utf8.h"

namespace manyhead {
namespace {

/// The characters of White_Space. PCRE2's own \s also contains U+180E.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F})"
    R"(\x{3000})";

/// The characters that Unicode 15.1, which the reference tokenizers follow, adds to Unicode 14,
/// which PCRE2 10.42 knows. A later PCRE2 then has these characters twice, which changes nothing.
struct AddedChars {
  std::string_view category;
  std::string_view ranges;
};
constexpr AddedChars kAddedChars[] = {
    {R"(\p{L})", R"(\x{1123F}\x{11240}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
                 R"(\x{13441}-\x{13446}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D})"
                 R"(\x{1E4D0}-\x{1E4EB}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {R"(\p{N})", R"(\x{11F50}-\x{11F59}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9})"},
    {R"(\p{M})", R"(\x{CF3}\x{ECE}\x{10EFD}-\x{10EFF}\x{11241}\x{11F00}\x{11F01}\x{11F03})"
                 R"(\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{13440}\x{13447}-\x{13455}\x{1E08F})"
                 R"(\x{1E4EC}-\x{1E4EF})"},
    {R"(\p{P})", R"(\x{11B00}-\x{11B09}\x{11F43}-\x{11F4F})"},
    {R"(\p{S})",
     R"(\x{2FFC}-\x{2FFF}\x{31EF}\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9})"
     R"(\x{1FA75}-\x{1FA77}\x{1FA87}\x{1FA88}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABD}\x{1FABF})"
     R"(\x{1FACE}\x{1FACF}\x{1FADA}\x{1FADB}\x{1FAE8}\x{1FAF7}\x{1FAF8})"},
};

/// Replaces \s, \S and the categories above by explicit classes, inside brackets and outside.
std::string ExpandClasses(std::string_view expression) {
  std::string out;
  bool inside = false;
  const auto append_class = [&](std::string_view head, std::string_view ranges) {
    if (inside) {
      out.append(head).append(ranges);
    } else {
      out.append("[").append(head).append(ranges).append("]");
    }
  };
  for (std::size_t i = 0; i < expression.size();) {
    const std::string_view rest = expression.substr(i);
    const auto* added = std::find_if(std::begin(kAddedChars), std::end(kAddedChars),
                                     [&](const auto& a) { return rest.starts_with(a.category); });
    if (added != std::end(kAddedChars)) {
      append_class(added->category, added->ranges);
      i += added->category.size();
    } else if (rest.starts_with(R"(\s)")) {
      append_class("", kSpaces);
      i += 2;
    } else if (rest.starts_with(R"(\S)")) {
      MANYHEAD_DCHECK(!inside);
      append_class("^", kSpaces);
      i += 2;
    } else if (rest[0] == '\\') {
      out.append(rest.substr(0, 2));
      i += 2;
    } else {
      if (rest[0] == '[') inside = true;
      if (rest[0] == ']') inside = false;
      out.push_back(rest[0]);
      ++i;
    }
  }
  return out;
}

/// The matcher's buffers, one set for each call of Split.
class MatchState {
 public:
  explicit MatchState(std::size_t text_size)
      : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    if (data_ == nullptr || context_ == nullptr) {
      Free();
      throw std::bad_alloc();
    }
    // Each expression takes a few steps for a byte; the limit stops one that takes more.
    const std::size_t steps = 1'000'000 + 16 * std::min<std::size_t>(text_size, 200'000'000);
    pcre2_set_match_limit(context_, static_cast<std::uint32_t>(steps));
  }
  ~MatchState() { Free(); }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  /// Returns 1 and the bounds of the next match at or after `from`, 0 if there is none, negative on
  /// error.
  int Next(const pcre2_code* code, std::string_view text, std::size_t from, std::size_t* begin,
           std::size_t* end) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_, context_);
    if (found == PCRE2_ERROR_NOMATCH) return 0;
    if (found < 0) return found;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_);
    *begin = bounds[0];
    *end = bounds[1];
    return 1;
  }

 private:
  void Free() noexcept {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
  }
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

/// Splits `word`, which is valid UTF-8, into matches and the parts between them.
Status SplitWord(const pcre2_code* code, std::string_view word, MatchState* state,
                 std::vector<std::string_view>* words) {
  std::size_t done = 0;
  while (done < word.size()) {
    std::size_t begin = 0;
    std::size_t end = 0;
    const int found = state->Next(code, word, done, &begin, &end);
    if (found < 0) {
      return {StatusCode::kInvalidArgument, "Encode: the pre-tokenizer stopped in a text of " +
                                                std::to_string(word.size()) +
                                                " bytes: " + ErrorText(found)};
    }
    if (found == 0) break;
    if (begin > done) words->push_back(word.substr(done, begin - done));
    words->push_back(word.substr(begin, end - begin));
    done = end;
  }
  if (done < word.size()) words->push_back(word.substr(done));
  return {};
}

}  // namespace

void PreTokenizer::CodeDeleter::operator()(pcre2_real_code_8* code) const noexcept {
  pcre2_code_free(code);
}

Result<PreTokenizer> PreTokenizer::Create(std::span<const std::string_view> expressions) {
  PreTokenizer result;
  for (std::string_view expression : expressions) {
    const std::string expanded = ExpandClasses(expression);
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset, nullptr);
    if (code == nullptr) {
      return Status(StatusCode::kUnsupported,
                    "LoadTokenizer: this PCRE2 rejects a pre-tokenizer expression at offset " +
                        std::to_string(offset) + ": " + ErrorText(error));
    }
    result.codes_.emplace_back(code);
    // Without a just-in-time compiler, or where memory must not be made executable, PCRE2
    // interprets the same code.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  return result;
}

Result<std::vector<std::string_view>> PreTokenizer::Split(std::string_view text) const {
  MatchState state(text.size());
  std::vector<std::string_view> words;
  std::vector<std::string_view> refined;
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const std::size_t valid = Utf8ValidPrefix(text);
    if (valid > 0) {
      words.assign(1, text.substr(0, valid));
      for (const auto& code : codes_) {
        refined.clear();
        for (std::string_view word : words) {
          Status status = SplitWord(code.get(), word, &state, &refined);
          if (!status.ok()) return status;
        }
        words.swap(refined);
      }
      result.insert(result.end(), words.begin(), words.end());
      text.remove_prefix(valid);
    }
    std::size_t invalid = 0;
    while (invalid < text.size() && Utf8CharLength(text.substr(invalid)) == 0) ++invalid;
    if (invalid > 0) result.push_back(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return result;
}

}  // namespace manyhead
