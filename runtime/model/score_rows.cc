#include "runtime/model/score_rows.h"

#include <algorithm>
#include <cmath>

#include "runtime/platform/errors.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

/// Returns -log softmax(logits)[target], in nats, summed in double.
double NegativeLogLikelihood(std::span<const float> logits, TokenId target) {
  const double best = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  return best + std::log(sum) - static_cast<double>(logits[target]);
}

}  // namespace

void ScoreRows(Decoder& decoder, std::span<const TokenId> targets, int threads,
               AlignedBuffer<float>& logits, double* nll) noexcept {
  const std::int64_t vocab = logits.size() / kScoreRows;
  const std::int64_t count = static_cast<std::int64_t>(targets.size());
  for (std::int64_t begin = 0; begin < count; begin += kScoreRows) {
    const std::int64_t block = std::min(kScoreRows, count - begin);
    decoder.Logits(begin, block, logits.data());
    RunTeam(threads, [&](Worker& worker) {
      worker.ForEach(block, [&](std::int64_t row) {
        const std::span<const float> row_logits(logits.data() + row * vocab,
                                                static_cast<std::size_t>(vocab));
        nll[begin + row] = NegativeLogLikelihood(row_logits, targets[begin + row]);
      });
    });
  }
}

Status CheckNll(std::string_view who, std::span<const double> nll) {
  const auto nan = std::find_if(nll.begin(), nll.end(), [](double x) { return std::isnan(x); });
  if (nan == nll.end()) return Status();
  return MakeError(StatusCode::kInvalidArgument, who, "logits after ids[", nan - nll.begin(),
                   "] hold NaN; expected numbers");
}

}  // namespace manyhead
