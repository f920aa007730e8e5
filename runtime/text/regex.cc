#include "runtime/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <new>

#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr std::size_t kMaxExpressionBytes = std::size_t{64} << 10;

/// The characters of White_Space. PCRE2's own \s has U+180E beside it.
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
    } else if (rest.starts_with(R"(\S)") && !inside) {
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

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexScratch::RegexScratch(std::size_t text_size)
    : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    throw std::bad_alloc();
  }
  // Each expression takes a few steps for a byte; the limit stops one that does not.
  const std::size_t steps = 1'000'000 + 16 * std::min<std::size_t>(text_size, 200'000'000);
  pcre2_set_match_limit(context_, static_cast<std::uint32_t>(steps));
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
}

void Regex::CodeDeleter::operator()(pcre2_real_code_8* code) const noexcept {
  pcre2_code_free(code);
}

Result<Regex> Regex::Create(std::string_view expression) {
  if (expression.size() > kMaxExpressionBytes)
    return Unsupported("LoadTokenizer", "a pre-tokenizer expression of ", expression.size(),
                       " bytes; expected at most ", kMaxExpressionBytes);
  const std::string expanded = ExpandClasses(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.code_.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()), expanded.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, nullptr));
  if (regex.code_ == nullptr)
    return Unsupported("LoadTokenizer", "this PCRE2 rejects a pre-tokenizer expression at offset ",
                       offset, ": ", ErrorText(error));
  // Without a just-in-time compiler, or where memory may not be made executable, the same code is
  // interpreted.
  (void)pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);
  return regex;
}

Status Regex::Split(std::string_view text, RegexScratch& scratch,
                    std::vector<RegexPart>* parts) const {
  std::size_t done = 0;
  while (done < text.size()) {
    const int found =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, scratch.data_, scratch.context_);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      return InvalidArgument("Encode", "the pre-tokenizer stopped in a text of ", text.size(),
                             " bytes: ", ErrorText(found));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(scratch.data_);
    const std::size_t begin = bounds[0], end = bounds[1];
    if (begin < done || end <= begin)  // an expression may move the beginning by backslash K
      return InvalidArgument("Encode", "a pre-tokenizer expression matches backwards");
    if (begin > done) parts->push_back({text.substr(done, begin - done), false});
    parts->push_back({text.substr(begin, end - begin), true});
    done = end;
  }
  if (done < text.size()) parts->push_back({text.substr(done), false});
  return {};
}

}  // namespace manyhead
