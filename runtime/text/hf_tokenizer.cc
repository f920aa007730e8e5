#include "runtime/text/hf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "runtime/formats/json_metadata.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"
#include "runtime/text/token_pieces.h"

namespace manyhead {
namespace {

/// Tokens around every text, as a "post_processor" adds them.
struct Around {
  std::vector<TokenId> before, after;
};

/// Adds the ids of one of a template's special tokens.
Status AddTemplateToken(const JsonPart& json, const std::string& name, std::vector<TokenId>* ids) {
  const JsonPart token = json["special_tokens"][name.c_str()];
  const JsonPart::Json& list = token["ids"].json();
  if (!list.is_array()) return token.Wrong("an object with a list of ids");
  for (const JsonPart::Json& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxTokens))
      return token["ids"].Wrong("a list of ids");
    ids->push_back(static_cast<TokenId>(id.get<std::int64_t>()));
  }
  return {};
}

Status ReadTemplate(const JsonPart& json, Around* around) {
  Status status;
  const std::size_t count = json.Count("single", &status);
  bool behind = false;
  for (std::size_t i = 0; i < count && status.ok(); ++i) {
    const JsonPart step = json["single"][i];
    if (step.Has("Sequence")) {
      if (behind) return json["single"].Wrong("one Sequence");
      behind = true;
      continue;
    }
    const std::string name = step["SpecialToken"].String("id", "", &status);
    if (status.ok())
      status = AddTemplateToken(json, name, behind ? &around->after : &around->before);
  }
  if (status.ok() && !behind) return json["single"].Wrong("a list with a Sequence");
  return status;
}

/// Reads the id of a list of a token and its id.
Status ReadPair(const JsonPart& json, std::vector<TokenId>* ids) {
  const JsonPart::Json& pair = json.json();
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_unsigned() ||
      pair[1].get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxTokens))
    return json.Wrong("a list of a token and its id");
  ids->push_back(static_cast<TokenId>(pair[1].get<std::int64_t>()));
  return {};
}

Status ReadPostProcessor(const JsonPart& json, Around* around) {
  if (json.json().is_null()) return {};
  Status status;
  const std::string type = json.String("type", "", &status);
  if (!status.ok() || type == "ByteLevel") return status;
  Around own;
  if (type == "TemplateProcessing") {
    status = ReadTemplate(json, &own);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    status = ReadPair(json["cls"], &own.before);
    if (status.ok()) status = ReadPair(json["sep"], &own.after);
  } else if (type == "Sequence") {
    const std::size_t count = json.Count("processors", &status);
    for (std::size_t i = 0; i < count && status.ok(); ++i)
      status = ReadPostProcessor(json["processors"][i], &own);
  } else {
    return json.NotSupported("type",
                             "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or "
                             "Sequence");
  }
  around->before.insert(around->before.begin(), own.before.begin(), own.before.end());
  around->after.insert(around->after.end(), own.after.begin(), own.after.end());
  return status;
}

/// Lists the tokens of the model and those that were added to it, by id.
Status ListTokens(const WordModel& model, const std::vector<AddedToken>& added,
                  const PieceRule& rule, std::vector<Vocabulary::Token>* tokens) {
  const auto place = [&](TokenId id) -> Vocabulary::Token& {
    if (static_cast<std::size_t>(id) >= tokens->size())
      tokens->resize(static_cast<std::size_t>(id) + 1, {{}, {}, TokenKind::kUnused});
    return (*tokens)[static_cast<std::size_t>(id)];
  };
  for (const auto& [text, id] : model.ids())
    place(id) = {text, PieceOf(rule, text), TokenKind::kNormal};
  for (const AddedToken& token : added) {
    const auto known = model.ids().find(token.text);
    Vocabulary::Token& at = place(token.id);
    const bool taken = at.kind != TokenKind::kUnused && at.text != token.text;
    if (taken || (known != model.ids().end() && known->second != token.id))
      return IoError("tokenizer.json", "added token '", Printable(token.text), "' has id ",
                     token.id, "; the vocabulary has '",
                     Printable(taken ? std::string_view(at.text) : std::string_view(token.text)),
                     "' at ", taken ? token.id : known->second);
    const bool replaced = rule.kind == PieceRule::Kind::kReplaced && !token.special;
    at = {token.text, replaced ? PieceOf(rule, token.text) : token.text,
          token.special ? TokenKind::kControl : TokenKind::kUserDefined};
  }
  return {};
}

/// Returns the token of a key such as "eos_token", which is a text or an object with one.
Result<std::optional<TokenId>> TokenOfKey(const JsonMetadata& config, const char* key,
                                          const std::vector<Vocabulary::Token>& tokens) {
  Result<std::optional<std::string_view>> text = config.GetString(key);
  if (!text.ok()) text = config.GetString(std::string(key) + ".content");
  if (!text.ok()) return text.status();
  std::optional<TokenId> id;
  if (*text)
    for (std::size_t i = 0; i < tokens.size() && !id; ++i)
      if (tokens[i].text == **text) id = static_cast<TokenId>(i);
  return id;
}

/// Returns the ids at a key such as "eos_token_id": one or a list.
Result<std::vector<TokenId>> IdsOfKey(const Metadata& config, std::string_view key,
                                      std::size_t count) {
  std::vector<TokenId> ids;
  const auto values = config.GetInts(key);
  if (!values.ok()) return values.status();
  if (!*values) return ids;
  for (const std::int64_t value : **values) {
    if (value < 0 || value >= kMaxTokens)
      return IoError("LoadTokenizer", key, " = ", value, "; expected 0..", kMaxTokens - 1);
    // A model may have more rows than its tokenizer has tokens.
    if (value < static_cast<std::int64_t>(count)) ids.push_back(static_cast<TokenId>(value));
  }
  return ids;
}

Result<JsonMetadata> ParseOptional(std::string_view text, const char* name) {
  return JsonMetadata::Parse(text.empty() ? "{}" : text, name);
}

/// Reads which tokens begin and end a text: what the tokenizer says, else what the model does.
Status ReadRoles(const TokenizerFiles& files, const Metadata& config,
                 const std::vector<Vocabulary::Token>& tokens, HfTokenizer* made) {
  const Result<JsonMetadata> own = ParseOptional(files.tokenizer_config, "tokenizer_config.json");
  if (!own.ok()) return own.status();
  const Result<JsonMetadata> generation =
      ParseOptional(files.generation_config, "generation_config.json");
  if (!generation.ok()) return generation.status();
  for (auto [key, token] :
       {std::pair{"bos_token", &made->bos}, std::pair{"eos_token", &made->eos}}) {
    const Result<std::optional<TokenId>> id = TokenOfKey(*own, key, tokens);
    if (!id.ok()) return id.status();
    *token = *id;
    const std::string id_key = std::string(key) + "_id";
    for (const Metadata* values : {static_cast<const Metadata*>(&*generation), &config}) {
      const Result<std::vector<TokenId>> ids = IdsOfKey(*values, id_key, tokens.size());
      if (!ids.ok()) return ids.status();
      if (token == &made->eos)
        made->end_tokens.insert(made->end_tokens.end(), ids->begin(), ids->end());
      if (!*token && !ids->empty()) *token = ids->front();
    }
  }
  std::vector<TokenId>& ends = made->end_tokens;
  if (made->eos) ends.push_back(*made->eos);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return {};
}

Status CheckAround(const Around& around, std::size_t count) {
  for (const std::vector<TokenId>* ids : {&around.before, &around.after})
    for (const TokenId id : *ids)
      if (static_cast<std::size_t>(id) >= count)
        return IoError("tokenizer.json", "post_processor has id ", id, "; expected at most ",
                       count - 1);
  return {};
}

/// Makes the parts between a text and its words.
Status MakeParts(const JsonPart& root, TextPipeline* pipeline) {
  if (root.Has("normalizer")) {
    Result<std::unique_ptr<const TextNormalizer>> made = MakeTextNormalizer(root["normalizer"]);
    if (!made.ok()) return made.status();
    pipeline->normalizer = *std::move(made);
    if (Status status = pipeline->found_normalized.Normalize(*pipeline->normalizer); !status.ok())
      return status;
  }
  if (root.Has("pre_tokenizer")) {
    Result<std::unique_ptr<const WordSplitter>> made = MakeWordSplitter(root["pre_tokenizer"]);
    if (!made.ok()) return made.status();
    pipeline->splitter = *std::move(made);
  }
  return {};
}

}  // namespace

Result<HfTokenizer> ReadHfTokenizer(const TokenizerFiles& files, const Metadata& config) {
  if (files.tokenizer.empty())
    return IoError("LoadTokenizer", "the folder has no tokenizer.json; expected one");
  const Result<JsonTree> tree = ParseJson(files.tokenizer, JsonKeys::kUnique);
  if (!tree.ok()) return IoError("tokenizer.json", tree.status().message());
  const JsonPart root(tree->root(), "");
  if (!root.json().is_object()) return root.Wrong("an object");
  const Result<std::vector<AddedToken>> added = ReadAddedTokens(root["added_tokens"]);
  if (!added.ok()) return added.status();
  Result<std::unique_ptr<const WordModel>> model = MakeWordModel(root["model"]);
  if (!model.ok()) return model.status();
  const Result<PieceRule> rule = ReadPieceRule(root["decoder"]);
  if (!rule.ok()) return rule.status();
  std::vector<Vocabulary::Token> tokens;
  if (Status status = ListTokens(**model, *added, *rule, &tokens); !status.ok()) return status;
  Around around;
  if (Status status = ReadPostProcessor(root["post_processor"], &around); !status.ok())
    return status;
  if (Status status = CheckAround(around, tokens.size()); !status.ok()) return status;
  auto pipeline = std::make_unique<TextPipeline>(TextPipeline{
      AddedTokenFinder(*added, /*normalized=*/false), AddedTokenFinder(*added, /*normalized=*/true),
      nullptr, nullptr, *std::move(model), rule->kind == PieceRule::Kind::kByteLevel,
      std::move(around.before), std::move(around.after)});
  if (Status status = MakeParts(root, pipeline.get()); !status.ok()) return status;
  HfTokenizer made;
  Status type_status;
  made.model_name = root["model"].String("type", "", &type_status);
  made.drops_space = rule->drops_space;
  if (Status status = ReadRoles(files, config, tokens, &made); !status.ok()) return status;
  made.vocabulary = Vocabulary::Of(tokens);
  made.pipeline = std::move(pipeline);
  return made;
}

}  // namespace manyhead
