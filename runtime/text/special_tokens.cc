#include "runtime/text/special_tokens.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <span>
#include <string>

namespace manyhead {
namespace {

/// Texts that end a turn or a sequence in the models that have them.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    "[e~[",
};

constexpr std::string_view kFimPrefixTexts[] = {"<|fim_prefix|>",
                                                "<fim-prefix>",
                                                "<fim_prefix>",
                                                "<\xEF\xBD\x9C"
                                                "fim\xE2\x96\x81"
                                                "begin\xEF\xBD\x9C>",
                                                "<PRE>",
                                                "\xE2\x96\x81<PRE>",
                                                "<|code_prefix|>",
                                                "<|prefix|>"};
constexpr std::string_view kFimSuffixTexts[] = {"<|fim_suffix|>",
                                                "<fim-suffix>",
                                                "<fim_suffix>",
                                                "<\xEF\xBD\x9C"
                                                "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
                                                "<SUF>",
                                                "\xE2\x96\x81<SUF>",
                                                "<|code_suffix|>",
                                                "<|suffix|>"};
constexpr std::string_view kFimMiddleTexts[] = {"<|fim_middle|>",
                                                "<fim-middle>",
                                                "<fim_middle>",
                                                "<\xEF\xBD\x9C"
                                                "fim\xE2\x96\x81"
                                                "end\xEF\xBD\x9C>",
                                                "<MID>",
                                                "\xE2\x96\x81<MID>",
                                                "<|code_middle|>",
                                                "<|middle|>"};
constexpr std::string_view kFimPadTexts[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
                                             "[PAD]"};
constexpr std::string_view kFimRepoTexts[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                              "<REPO>", "<reponame>"};
constexpr std::string_view kFimFileTexts[] = {"<|file_sep|>"};

/// A role that a key of the file gives to a token; without the key the first of `texts` in the
/// vocabulary has it.
struct Role {
  std::string_view key;
  std::string_view old_key;
  std::span<const std::string_view> texts;
  bool ends = false;  ///< generation ends at it
};
constexpr Role kRoles[] = {
    {"tokenizer.ggml.eot_token_id", "", {}, true},
    {"tokenizer.ggml.eom_token_id", "", {}, true},
    {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id", kFimPrefixTexts, false},
    {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id", kFimSuffixTexts, false},
    {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id", kFimMiddleTexts, false},
    {"tokenizer.ggml.fim_pad_token_id", "", kFimPadTexts, true},
    {"tokenizer.ggml.fim_rep_token_id", "", kFimRepoTexts, true},
    {"tokenizer.ggml.fim_sep_token_id", "", kFimFileTexts, true},
};

/// Returns the ids under `key`, empty if it is absent: one number or an array of them.
Result<std::vector<TokenId>> ReadTokenIds(const Metadata& metadata, const Vocabulary& vocabulary,
                                          std::string_view key) {
  std::vector<TokenId> ids;
  if (key.empty()) return ids;
  Result<std::optional<std::vector<std::int64_t>>> values = metadata.GetInts(key);
  if (!values.ok()) return values.status();
  if (!values->has_value()) return ids;
  for (const std::int64_t value : **values) {
    if (!vocabulary.Contains(value)) {
      return Status(StatusCode::kIoError, "LoadTokenizer: " + std::string(key) + " = " +
                                              std::to_string(value) + "; expected 0.." +
                                              std::to_string(vocabulary.size() - 1));
    }
    ids.push_back(static_cast<TokenId>(value));
  }
  return ids;
}

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

void SortUnique(std::vector<TokenId>* ids) {
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

bool Holds(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

/// Returns true where the text of token `id` may give it a role. Where the file declares the kinds
/// of its tokens, only control tokens have one: "</s>" may be a tag of HTML, a normal or
/// user-defined token.
bool HasRoleByText(const Vocabulary& vocabulary, TokenId id) {
  if (id == kNoToken) return false;
  return !vocabulary.has_kinds() || vocabulary.kind(id) == TokenKind::kControl;
}

/// The set of pairs of neighbouring bytes in a text: most special tokens contain a pair that is not
/// in the text, which then need not be searched for them.
class BytePairs {
 public:
  explicit BytePairs(std::string_view text) {
    for (std::size_t i = 1; i < text.size(); ++i) pairs_.set(Index(text, i));
  }
  bool MayContain(std::string_view text) const {
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (!pairs_.test(Index(text, i))) return false;
    }
    return true;
  }

 private:
  static std::size_t Index(std::string_view text, std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(text[i - 1])) << 8 |
           static_cast<unsigned char>(text[i]);
  }
  std::bitset<65536> pairs_;
};

}  // namespace

Result<SpecialTokens> SpecialTokens::Load(const Metadata& metadata,
                                          const SpecialTokenDefaults& defaults,
                                          Vocabulary* vocabulary) {
  SpecialTokens tokens;
  if (Status s = tokens.ReadIds(metadata, defaults, vocabulary); !s.ok()) return s;
  if (Status s = tokens.ReadFlags(metadata, defaults); !s.ok()) return s;
  tokens.AddEndTexts(vocabulary);
  if (Status s = tokens.ListEntries(metadata, *vocabulary); !s.ok()) return s;
  return tokens;
}

Status SpecialTokens::ReadIds(const Metadata& metadata, const SpecialTokenDefaults& defaults,
                              Vocabulary* vocabulary) {
  Result<std::vector<TokenId>> ids =
      ReadTokenIds(metadata, *vocabulary, "tokenizer.ggml.bos_token_id");
  if (!ids.ok()) return ids.status();
  bos = ids->empty() ? defaults.bos : ids->front();

  ids = ReadTokenIds(metadata, *vocabulary, "tokenizer.ggml.eos_token_id");
  if (!ids.ok()) return ids.status();
  eos = ids->empty() ? defaults.eos : ids->front();
  end_tokens = *ids;
  if (eos) end_tokens.push_back(*eos);

  ids = ReadTokenIds(metadata, *vocabulary, "tokenizer.ggml.unknown_token_id");
  if (!ids.ok()) return ids.status();
  unknown = ids->empty() ? defaults.unknown.value_or(kNoToken) : ids->front();

  for (const Role& role : kRoles) {
    for (std::string_view key : {role.key, role.old_key}) {
      ids = ReadTokenIds(metadata, *vocabulary, key);
      if (!ids.ok()) return ids.status();
      if (!ids->empty()) break;
    }
    for (std::string_view text : role.texts) {
      if (!ids->empty()) break;
      const TokenId id = vocabulary->Find(text);
      if (!HasRoleByText(*vocabulary, id)) continue;
      vocabulary->set_kind(id, TokenKind::kControl);
      ids->push_back(id);
    }
    if (role.ends) end_tokens.insert(end_tokens.end(), ids->begin(), ids->end());
  }
  return {};
}

Status SpecialTokens::ReadFlags(const Metadata& metadata, const SpecialTokenDefaults& defaults) {
  Result<std::optional<bool>> flag = metadata.GetBool("tokenizer.ggml.add_bos_token");
  if (!flag.ok()) return flag.status();
  if (flag->value_or(false) && !bos) {
    return {StatusCode::kIoError,
            "LoadTokenizer: tokenizer.ggml.add_bos_token = true without "
            "tokenizer.ggml.bos_token_id"};
  }
  add_bos = (flag->value_or(defaults.add_bos) || defaults.force_bos) && bos;

  flag = metadata.GetBool("tokenizer.ggml.add_eos_token");
  if (!flag.ok()) return flag.status();
  if (flag->value_or(false) && !eos) {
    return {StatusCode::kIoError,
            "LoadTokenizer: tokenizer.ggml.add_eos_token = true without "
            "tokenizer.ggml.eos_token_id"};
  }
  add_eos = flag->value_or(false);
  return {};
}

void SpecialTokens::AddEndTexts(Vocabulary* vocabulary) {
  for (std::string_view text : kEndTexts) {
    const TokenId id = vocabulary->Find(text);
    // A key that names the token as an end outweighs the token's declared type.
    if (!HasRoleByText(*vocabulary, id) && !Holds(end_tokens, id)) continue;
    vocabulary->set_kind(id, TokenKind::kControl);
    end_tokens.push_back(id);
  }
  const auto ends = [&](std::string_view text) {
    const TokenId id = vocabulary->Find(text);
    return id != kNoToken && Holds(end_tokens, id);
  };
  const auto remove = [&](std::string_view text) {
    std::erase(end_tokens, vocabulary->Find(text));
  };
  // Where other tokens end the turn, "<|end|>" only ends one of its messages.
  const bool calls = ends("<|call|>") || ends("<|calls|>");
  if (calls && (ends("<|return|>") || ends("<|flush|>")) && ends("<|end|>")) remove("<|end|>");
  // In these vocabularies "</s>" is the closing tag of HTML's <s>.
  if ((ends("<|tool_response>") || ends("<|plamo:eos|>")) && ends("</s>")) {
    remove("</s>");
    vocabulary->set_kind(vocabulary->Find("</s>"), TokenKind::kNormal);
  }
  SortUnique(&end_tokens);
}

Status SpecialTokens::ListEntries(const Metadata& metadata, const Vocabulary& vocabulary) {
  Result<std::optional<std::string_view>> name = metadata.GetString("general.name");
  if (!name.ok()) return name.status();
  std::string lower(name->value_or(""));
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  // GGUF files cannot state this property of Phi-3's tokens.
  const bool phi3 =
      lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;

  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const bool special =
        vocabulary.is_control(id) || vocabulary.kind(id) == TokenKind::kUserDefined;
    const std::string_view text = vocabulary.text(id);
    if (!special || text.empty()) continue;
    const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
    entries_.push_back({id, phi3 && !plain});
  }
  std::stable_sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
    return vocabulary.text(a.id).size() > vocabulary.text(b.id).size();
  });
  return {};
}

/// The matches that have been found in one text.
struct SpecialTokens::Matcher {
  struct Match {
    std::size_t begin;
    std::size_t end;  ///< includes the white space that is stripped
    TokenId id;
  };

  explicit Matcher(std::string_view searched) : text(searched) {}

  bool Free(std::size_t begin, std::size_t end) const {
    return taken.empty() || std::find(taken.begin() + static_cast<std::ptrdiff_t>(begin),
                                      taken.begin() + static_cast<std::ptrdiff_t>(end),
                                      true) == taken.begin() + static_cast<std::ptrdiff_t>(end);
  }

  void FindAll(const Entry& entry, std::string_view token) {
    for (std::size_t at = text.find(token); at != std::string_view::npos;) {
      std::size_t end = at + token.size();
      if (!Free(at, end)) {
        at = text.find(token, at + 1);
        continue;
      }
      if (taken.empty()) taken.resize(text.size());
      while (entry.strip_right && end < text.size() && !taken[end] && IsAsciiSpace(text[end])) {
        ++end;
      }
      std::fill(taken.begin() + static_cast<std::ptrdiff_t>(at),
                taken.begin() + static_cast<std::ptrdiff_t>(end), true);
      matches.push_back({at, end, entry.id});
      at = text.find(token, end);
    }
  }

  std::string_view text;
  std::vector<bool> taken;
  std::vector<Match> matches;
};

std::vector<Fragment> SpecialTokens::Split(const Vocabulary& vocabulary, std::string_view text,
                                           bool parse_special) const {
  Matcher matcher(text);
  const BytePairs pairs(text);
  for (const Entry& entry : entries_) {
    if (!parse_special && vocabulary.is_control(entry.id)) continue;
    const std::string_view token = vocabulary.text(entry.id);
    if (pairs.MayContain(token)) matcher.FindAll(entry, token);
  }
  std::sort(matcher.matches.begin(), matcher.matches.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });

  std::vector<Fragment> fragments;
  std::size_t done = 0;
  for (const Matcher::Match& match : matcher.matches) {
    if (match.begin > done) fragments.push_back({kNoToken, text.substr(done, match.begin - done)});
    fragments.push_back({match.id, {}});
    done = match.end;
  }
  if (done < text.size()) fragments.push_back({kNoToken, text.substr(done)});
  return fragments;
}

}  // namespace manyhead
