// Decodes many tokens of many texts, with forks, evictions, reuse and saved states between, and
// fails where memory, descriptors or threads grow: soak MODEL.gguf TOKENS
#include <malloc.h>
#include <manyhead/manyhead.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

using manyhead::Status;

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "soak: %s\n", status.message().c_str());
  std::exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status);
}

template <class T>
T Take(manyhead::Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

class Random {
 public:
  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(count));
  }

 private:
  std::mt19937_64 bits_{11};
};

/// The resources that the process holds besides the texts.
struct Holdings {
  std::int64_t anonymous_kib = 0, descriptors = 0, threads = 0;
};

Holdings Measure() {
  Holdings held;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> held.anonymous_kib;
    if (word == "Threads:") status >> held.threads;
  }
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++held.descriptors;
  return held;
}

/// Generates text: prompts with common prefixes, sessions of different policies.
class Texts {
 public:
  explicit Texts(const std::string& path) : model_(Take(manyhead::Model::Load(path))) {
    for (const char* policy : {"full", "sink(4)+recent(64)", "budget(128)+recent(32)"})
      sessions_.push_back(Create(policy));
    for (int i = 0; i < 5; ++i) {
      std::string text;
      while (text.size() < 150U + 40U * static_cast<unsigned>(i))
        text += "The key " + std::to_string(i * 37) + " is in the blue box. ";
      beginnings_.push_back(text);
    }
  }

  /// Generates one text; returns its tokens.
  std::int64_t Step(Random& random) {
    const std::size_t chosen = static_cast<std::size_t>(random.Below(std::ssize(sessions_)));
    manyhead::Session& session = sessions_[chosen];
    const std::string prompt = beginnings_[static_cast<std::size_t>(random.Below(5))] + "Key " +
                               std::to_string(random.Below(100));
    const auto ids = Take(model_.tokenizer().Encode(prompt));
    manyhead::GenerateOptions options;
    options.max_tokens = 20 + random.Below(200);
    options.sampling.temperature = 1;
    options.sampling.seed = static_cast<std::uint64_t>(random.Below(1 << 30));
    const auto result = Take(session.Generate(ids, options));
    if (random.Below(4) == 0) Check(session.Truncate(random.Below(session.length() + 1)));
    if (random.Below(8) == 0) {
      const std::string file =
          (std::filesystem::temp_directory_path() / ("soak" + std::to_string(getpid()))).string();
      Check(session.Save(file));
      Check(session.Restore(file));
      std::filesystem::remove(file);
    }
    if (random.Below(16) == 0) session = Create(session.options().kv_policy);
    return result.timings.decode_tokens;
  }

  void Clear() {
    for (manyhead::Session& session : sessions_) session = Create(session.options().kv_policy);
  }

 private:
  manyhead::Session Create(const std::string& policy) const {
    manyhead::SessionOptions options;
    options.context = 1024;
    options.kv_policy = policy;
    options.chunk = 128;
    options.threads = 2;
    options.prefix_bytes = policy == "full" ? 1 << 20 : 0;
    return Take(manyhead::Session::Create(model_, options));
  }

  manyhead::Model model_;
  std::vector<manyhead::Session> sessions_;
  std::vector<std::string> beginnings_;
};

/// Sequences of a cache: forked, extended, attended to, evicted, cut and freed in any order.
class Sequences {
 public:
  Sequences() : cache_(Take(manyhead::KvCache::Create(Params()))) {
    manyhead::AttentionParams params;
    params.num_heads = 4;
    params.num_kv_heads = kHeads;
    params.head_dim = kDim;
    params.max_q_len = 1;
    params.max_kv_len = kMostTokens;
    plan_.emplace(Take(manyhead::AttentionPlan::Create(params)));
  }

  /// One operation; returns the tokens it decoded.
  std::int64_t Step(Random& random) {
    if (held_.empty() || (held_.size() < 12 && random.Below(40) == 0)) {
      held_.push_back(Take(cache_.CreateSequence()));
      return 0;
    }
    const std::size_t at = static_cast<std::size_t>(random.Below(std::ssize(held_)));
    const manyhead::SequenceId sequence = held_[at];
    const std::int64_t length = cache_.length(sequence), kind = random.Below(200);
    if (kind == 0 && held_.size() < 12) {
      held_.push_back(Take(cache_.Fork(sequence)));
    } else if (kind == 1 || length == kMostTokens) {
      Check(cache_.FreeSequence(sequence));
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (kind == 2) {
      static_cast<void>(Take(cache_.Truncate(sequence, random.Below(length + 1))));
    } else if (kind == 3 && length > 2) {
      const std::int64_t begin = random.Below(length - 1);
      Check(cache_.Drop(sequence, begin, begin + 1 + random.Below(length - begin)));
    } else if (kind == 4) {
      Check(cache_.Evict(sequence));
    } else {
      Decode(sequence, length, random);
      return 1;
    }
    return 0;
  }

  void Clear() {
    for (const manyhead::SequenceId sequence : held_) Check(cache_.FreeSequence(sequence));
    held_.clear();
    if (cache_.usage().used_bytes != 0) {
      std::fprintf(stderr, "soak: pages without a sequence\n");
      std::exit(1);
    }
  }

 private:
  static constexpr std::int64_t kLayers = 2, kHeads = 2, kDim = 32, kMostTokens = 1024;

  static manyhead::KvCacheParams Params() {
    manyhead::KvCacheParams params;
    params.layers.assign(kLayers, {.num_kv_heads = kHeads, .head_dim = kDim});
    params.k_type = manyhead::KvType::kInt8;
    params.capacity_bytes = std::int64_t{64} << 20;
    params.max_tokens = kMostTokens;
    params.heads = Take(manyhead::ParseKvHeads(
        R"json({"heads": [{"kv_heads": [1], "policy": "budget(96)+recent(32)"
  },
                      {"layers": [1], "kv_heads": [0], "policy": "sink(4)+recent(100)"}]})json",
        params));
    return params;
  }

  void Decode(manyhead::SequenceId sequence, std::int64_t position, Random& random) {
    for (float& value : row_) value = static_cast<float>(random.Below(1000)) * 1e-3F;
    Check(cache_.Reserve(sequence, 1));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      Check(cache_.Write(sequence, layer, position, 1, row_, row_));
      Check(plan_->Run(cache_, layer, {&sequence, 1}, nullptr, row_, out_));
    }
  }

  manyhead::KvCache cache_;
  std::optional<manyhead::AttentionPlan> plan_;
  std::vector<manyhead::SequenceId> held_;
  float row_[4 * kDim], out_[4 * kDim];
};

/// Whether all is as it was: memory within 1 MiB, the rest the same.
bool SameAs(const Holdings& before, const Holdings& now) {
  return now.anonymous_kib <= before.anonymous_kib + 1024 && now.threads == before.threads &&
         now.descriptors == before.descriptors;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::int64_t tokens = std::atoll(argv[2]);
  constexpr int kParts = 20, kWarmUp = 4;
  // Large buffers go back to the system when a session ends: otherwise they come to lie in a heap
  // that small blocks keep open, and what is measured are the habits of the allocator.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  Random random;
  Texts texts(argv[1]);
  Sequences sequences;
  std::optional<Holdings> warm;
  bool flat = true;
  std::printf("tokens     MiB  threads  descriptors  tokens/s\n");
  for (int part = 1; part <= kParts; ++part) {
    std::int64_t done = 0;
    const auto start = std::chrono::steady_clock::now();
    while (done < tokens / kParts) {
      done += texts.Step(random);
      for (int i = 0; i < 40; ++i) done += sequences.Step(random);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    texts.Clear();
    sequences.Clear();
    const Holdings held = Measure();
    std::printf(
        "%6lld %7.2f %8lld %12lld %9.0f\n", static_cast<long long>(part * (tokens / kParts)),
        static_cast<double>(held.anonymous_kib) / 1024, static_cast<long long>(held.threads),
        static_cast<long long>(held.descriptors), static_cast<double>(done) / seconds.count());
    if (part == kWarmUp) warm = held;
    if (warm && !SameAs(*warm, held)) flat = false;
  }
  std::printf("%s\n", flat ? "memory, threads and descriptors stayed what they were"
                           : "soak: memory, threads or descriptors grew");
  return flat ? 0 : 1;
}
