#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "tests/model/tiny_model.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_snapshot.h"
#include "tests/support/memory_file.h"
#include "tests/support/temp_dir.h"

using manyhead::Model;
using manyhead::Session;
using manyhead::Status;
using manyhead::TokenId;
using manyhead::testing::MemoryFile;

namespace {

constexpr std::int64_t kContext = 80;

const Model& Tiny() {
  static const Model model = [] {
    manyhead::testing::TinyModel tiny;
    tiny.layers = 1;
    tiny.d_model = tiny.ffn_dim = 8;
    tiny.num_heads = tiny.num_kv_heads = 2;
    tiny.head_dim = 4;
    tiny.MakeWeights(1);
    static const MemoryFile file;  // stays mapped
    FuzzCheck(file.Set(tiny.ToGguf().Bytes()));
    return *Model::Load(file.path());
  }();
  return model;
}

Session MakeSession(manyhead::KvType type) {
  manyhead::SessionOptions options;
  options.context = kContext;
  options.k_type = options.v_type = type;
  options.kv_policy = R"js({"heads": [{"kv_heads": [0], "policy": "sink(2)+recent(5)"}]})js";
  options.chunk = 16;
  options.threads = 1;
  return *Session::Create(Tiny(), options);
}

/// A session that was restored goes on like others; one that was not is as it was.
void Restore(Session& session, const std::string& path, bool convert_types) {
  const std::vector<TokenId> one = {5};
  FuzzCheck(session.Truncate(0).ok() && session.Append(one).ok());
  const Status status = session.Restore(path, {convert_types});
  if (!status.ok()) {
    FuzzCheckMessage(status.message());
    FuzzCheck(session.length() == 1 && session.Truncate(0).ok());
    return;
  }
  const std::int64_t length = session.length();
  FuzzCheck(length <= kContext);
  for (const TokenId id : session.tokens()) FuzzCheck(id >= 0 && id < Tiny().config().vocab_size);
  if (length + 1 <= kContext) FuzzCheck(session.Append(one).ok());
  for (const std::int64_t kept : {length - 1, length / 2}) {
    if (kept < 0) continue;
    FuzzCheck(session.Truncate(kept).ok() && session.length() == kept);
    if (kept > 0) FuzzCheck(session.Append(one).ok());
    FuzzCheck(session.Truncate(kept).ok());
  }
  FuzzCheck(session.Append(one).ok());
}

}  // namespace

// Any bytes as a saved session, their checksum as it is or made right.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Session same = MakeSession(manyhead::KvType::kF16);
  static Session other = MakeSession(manyhead::KvType::kInt8);
  manyhead::testing::FuzzSnapshot(data, size, [](const std::string& path) {
    Restore(same, path, false);
    Restore(other, path, true);
  });
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  Session session = MakeSession(manyhead::KvType::kF16);
  const manyhead::testing::TempDir folder;
  const std::string path = folder.File("seed");
  std::vector<std::string> seeds;
  for (const std::size_t tokens : {0U, 1U, 12U, 50U}) {
    const std::vector<TokenId> ids(tokens, 40);
    if (tokens > 0) FuzzCheck(session.Append(ids).ok());
    FuzzCheck(session.Save(path).ok());
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}
