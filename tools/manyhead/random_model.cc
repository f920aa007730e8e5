#include "tools/manyhead/random_model.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace manyhead::cli {
namespace {

constexpr std::int64_t kAlignment = 32;  // GGUF's default
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// GGUF's numbers for the types of values used here.
enum class ValueType : std::uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9
};

/// The head of a GGUF file, little-endian.
class Header {
 public:
  template <class T>
  void Put(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
  }
  void Text(std::string_view text) {
    Put<std::uint64_t>(text.size());
    bytes_.append(text);
  }
  void Key(const std::string& key, ValueType type) {
    Text(key);
    Put(type);
    ++keys_;
  }
  void Number(const std::string& key, std::int64_t value) {
    Key(key, ValueType::kUint32);
    Put(static_cast<std::uint32_t>(value));
  }
  void Real(const std::string& key, float value) {
    Key(key, ValueType::kFloat32);
    Put(value);
  }
  void String(const std::string& key, std::string_view value) {
    Key(key, ValueType::kString);
    Text(value);
  }
  template <class T>
  void Array(const std::string& key, ValueType type, const std::vector<T>& values) {
    Key(key, ValueType::kArray);
    Put(type);
    Put<std::uint64_t>(values.size());
    for (const T value : values) Put(value);
  }
  void Strings(const std::string& key, const std::vector<std::string>& values) {
    Key(key, ValueType::kArray);
    Put(ValueType::kString);
    Put<std::uint64_t>(values.size());
    for (const std::string& value : values) Text(value);
  }
  std::uint64_t keys() const { return keys_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::uint64_t keys_ = 0;
};

std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

bool HasTensor(const ModelShape& shape, std::string_view part) {
  for (const TensorInfo& tensor : shape.tensors)
    if (tensor.name.ends_with(part)) return true;
  return false;
}

/// The family of the runtime whose layers have the tensors of `shape`.
Result<std::string> FamilyOf(const ModelShape& shape) {
  const auto refuse = [](const char* what, const char* expected) {
    return Status(StatusCode::kUnsupported, std::string("cannot run a model with ")
                                                .append(what)
                                                .append("; expected ")
                                                .append(expected));
  };
  if (shape.experts_per_token > 0) return refuse("experts", "one feed-forward block a layer");
  if (HasTensor(shape, "attn_sinks.weight")) return refuse("sink logits", "none");
  if (HasTensor(shape, "ffn_up.bias")) return refuse("feed-forward biases", "none");
  if (shape.config.vocab_size < 4 || shape.config.layers.front().ffn_dim == 0)
    return refuse("no vocabulary or no feed-forward blocks", "--vocab of at least 4 and --d-ff");
  const bool qk_norm = HasTensor(shape, "attn_q_norm.weight");
  if (HasTensor(shape, "post_ffw_norm.weight"))
    return qk_norm ? Result<std::string>("gemma3")
                   : refuse("post norms alone", "norms of heads with them");
  return std::string(qk_norm ? "qwen3" : "llama");
}

void PutConfig(const ModelConfig& config, const std::string& family, Header& header) {
  const std::string p = family + ".";
  std::vector<std::uint32_t> heads, kv_heads, ffn, local;
  for (const LayerConfig& layer : config.layers) {
    heads.push_back(static_cast<std::uint32_t>(layer.num_heads));
    kv_heads.push_back(static_cast<std::uint32_t>(layer.num_kv_heads));
    ffn.push_back(static_cast<std::uint32_t>(layer.ffn_dim));
    local.push_back(layer.window > 0 ? 1 : 0);
  }
  std::int64_t window = 0;
  for (const LayerConfig& layer : config.layers) window = std::max(window, layer.window);
  header.String("general.architecture", family);
  header.String("general.name", "random");
  header.Number(p + "block_count", static_cast<std::int64_t>(config.layers.size()));
  header.Number(p + "embedding_length", config.d_model);
  header.Number(p + "context_length", std::min<std::int64_t>(config.context_length, INT32_MAX));
  header.Array(p + "attention.head_count", ValueType::kUint32, heads);
  header.Array(p + "attention.head_count_kv", ValueType::kUint32, kv_heads);
  header.Array(p + "feed_forward_length", ValueType::kUint32, ffn);
  header.Number(p + "attention.key_length", config.layers.front().head_dim);
  header.Number(p + "attention.value_length", config.layers.front().head_dim_v);
  header.Number(p + "rope.dimension_count",
                std::max<std::int64_t>(2, config.layers.front().head_dim / 2 * 2));
  header.Real(p + "attention.layer_norm_rms_epsilon", 1e-6F);
  header.Number(p + "attention.sliding_window", window);
  // A single layer's list would be read as a number that means something else.
  if (config.layers.size() > 1)
    header.Array(p + "attention.sliding_window_pattern", ValueType::kUint32, local);
}

void PutTokenizer(Header& header) {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a"};
  header.String("tokenizer.ggml.model", "llama");
  header.Strings("tokenizer.ggml.tokens", tokens);
  header.Array("tokenizer.ggml.scores", ValueType::kFloat32, std::vector<float>(4, 0.0F));
  header.Array("tokenizer.ggml.token_type", ValueType::kInt32,
               std::vector<std::int32_t>{2, 3, 3, 1});
  header.Number("tokenizer.ggml.bos_token_id", 1);
  header.Number("tokenizer.ggml.eos_token_id", 2);
}

/// A sequence of random words (Marsaglia's xorshift, Journal of Statistical Software 8(14), 2003).
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

/// The bits of a power of two as f16, 2^-14 at least.
std::uint16_t HalfPower(int exponent) {
  return static_cast<std::uint16_t>((std::max(exponent, -14) + 15) << 10);
}

void SetHalf(char* at, std::uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

/// Random bytes at `out` become whole blocks of `type`, of numbers about 2^exponent in size.
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

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (file_ == nullptr) error_ = errno;
  }
  void Write(const char* bytes, std::int64_t count) {
    if (error_ == 0 && std::fwrite(bytes, 1, static_cast<std::size_t>(count), file_.get()) !=
                           static_cast<std::size_t>(count))
      error_ = errno;
    written_ += count;
  }
  void PadTo(std::int64_t multiple) {
    const std::string zeros(static_cast<std::size_t>(RoundUp(written_, multiple) - written_), '\0');
    Write(zeros.data(), static_cast<std::int64_t>(zeros.size()));
  }
  Status Finish() {
    if (error_ == 0 && std::fflush(file_.get()) != 0) error_ = errno;
    if (error_ == 0) return {};
    return Status(StatusCode::kIoError, path_ + ": cannot be written: " + std::strerror(error_));
  }

 private:
  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
  int error_ = 0;
  std::int64_t written_ = 0;
};

/// Norms are ones, biases zeros, matrices random.
void WriteTensor(const TensorInfo& tensor, Words& words, File& file) {
  file.PadTo(kAlignment);
  if (tensor.shape.size() == 1) {
    const float value = tensor.name.ends_with(".bias") ? 0.0F : 1.0F;
    const std::vector<float> values(static_cast<std::size_t>(tensor.shape[0]), value);
    return file.Write(reinterpret_cast<const char*>(values.data()), tensor.size_bytes);
  }
  // Rows of length sqrt(1), so that products keep the size of what goes in.
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
    file.Write(bytes, count);
  }
}

}  // namespace

Status WriteRandomModel(const ModelShape& shape, const std::string& path) {
  const Result<std::string> family = FamilyOf(shape);
  if (!family.ok()) return family.status();
  Header keys;
  PutConfig(shape.config, *family, keys);
  PutTokenizer(keys);
  Header head;
  head.Put<std::uint32_t>(0x46554747);  // "GGUF"
  head.Put<std::uint32_t>(3);
  head.Put<std::uint64_t>(shape.tensors.size());
  head.Put<std::uint64_t>(keys.keys());
  Header tensors;
  std::int64_t offset = 0;
  for (const TensorInfo& tensor : shape.tensors) {
    tensors.Text(tensor.name);
    tensors.Put(static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) tensors.Put(*size);
    tensors.Put(static_cast<std::uint32_t>(tensor.type));
    tensors.Put(offset);
    offset += RoundUp(tensor.size_bytes, kAlignment);
  }
  File file(path);
  for (const Header* part : {&head, &keys, &tensors})
    file.Write(part->bytes().data(), static_cast<std::int64_t>(part->bytes().size()));
  Words words;
  for (const TensorInfo& tensor : shape.tensors) WriteTensor(tensor, words, file);
  return file.Finish();
}

}  // namespace manyhead::cli
