#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "manyhead/circuits.h"
#include "manyhead/threads.h"
#include "runtime/heads/circuits/circuits_impl.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

/// Calls fn(i) for i in [0, items) on `threads` threads; rethrows the first exception.
template <class Fn>
void ForEachOnTeam(int threads, std::int64_t items, const Fn& fn) {
  std::exception_ptr error;
  std::mutex turn;
  RunTeam(threads, [&](Worker& worker) {
    worker.ForEach(items, [&](std::int64_t i) {
      try {
        fn(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(turn);
        if (!error) error = std::current_exception();
      }
    });
  });
  if (error) std::rethrow_exception(error);
}

bool Contains(const std::vector<HeadId>& heads, HeadId id) {
  return std::find(heads.begin(), heads.end(), id) != heads.end();
}

Status CheckHeads(const ModelConfig& config, const std::vector<HeadId>& heads) {
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  for (const HeadId& id : heads) {
    if (id.layer < 0 || id.layer >= layers)
      return Status(StatusCode::kInvalidArgument,
                    "DescribeCircuits: layer = " + std::to_string(id.layer) + "; expected 0.." +
                        std::to_string(layers - 1));
    const std::int64_t count = config.layers[static_cast<std::size_t>(id.layer)].num_heads;
    if (id.head < 0 || id.head >= count)
      return Status(StatusCode::kInvalidArgument,
                    "DescribeCircuits: head = " + std::to_string(id.head) + " of layer " +
                        std::to_string(id.layer) + "; expected 0.." + std::to_string(count - 1));
  }
  return Status();
}

/// Processes the layers from the last to the first: the heads that read are few and are kept, the
/// heads that write are all earlier heads and are processed one layer at a time.
class Describer {
 public:
  Describer(const Model& model, const CircuitOptions& options)
      : model_(model),
        options_(options),
        threads_(options.threads == 0 ? DefaultThreads() : options.threads) {}

  Result<ModelCircuits> Run();

 private:
  struct Reader {
    HeadReader head;
    std::vector<HeadLink> links;  // links from every earlier head
  };

  void TakeLayer(const LayerCircuits::Impl& layer);
  void ReadLayer(const LayerCircuits::Impl& layer);
  void Rank(Reader& reader);

  const Model& model_;
  const CircuitOptions& options_;
  int threads_;
  std::vector<Reader> readers_;
  ModelCircuits result_;
};

void Describer::TakeLayer(const LayerCircuits::Impl& layer) {
  std::vector<HeadCircuit> heads;
  for (std::int64_t h = 0; h < layer.num_heads; ++h)
    if (options_.heads.empty() || Contains(options_.heads, {layer.layer, h}))
      heads.push_back({{layer.layer, h}, static_cast<std::int64_t>(layer.KvHead(h)), {}, {}});
  ForEachOnTeam(threads_, static_cast<std::int64_t>(heads.size()), [&](std::int64_t i) {
    HeadCircuit& head = heads[static_cast<std::size_t>(i)];
    head.qk = SpectrumOf(layer.Query(head.id.head), layer.Key(head.id.head));
    head.ov = SpectrumOf(layer.Output(head.id.head), layer.Value(head.id.head));
  });
  result_.heads.insert(result_.heads.begin(), std::make_move_iterator(heads.begin()),
                       std::make_move_iterator(heads.end()));
}

void Describer::ReadLayer(const LayerCircuits::Impl& layer) {
  const auto readers = static_cast<std::int64_t>(readers_.size());
  std::vector<HeadLink> links(static_cast<std::size_t>(readers * layer.num_heads));
  ForEachOnTeam(threads_, readers * layer.num_heads, [&](std::int64_t i) {
    const HeadReader& reader = readers_[static_cast<std::size_t>(i / layer.num_heads)].head;
    const std::int64_t from = i % layer.num_heads;
    links[static_cast<std::size_t>(i)] = {
        {layer.layer, from}, reader.id, Compose(layer, from, reader), 0, 0};
  });
  for (std::size_t i = 0; i < links.size(); ++i)
    readers_[i / static_cast<std::size_t>(layer.num_heads)].links.push_back(links[i]);
}

void Describer::Rank(Reader& reader) {
  std::vector<HeadLink>& links = reader.links;
  std::sort(links.begin(), links.end(), [](const HeadLink& a, const HeadLink& b) {
    return a.scores.key != b.scores.key ? a.scores.key > b.scores.key : a.from < b.from;
  });
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i].rank = static_cast<std::int64_t>(i) + 1;
    links[i].num_from = static_cast<std::int64_t>(links.size());
    if (Contains(options_.from, links[i].from)) result_.links.push_back(links[i]);
  }
}

Result<ModelCircuits> Describer::Run() {
  const ModelConfig& config = model_.config();
  if (options_.threads < 0 || options_.threads > kMaxThreads)
    return Status(StatusCode::kInvalidArgument,
                  "DescribeCircuits: threads = " + std::to_string(options_.threads) +
                      "; expected 0.." + std::to_string(kMaxThreads));
  for (const std::vector<HeadId>* heads : {&options_.heads, &options_.from, &options_.to})
    if (Status status = CheckHeads(config, *heads); !status.ok()) return status;
  result_.baseline = 1 / std::sqrt(static_cast<double>(config.d_model));
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  for (std::int64_t index = layers - 1; index >= 0; --index) {
    if (options_.cancel != nullptr && options_.cancel->load())
      return Status(StatusCode::kIoError, "DescribeCircuits: cancelled");
    auto layer = LoadLayerCircuits(model_, index);
    if (!layer.ok()) return layer.status();
    TakeLayer(**layer);
    ReadLayer(**layer);
    for (std::int64_t h = 0; h < (*layer)->num_heads; ++h)
      if (Contains(options_.to, {index, h})) readers_.push_back({HeadReader::Of(**layer, h), {}});
    if (options_.on_progress) options_.on_progress(layers - index, layers);
  }
  std::sort(readers_.begin(), readers_.end(),
            [](const Reader& a, const Reader& b) { return a.head.id < b.head.id; });
  for (Reader& reader : readers_) Rank(reader);
  return std::move(result_);
}

}  // namespace

Result<ModelCircuits> DescribeCircuits(const Model& model, const CircuitOptions& options) {
  return Describer(model, options).Run();
}

}  // namespace manyhead
