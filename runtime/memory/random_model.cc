#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/memory.h"
#include "runtime/architecture/gguf_config.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/formats/gguf_output.h"

namespace manyhead {
namespace {

constexpr std::int64_t kAlignment = 32;  // GGUF's default
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// Returns the family of the runtime whose layers have the tensors of `config`.
Result<const Architecture*> FamilyOf(const ModelConfig& config) {
  const auto refuse = [](const char* what, const char* expected) {
    return Status(StatusCode::kUnsupported, std::string("cannot run a model with ")
                                                .append(what)
                                                .append("; expected ")
                                                .append(expected));
  };
  if (config.experts_per_token > 0) return refuse("experts", "one feed-forward block a layer");
  if (config.attention_sinks) return refuse("sink logits", "none");
  if (config.vocab_size < 4 || config.layers.front().ffn_dim == 0)
    return refuse("no vocabulary or no feed-forward blocks", "--vocab of at least 4 and --d-ff");
  if (config.ffn_bias &&
      !(config.qkv_bias && config.output_bias && config.norm == NormKind::kLayer))
    return refuse("feed-forward biases", "none");
  for (const Architecture& one : Architectures())
    if (!one.gguf.empty() && one.norm == config.norm && one.qk_norm == config.qk_norm &&
        one.post_norms == config.post_norms && one.feed_forward == config.feed_forward &&
        one.positions == config.positions)
      return &one;
  return refuse("norms or blocks that no family has", "those of a family");
}

/// Whether ShapeBlocks makes every tensor's type.
Status CheckTypes(const ModelShape& shape) {
  constexpr WeightType kMade[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBf16,
                                  WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_K,
                                  WeightType::kQ6_K};
  for (const TensorInfo& tensor : shape.tensors)
    if (std::find(std::begin(kMade), std::end(kMade), tensor.type) == std::end(kMade))
      return Status(StatusCode::kUnsupported,
                    "cannot make random weights of tensor " + tensor.name + " in " +
                        WeightTypeName(tensor.type) +
                        "; expected F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K");
  return {};
}

void AddTokenizer(GgufOutput& output) {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a"};
  const std::vector<float> scores(tokens.size());
  const std::vector<std::int32_t> types = {2, 3, 3, 1};
  output.AddKey("tokenizer.ggml.model", "llama");
  output.AddKey("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  output.AddKey("tokenizer.ggml.scores", std::span<const float>(scores));
  output.AddKey("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  output.AddKey("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  output.AddKey("tokenizer.ggml.eos_token_id", std::uint32_t{2});
}

/// A generator of random words (Marsaglia's xorshift, Journal of Statistical Software 8(14), 2003).
class Words {
 public:
  std::uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return state_ ^= state_ << 17;
  }

 private:
  std::uint64_t state_ = 0x9E3779B97F4A7C15U;
};

/// Returns the bits of a power of two as f16, 2^-14 at least.
std::uint16_t HalfPower(int exponent) {
  return static_cast<std::uint16_t>((std::max(exponent, -14) + 15) << 10);
}

void SetHalf(char* at, std::uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

/// Turns random bytes at `out` into whole blocks of `type`, with numbers of about 2^exponent.
void ShapeBlocks(WeightType type, int exponent, char* out, std::int64_t bytes) {
  const auto each_word = [&](auto mask, auto fixed) {
    using Word = decltype(mask);
    for (std::int64_t i = 0; i < bytes; i += sizeof(Word)) {
      Word word;
      std::memcpy(&word, out + i, sizeof word);
      word = static_cast<Word>((word & mask) | fixed);  // sign and fraction stay random
      std::memcpy(out + i, &word, sizeof word);
    }
  };
  const auto each_block = [&](int scale_at, int scale_exponent, int min_at) {
    const std::int64_t block = WeightBlockOf(type).bytes;
    for (char* at = out; at < out + bytes; at += block) {
      SetHalf(at + scale_at, HalfPower(scale_exponent));
      if (min_at >= 0) SetHalf(at + min_at, HalfPower(scale_exponent + 3));
    }
  };
  switch (type) {
    case WeightType::kF16:
      return each_word(std::uint16_t{0x83FF}, HalfPower(exponent));
    case WeightType::kBf16:
      return each_word(std::uint16_t{0x807F}, static_cast<std::uint16_t>((exponent + 127) << 7));
    case WeightType::kQ8_0:
      return each_block(0, exponent - 6, -1);  // times -128..127
    case WeightType::kQ4_0:
      return each_block(0, exponent - 2, -1);  // times -8..7
    case WeightType::kQ4_K:
      return each_block(0, exponent - 8, 2);  // times 0..63 times 0..15, less 0..63 times the other
    case WeightType::kQ6_K:
      return each_block(208, exponent - 11, -1);  // times -128..127 times -32..31
    default:
      return each_word(std::uint32_t{0x807FFFFF}, static_cast<std::uint32_t>(exponent + 127) << 23);
  }
}

/// Writes a vector: scales of norms are ones, biases and shifts are zeros.
Status WriteVector(const TensorInfo& tensor, const GgufOutput::Sink& sink) {
  const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
  const bool scale = place && place->row->part == TensorPart::kScale;
  const std::vector<float> values(static_cast<std::size_t>(tensor.shape[0]), scale ? 1.0F : 0.0F);
  return sink(std::as_bytes(std::span(values)));
}

/// Writes a matrix with rows of a length of 1, so that products keep the size of their input.
Status WriteMatrix(const TensorInfo& tensor, Words& words, const GgufOutput::Sink& sink) {
  const int exponent =
      -static_cast<int>(std::log2(static_cast<double>(tensor.shape.back())) / 2 + 0.5);
  const std::int64_t block = WeightBlockOf(tensor.type).bytes;
  const std::int64_t step = kBlockBytes / block * block;
  std::vector<std::uint64_t> buffer(kBlockBytes / sizeof(std::uint64_t));
  char* const bytes = reinterpret_cast<char*>(buffer.data());
  for (std::int64_t done = 0; done < tensor.size_bytes; done += step) {
    const std::int64_t count = std::min(step, tensor.size_bytes - done);
    for (std::uint64_t& word : buffer) word = words.Next();
    ShapeBlocks(tensor.type, exponent, bytes, count);
    if (Status status = sink(std::as_bytes(std::span(bytes, static_cast<std::size_t>(count))));
        !status.ok())
      return status;
  }
  return {};
}

}  // namespace

Status WriteRandomModel(const ModelShape& shape, const std::string& path) {
  const Result<const Architecture*> family = FamilyOf(shape.config);
  if (!family.ok()) return family.status();
  if (Status status = CheckTypes(shape); !status.ok()) return status;
  GgufOutput output;
  ModelConfig config = shape.config;
  config.name = "random";
  config.norm_eps = 1e-6F;
  WriteGgufConfig(config, **family, output);
  AddTokenizer(output);
  Words words;
  for (const TensorInfo& tensor : shape.tensors)
    output.AddTensor({tensor.name,
                      tensor.type,
                      {tensor.shape.rbegin(), tensor.shape.rend()},
                      [&tensor, &words](const GgufOutput::Sink& sink) {
                        return tensor.shape.size() == 1 ? WriteVector(tensor, sink)
                                                        : WriteMatrix(tensor, words, sink);
                      }});
  return output.WriteUnsynced(path, kAlignment);
}

}  // namespace manyhead
