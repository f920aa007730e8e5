#include "manyhead/tokenizer.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/formats/checkpoint.h"
#include "runtime/platform/printable.h"
#include "runtime/text/bpe_model.h"
#include "runtime/text/hf_tokenizer.h"
#include "runtime/text/load.h"
#include "runtime/text/pretokenizer.h"
#include "runtime/text/pretokenizer_table.h"
#include "runtime/text/special_tokens.h"
#include "runtime/text/spm_model.h"
#include "runtime/text/text_model.h"
#include "runtime/text/vocabulary.h"

namespace manyhead {

struct Tokenizer::Impl {
  std::string model_name;
  std::string pre_name;
  Vocabulary vocabulary;
  SpecialTokens special;
  bool dummy_prefix = false;
  std::unique_ptr<const TextModel> model;        // refers to `vocabulary`; null with a pipeline
  std::unique_ptr<const TextPipeline> pipeline;  // the way of a tokenizer.json
};

namespace {

Status LoadSpm(const Metadata& metadata, Tokenizer::Impl* impl) {
  Result<Vocabulary> vocabulary = Vocabulary::Load(metadata, TextForm::kSpaceEscaped);
  if (!vocabulary.ok()) return vocabulary.status();
  impl->vocabulary = *std::move(vocabulary);
  if (!impl->vocabulary.has_scores()) {
    return {StatusCode::kIoError, "LoadTokenizer: tokenizer.ggml.scores is missing"};
  }
  // The ids that SentencePiece gives these tokens.
  SpecialTokenDefaults defaults;
  const auto is = [&](TokenId id, TokenKind kind) {
    return impl->vocabulary.Contains(id) && impl->vocabulary.kind(id) == kind;
  };
  defaults.add_bos = true;
  if (is(0, TokenKind::kUnknown)) defaults.unknown = 0;
  if (is(1, TokenKind::kControl)) defaults.bos = 1;
  if (is(2, TokenKind::kControl)) defaults.eos = 2;
  Result<SpecialTokens> special = SpecialTokens::Load(metadata, defaults, &impl->vocabulary);
  if (!special.ok()) return special.status();
  impl->special = *std::move(special);

  Result<std::optional<bool>> prefix = metadata.GetBool("tokenizer.ggml.add_space_prefix");
  if (!prefix.ok()) return prefix.status();
  impl->dummy_prefix = prefix->value_or(true);
  impl->model =
      std::make_unique<SpmModel>(impl->vocabulary, impl->dummy_prefix, impl->special.unknown);
  return {};
}

Status LoadBpe(const Metadata& metadata, std::string_view pre, Tokenizer::Impl* impl) {
  const PreTokenizerSpec* spec = FindPreTokenizer(pre);
  if (spec == nullptr) {
    return {StatusCode::kUnsupported,
            "LoadTokenizer: tokenizer.ggml.pre = '" + Printable(pre) + "' is not supported"};
  }
  Result<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec->expressions);
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();

  const TextForm form = spec->space_escaped ? TextForm::kSpaceEscaped : TextForm::kByteLevel;
  Result<Vocabulary> vocabulary = Vocabulary::Load(metadata, form);
  if (!vocabulary.ok()) return vocabulary.status();
  impl->vocabulary = *std::move(vocabulary);
  SpecialTokenDefaults defaults;
  defaults.add_bos = spec->add_bos;
  defaults.force_bos = spec->space_escaped;
  Result<SpecialTokens> special = SpecialTokens::Load(metadata, defaults, &impl->vocabulary);
  if (!special.ok()) return special.status();
  impl->special = *std::move(special);

  Result<std::unique_ptr<const BpeModel>> model =
      BpeModel::Create(metadata, impl->vocabulary, *std::move(pre_tokenizer),
                       {form, spec->ignore_merges, spec->nfc});
  if (!model.ok()) return model.status();
  impl->model = *std::move(model);
  return {};
}

}  // namespace

Result<Tokenizer> LoadTokenizer(const Metadata& metadata) {
  Result<std::optional<std::string_view>> model = metadata.GetString("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  if (!model->has_value()) {
    return Status(StatusCode::kIoError, "LoadTokenizer: tokenizer.ggml.model is missing");
  }
  Result<std::optional<std::string_view>> pre = metadata.GetString("tokenizer.ggml.pre");
  if (!pre.ok()) return pre.status();

  auto impl = std::make_unique<Tokenizer::Impl>();
  impl->model_name = **model;
  impl->pre_name = pre->value_or("");
  Status status;
  if (impl->model_name == "llama") {
    status = LoadSpm(metadata, impl.get());
  } else if (impl->model_name == "gpt2") {
    // Files that are older than the key hold GPT-2-like vocabularies.
    status = LoadBpe(metadata, pre->value_or("default"), impl.get());
  } else if (impl->model_name == "gemma4") {
    status = LoadBpe(metadata, "gemma4", impl.get());
  } else {
    status =
        Status(StatusCode::kUnsupported, "LoadTokenizer: tokenizer.ggml.model = '" +
                                             Printable(impl->model_name) + "' is not supported");
  }
  if (!status.ok()) return status;
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> LoadTokenizer(const Checkpoint& file) {
  const TokenizerFiles* const files = file.tokenizer_files();
  if (files == nullptr) return LoadTokenizer(file.tokenizer());
  Result<HfTokenizer> made = ReadHfTokenizer(*files, file.config());
  if (!made.ok()) return made.status();
  auto impl = std::make_unique<Tokenizer::Impl>();
  impl->model_name = std::move(made->model_name);
  impl->vocabulary = std::move(made->vocabulary);
  impl->dummy_prefix = made->drops_space;
  impl->pipeline = std::move(made->pipeline);
  impl->special.bos = made->bos;
  impl->special.eos = made->eos;
  impl->special.end_tokens = std::move(made->end_tokens);
  impl->special.add_bos =
      made->bos && !impl->pipeline->prefix.empty() && impl->pipeline->prefix.front() == *made->bos;
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::Load(const std::string& path) {
  const Result<std::unique_ptr<const Checkpoint>> file = Checkpoint::Open(path);
  if (!file.ok()) return file.status();
  return LoadTokenizer(**file);
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (impl_->pipeline != nullptr) return impl_->pipeline->Encode(text, options);
  std::vector<TokenId> ids;
  if (options.add_special && impl_->special.add_bos) ids.push_back(*impl_->special.bos);
  bool after_special = true;
  for (const Fragment& fragment :
       impl_->special.Split(impl_->vocabulary, text, options.parse_special)) {
    if (fragment.id != kNoToken) {
      ids.push_back(fragment.id);
    } else {
      Status status = impl_->model->Append(fragment.text, after_special, &ids);
      if (!status.ok()) return status;
    }
    after_special = fragment.id != kNoToken;
  }
  if (options.add_special && impl_->special.add_eos) ids.push_back(*impl_->special.eos);
  return ids;
}

std::string_view Tokenizer::Piece(TokenId id, bool special) const noexcept {
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (!vocabulary.Contains(id) || (!special && vocabulary.is_control(id))) return {};
  return vocabulary.piece(id);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool special) const {
  std::string text;
  Detokenizer detokenizer(*this, special);
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text += detokenizer.Flush();
}

std::int64_t Tokenizer::vocab_size() const noexcept { return impl_->vocabulary.size(); }
std::optional<TokenId> Tokenizer::bos() const noexcept { return impl_->special.bos; }
std::optional<TokenId> Tokenizer::eos() const noexcept { return impl_->special.eos; }
bool Tokenizer::add_bos() const noexcept { return impl_->special.add_bos; }
std::span<const TokenId> Tokenizer::end_tokens() const noexcept {
  return impl_->special.end_tokens;
}
bool Tokenizer::is_control(TokenId id) const noexcept {
  return impl_->vocabulary.Contains(id) && impl_->vocabulary.is_control(id);
}
bool Tokenizer::adds_dummy_prefix() const noexcept { return impl_->dummy_prefix; }
std::string_view Tokenizer::model_name() const noexcept { return impl_->model_name; }
std::string_view Tokenizer::pre_name() const noexcept { return impl_->pre_name; }
std::int64_t Tokenizer::memory_bytes() const noexcept {
  return impl_->vocabulary.memory_bytes() + (impl_->pipeline != nullptr
                                                 ? impl_->pipeline->model->memory_bytes()
                                                 : impl_->model->memory_bytes());
}

}  // namespace manyhead
