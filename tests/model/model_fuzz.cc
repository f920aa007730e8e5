#include <cstddef>
#include <cstdint>
#include <fstream>
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
#include "tests/support/gguf_edits.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/memory_file.h"

using manyhead::GgufFile;
using manyhead::GgufType;
using manyhead::LayerConfig;
using manyhead::Model;
using manyhead::Result;
using manyhead::Session;
using manyhead::StoredTensor;
using manyhead::TokenId;
using manyhead::WeightType;
using manyhead::testing::ByteWriter;
using manyhead::testing::FuzzBytes;
using manyhead::testing::GgufEdits;
using manyhead::testing::GgufWriter;
using manyhead::testing::MemoryFile;
using manyhead::testing::TinyModel;

namespace {

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
  for (const StoredTensor& tensor : file->tensors()) {
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

/// One of each family, and what its layers may have; matrices of blocks of 32 and 256.
std::vector<GgufEdits> MakeBases() {
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
  std::vector<GgufEdits> bases;
  for (std::size_t i = 0; i < tiny.size(); ++i) {
    tiny[i].MakeWeights(static_cast<unsigned>(i + 1));
    std::string bytes = tiny[i].ToGguf().Bytes();
    if (i == 4) bytes = Retyped(bytes, WeightType::kQ8_0, 32, 34);
    if (i == 5) bytes = Retyped(bytes, WeightType::kQ4_K, 256, 144);
    bases.emplace_back(bytes);
  }
  for (const char* family : {"gemma2", "gpt2"}) {
    std::ifstream file(std::string(MANYHEAD_SOURCE_DIR "/tests/model/data/") + family + ".gguf",
                       std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    FuzzCheck(!bytes.empty());
    bases.emplace_back(bytes);
  }
  return bases;
}

/// Uses a model that was loaded.
void Use(const Model& model, std::size_t file_bytes) {
  const manyhead::ModelConfig& config = model.config();
  FuzzCheck(!config.layers.empty() && config.vocab_size > 0 && config.d_model > 0);
  FuzzCheck(model.weight_bytes() > 0 &&
            model.weight_bytes() <= 2 * static_cast<std::int64_t>(file_bytes));
  for (const LayerConfig& layer : config.layers) {
    FuzzCheck(layer.num_kv_heads > 0 && layer.num_heads % layer.num_kv_heads == 0);
    FuzzCheck(config.positions == manyhead::PositionKind::kLearned ||
              (layer.rope >= 0 && static_cast<std::size_t>(layer.rope) < config.ropes.size()));
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
  static const std::vector<GgufEdits> bases = MakeBases();
  static const MemoryFile memory;
  FuzzBytes choices(data, size);
  const auto choice = choices.Take<std::uint8_t>();
  const std::string bytes = bases[choice / 2 % bases.size()].Apply(choices);
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
  for (char choice = 0; choice < 16; ++choice) seeds.emplace_back(1, choice);
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) {
    seeds.emplace_back(1, static_cast<char>(i % 16));
    for (int j = 0; j < 3 + i % 6; ++j) seeds.back() += static_cast<char>(random());
  }
  return seeds;
}
