#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "runtime/formats/gguf.h"
#include "tests/model/tiny_model.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_bytes.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/memory_file.h"

using manyhead::GgufFile;
using manyhead::GgufTensor;
using manyhead::GgufType;
using manyhead::LayerConfig;
using manyhead::Model;
using manyhead::Result;
using manyhead::Session;
using manyhead::TokenId;
using manyhead::WeightType;
using manyhead::testing::ByteWriter;
using manyhead::testing::FuzzBytes;
using manyhead::testing::GgufWriter;
using manyhead::testing::MemoryFile;
using manyhead::testing::TinyModel;

namespace {

/// A model's file, and where numbers stand in it that say how the rest is read.
struct Base {
  std::string bytes;
  std::vector<std::size_t> places;
};

/// The file with matrices of another type, all of whose bytes are 1.
std::string Retyped(const std::string& bytes, WeightType type, std::int64_t block,
                    std::size_t block_bytes) {
  const MemoryFile memory;
  FuzzCheck(memory.Set(bytes));
  const Result<GgufFile> file = GgufFile::Open(memory.path());
  FuzzCheck(file.ok());
  GgufWriter writer;
  const std::vector<GgufFile::KeyInfo> infos = file->keys();
  const std::vector<GgufFile::KeyBytes> keys = file->key_bytes();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto value = keys[i].bytes.subspan(8 + keys[i].key.size() + 4);
    writer.Key(keys[i].key, infos[i].type,
               ByteWriter().Raw({reinterpret_cast<const char*>(value.data()), value.size()}));
  }
  for (const GgufTensor& tensor : file->tensors()) {
    const bool matrix = tensor.num_dims == 2;
    const std::string data(reinterpret_cast<const char*>(tensor.data),
                           static_cast<std::size_t>(tensor.size_bytes));
    const auto blocks = static_cast<std::size_t>(tensor.rows() * tensor.cols() / block);
    writer.AddTensor(std::string(tensor.name), matrix ? type : tensor.type,
                     {tensor.shape, tensor.shape + tensor.num_dims},
                     matrix ? std::string(blocks * block_bytes, '\1') : data);
  }
  return writer.Bytes();
}

/// Type, length and first value of every key; dimensions, type, offset and first weight of every
/// tensor.
std::vector<std::size_t> Places(const std::string& bytes) {
  const MemoryFile memory;
  FuzzCheck(memory.Set(bytes));
  const Result<GgufFile> file = GgufFile::Open(memory.path());
  FuzzCheck(file.ok());
  constexpr std::size_t kHeader = 24;
  std::vector<std::size_t> places = {8, 16};
  std::size_t at = kHeader;
  const std::vector<GgufFile::KeyBytes> keys = file->key_bytes();
  for (const GgufFile::KeyBytes& key : keys) {
    const std::size_t type = at + 8 + key.key.size();
    at += key.bytes.size();
    for (const std::size_t offset : {0U, 4U, 8U, 12U, 16U, 20U})  // of strings and arrays too
      if (type + offset < at) places.push_back(type + offset);
  }
  for (const GgufTensor& tensor : file->tensors()) {
    at += 8 + tensor.name.size();
    places.push_back(at);
    for (int i = 0; i < tensor.num_dims; ++i)
      places.push_back(at + 4 + 8 * static_cast<std::size_t>(i));
    at += 4 + 8 * static_cast<std::size_t>(tensor.num_dims);
    places.insert(places.end(), {at, at + 4});
    at += 12;
    places.push_back(kHeader + static_cast<std::size_t>(tensor.data - keys[0].bytes.data()));
  }
  return places;
}

/// One of each family, and what its layers may have; matrices of blocks of 32 and 256.
std::vector<Base> MakeBases() {
  std::vector<TinyModel> tiny(6);
  for (TinyModel& model : tiny) model.d_model = 8, model.head_dim = 4, model.ffn_dim = 8;
  tiny[1].family = "qwen2", tiny[1].biases = true;
  tiny[2].family = "qwen3", tiny[2].rope_scaling = "yarn", tiny[2].rope_factor = 4;
  tiny[2].rope_original_context = 16, tiny[2].tied = false;
  tiny[3].family = "gemma3", tiny[3].window = 4, tiny[3].window_pattern = 2;
  tiny[3].final_softcap = 30, tiny[3].rope_scaling = "linear", tiny[3].rope_factor = 2;
  tiny[4].d_model = tiny[4].ffn_dim = 32, tiny[4].head_dim = 8;
  tiny[4].rope_factors = {1, 2, 3, 4};
  tiny[5].d_model = tiny[5].ffn_dim = 256, tiny[5].layers = 1, tiny[5].head_dim = 64;
  std::vector<Base> bases;
  for (std::size_t i = 0; i < tiny.size(); ++i) {
    tiny[i].MakeWeights(static_cast<unsigned>(i + 1));
    std::string bytes = tiny[i].ToGguf().Bytes();
    if (i == 4) bytes = Retyped(bytes, WeightType::kQ8_0, 32, 34);
    if (i == 5) bytes = Retyped(bytes, WeightType::kQ4_K, 256, 144);
    bases.push_back({bytes, Places(bytes)});
  }
  return bases;
}

/// Writes a number into the file: a critical one, or any, at one of its places, or anywhere.
void Edit(FuzzBytes& choices, const std::vector<std::size_t>& places, std::string* bytes) {
  constexpr std::uint64_t kNumbers[] = {0,
                                        1,
                                        2,
                                        3,
                                        5,
                                        6,
                                        7,
                                        8,
                                        31,
                                        0xFF,
                                        256,
                                        257,
                                        1024,
                                        0xFFFF,
                                        1U << 24,
                                        1U << 31,
                                        0x7FFFFFFF,
                                        0xFFFFFFFF,
                                        1ULL << 32,
                                        1ULL << 62,
                                        1ULL << 63,
                                        ~0ULL,
                                        0x7F800000 /* f32: infinity */,
                                        0xFF800000,
                                        0x7FC00000 /* NaN */,
                                        0x80000000,
                                        0x3F800000 /* 1 */,
                                        0xBF800000,
                                        0x00800000,
                                        0x7F7FFFFF};
  constexpr std::size_t kWidths[] = {1, 4, 4, 8};
  const auto choice = choices.Take<std::uint16_t>();
  const std::size_t place = choice < 0xF000 ? places[choice % places.size()]
                                            : choices.Take<std::uint32_t>() % bytes->size();
  const auto form = choices.Take<std::uint8_t>();
  const std::size_t width = std::min(kWidths[form % 4], bytes->size() - place);
  const std::size_t which = form / 4;
  std::uint64_t number = which < std::size(kNumbers) ? kNumbers[which] : 0;
  if (which >= std::size(kNumbers)) {
    number = width > 1 && which % 2 == 1 ? choices.Take<std::uint32_t>()
                                         : std::uint64_t{choices.Take<std::uint8_t>()};
  }
  std::memcpy(bytes->data() + place, &number, width);
}

/// What was loaded can be used.
void Use(const Model& model, std::size_t file_bytes) {
  const manyhead::ModelConfig& config = model.config();
  FuzzCheck(!config.layers.empty() && config.vocab_size > 0 && config.d_model > 0);
  FuzzCheck(model.weight_bytes() > 0 &&
            model.weight_bytes() <= 2 * static_cast<std::int64_t>(file_bytes));
  for (const LayerConfig& layer : config.layers) {
    FuzzCheck(layer.num_kv_heads > 0 && layer.num_heads % layer.num_kv_heads == 0);
    FuzzCheck(layer.rope >= 0 && static_cast<std::size_t>(layer.rope) < config.ropes.size());
  }
  manyhead::SessionOptions options;
  options.context = 24;
  options.chunk = 12;
  options.threads = 1;
  Result<Session> session = Session::Create(model, options);
  if (!session.ok()) {
    FuzzCheckMessage(session.status().message());
    return;
  }
  const auto last = static_cast<TokenId>(config.vocab_size - 1);
  std::vector<TokenId> ids = {0, last};
  while (ids.size() < 14) ids.push_back(static_cast<TokenId>(ids.size() * 7) % (last + 1));
  for (const std::size_t count : {14U, 1U, 1U, 3U}) {
    ids.resize(count, last);
    const auto logits = session->Append(ids);
    FuzzCheck(logits.ok() && std::ssize(*logits) == config.vocab_size);
    model.tokenizer().Decode(ids);
  }
}

}  // namespace

// The first byte chooses a model and how it is loaded, the rest is what is changed in its file: an
// error of one line, or a model that decodes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Base> bases = MakeBases();
  static const MemoryFile memory;
  FuzzBytes choices(data, size);
  const auto choice = choices.Take<std::uint8_t>();
  const Base& base = bases[choice / 2 % bases.size()];
  std::string bytes = base.bytes;
  for (int edits = 0; edits < 16 && !choices.empty(); ++edits) Edit(choices, base.places, &bytes);
  FuzzCheck(memory.Set(bytes));
  const Result<Model> model = Model::Load(
      memory.path(),
      {choice % 2 == 0 ? manyhead::WeightStorage::kPacked : manyhead::WeightStorage::kMapped, 1});
  if (model.ok()) {
    Use(*model, bytes.size());
  } else {
    FuzzCheckMessage(model.status().message());
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (char choice = 0; choice < 12; ++choice) seeds.emplace_back(1, choice);
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    seeds.emplace_back(1, static_cast<char>(i % 12));
    for (int j = 0; j < 3 + i % 6; ++j) seeds.back() += static_cast<char>(random());
  }
  return seeds;
}
