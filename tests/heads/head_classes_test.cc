// Heads of whole models: the bundled one, whose heads are known, and small ones with heads made for
// a class.

#include "manyhead/head_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "manyhead/circuits.h"
#include "manyhead/session.h"
#include "runtime/heads/classify/classify_probes.h"
#include "tests/heads/classes_testing.h"
#include "tests/support/model_files.h"

namespace manyhead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TinyModel;

const Model& Bundled() {
  static const Model model = [] {
    Result<Model> loaded = Model::Load(FindModel("bundled"));
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return *std::move(loaded);
  }();
  return model;
}

std::vector<HeadId> HeadsOf(const HeadClassification& classification, HeadClass head_class) {
  std::vector<HeadId> heads;
  for (const HeadReport& report : classification.heads)
    if (report.head_class == head_class) heads.push_back(report.id);
  return heads;
}

TinyModel MakeTiny() {
  TinyModel tiny;
  tiny.context = 1024;
  tiny.MakeWeights(21);
  return tiny;
}

TEST(ClassifyHeads, TheBundledModelHasAPreviousTokenAndAnInductionHead) {
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    ClassifyOptions options;
    options.seed = seed;
    const auto found = ClassifyHeads(Bundled(), options);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found->heads.size(), 16U);
    EXPECT_THAT(HeadsOf(*found, HeadClass::kPreviousToken), ElementsAre(HeadId{0, 0}));
    EXPECT_THAT(HeadsOf(*found, HeadClass::kInduction), ElementsAre(HeadId{1, 0}));
    for (std::size_t i = 0; i < found->heads.size(); ++i) {
      EXPECT_EQ(found->heads[i].id.layer, static_cast<std::int64_t>(i / 4));
      EXPECT_EQ(found->heads[i].kv_head, static_cast<std::int64_t>(i % 4 / 2));
    }
  }
}

TEST(ClassifyHeads, CompositionLinksThePreviousTokenHeadToTheInductionHead) {
  const auto found = ClassifyHeads(Bundled(), {});
  ASSERT_TRUE(found.ok());
  CircuitOptions options;
  options.from = HeadsOf(*found, HeadClass::kPreviousToken);
  options.to = HeadsOf(*found, HeadClass::kInduction);
  const auto circuits = DescribeCircuits(Bundled(), options);
  ASSERT_TRUE(circuits.ok());
  ASSERT_EQ(circuits->links.size(), 1U);
  EXPECT_EQ(circuits->links[0].rank, 1);
  EXPECT_EQ(circuits->links[0].num_from, 4);
  EXPECT_GT(circuits->links[0].scores.key, circuits->baseline);
  EXPECT_GT(circuits->links[0].scores.key, 2 * circuits->links[0].scores.query);
  EXPECT_EQ(circuits->heads.size(), 16U);
}

void ExpectSame(const HeadClassification& a, const HeadClassification& b) {
  ASSERT_EQ(a.heads.size(), b.heads.size());
  for (std::size_t i = 0; i < a.heads.size(); ++i) {
    const HeadScores &x = a.heads[i].scores, &y = b.heads[i].scores;
    EXPECT_EQ(a.heads[i].head_class, b.heads[i].head_class);
    EXPECT_EQ(x.previous_token, y.previous_token);
    EXPECT_EQ(x.induction, y.induction);
    EXPECT_EQ(x.uniformity, y.uniformity);
    EXPECT_EQ(x.constancy, y.constancy);
    EXPECT_EQ(x.twin, y.twin);
    EXPECT_EQ(x.retrieval, y.retrieval);
  }
}

TEST(ClassifyHeads, TheSameSeedGivesTheSameBitsOnAnyNumberOfThreads) {
  ClassifyOptions options;
  options.seed = 7;
  options.threads = 1;
  const auto one = ClassifyHeads(Bundled(), options);
  options.threads = 3;
  const auto three = ClassifyHeads(Bundled(), options);
  options.seed = 8;
  const auto other = ClassifyHeads(Bundled(), options);
  ASSERT_TRUE(one.ok() && three.ok() && other.ok());
  ExpectSame(*one, *three);
  ASSERT_EQ(one->probes.size(), static_cast<std::size_t>(1 + kRepeats + kNeedles));
  for (std::size_t i = 0; i < one->probes.size(); ++i) {
    EXPECT_EQ(one->probes[i].ids, three->probes[i].ids);
    EXPECT_EQ(one->probes[i].ids == other->probes[i].ids, i == 0);  // only the text is as before
  }
}

TEST(ClassifyHeads, ProbesAreAsTheyAreDescribed) {
  const auto found = ClassifyHeads(Bundled(), {});
  ASSERT_TRUE(found.ok());
  const std::vector<TokenId> text = found->probes[0].ids;
  EXPECT_EQ(std::ssize(text), kMostText);
  std::set<std::int64_t> depths;
  for (const Probe& probe : found->probes) {
    if (probe.kind == ProbeKind::kText) continue;
    const auto at = [&](std::int64_t i) { return probe.ids[static_cast<std::size_t>(i)]; };
    std::set<TokenId> drawn;
    for (std::int64_t i = 0; i < probe.count; ++i) {
      EXPECT_EQ(at(probe.begin + i), at(probe.again + i));
      EXPECT_FALSE(Bundled().tokenizer().is_control(at(probe.begin + i)));
      drawn.insert(at(probe.begin + i));
    }
    EXPECT_EQ(std::ssize(drawn), probe.count);
    EXPECT_EQ(std::ssize(probe.ids), probe.again + probe.count);
    if (probe.kind == ProbeKind::kRepeat) {
      EXPECT_EQ(at(0), *Bundled().tokenizer().bos());
      EXPECT_EQ(probe.again, probe.begin + probe.count);
      continue;
    }
    std::vector<TokenId> rest(probe.ids.begin(), probe.ids.begin() + probe.begin);
    rest.insert(rest.end(), probe.ids.begin() + probe.begin + probe.count,
                probe.ids.begin() + probe.again);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), text.begin()));
    EXPECT_EQ(std::ssize(rest), kHaystack);
    depths.insert(probe.begin);
  }
  EXPECT_THAT(depths, ElementsAre(19, 76, 128));
}

TEST(ClassifyHeads, HeadsThatCollapsedAreFound) {
  TinyModel tiny = MakeTiny();
  const auto rows = static_cast<std::ptrdiff_t>(tiny.head_dim * tiny.d_model);
  std::vector<float>& first = tiny.tensors["blk.0.attn_q.weight"];
  std::fill_n(first.begin() + rows, rows, 0.0F);  // head 1 of layer 0 looks everywhere alike
  std::vector<float>& second = tiny.tensors["blk.1.attn_q.weight"];
  std::copy_n(second.begin() + 2 * rows, rows, second.begin() + 3 * rows);  // 3 as 2
  const auto found = ClassifyHeads(testing::LoadTiny(tiny), {});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_THAT(HeadsOf(*found, HeadClass::kCollapsed), ElementsAre(HeadId{0, 1}, HeadId{1, 3}));
  EXPECT_NEAR(found->heads[1].scores.uniformity, 1, 1e-5);
  EXPECT_NEAR(found->heads[7].scores.twin, 1, 1e-5);
  EXPECT_EQ(found->heads[7].scores.twin_head, 2);
}

TEST(ClassifyHeads, PoliciesAreAcceptedByASession) {
  const auto found = ClassifyHeads(Bundled(), {});
  ASSERT_TRUE(found.ok());
  const auto policies = ClassPolicies(Bundled().config(), found->heads);
  EXPECT_EQ(policies[1][0].policy, KvPolicy::Full());  // policy of the induction head
  SessionOptions options;
  options.kv_policy = FormatKvHeads(policies);
  const auto session = Session::Create(Bundled(), options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ(session->cache().params().heads, policies);
}

TEST(ClassifyHeads, SentencesAddSyntacticScores) {
  ClassifyOptions options;
  const std::string tail = "\t_\t_\n";
  options.conllu = "1\tred\t_\tADJ\t_\t_\t2\tamod" + tail + "2\tboats\t_\tNOUN\t_\t_\t3\tnsubj" +
                   tail + "3\tsail\t_\tVERB\t_\t_\t0\troot" + tail;
  const auto found = ClassifyHeads(Bundled(), options);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->probes.back().kind, ProbeKind::kSentence);
  EXPECT_EQ(Bundled().tokenizer().Decode(found->probes.back().ids), "red boats sail");
  for (const HeadReport& report : found->heads) {
    const auto& dependencies = report.scores.dependencies;
    ASSERT_EQ(dependencies.size(), 2U);
    EXPECT_EQ(dependencies[0].relation, "amod");
    EXPECT_FALSE(dependencies[0].to_head);
    EXPECT_EQ(dependencies[0].accuracy, 1);  // there is but one earlier word
    EXPECT_EQ(dependencies[1].relation, "nsubj");
    EXPECT_EQ(dependencies[1].count, 1);
    EXPECT_NE(report.head_class, HeadClass::kSyntactic);  // one sentence is not enough
  }
}

TEST(ClassifyHeads, WrongInputIsAnErrorWithTheValidRange) {
  const auto error = [](const Model& model, const ClassifyOptions& options) {
    const auto found = ClassifyHeads(model, options);
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    return found.status().message();
  };
  ClassifyOptions options;
  options.text.assign(255, 40);
  EXPECT_THAT(error(Bundled(), options),
              HasSubstr("tokens of the text = 255; expected at least 256"));
  options.text.assign(256, 40);
  EXPECT_TRUE(ClassifyHeads(Bundled(), options).ok());
  options.text[200] = 260;
  EXPECT_THAT(error(Bundled(), options), HasSubstr("id = 260; expected 0..259"));
  options.text.clear();
  options.conllu = "1\tone\n";
  EXPECT_THAT(error(Bundled(), options), HasSubstr("CoNLL-U: line 1: columns = 2; expected 10"));
  options.conllu.clear();
  options.threads = 5000;
  EXPECT_THAT(error(Bundled(), options), HasSubstr("threads = 5000"));
  TinyModel small = MakeTiny();
  small.context = 300;
  EXPECT_THAT(error(testing::LoadTiny(small), {}),
              HasSubstr("context of the model = 300; expected at "
                        "least 512"));
}

TEST(ClassifyHeads, CancelEndsTheWork) {
  std::atomic<bool> cancel = false;
  ClassifyOptions options;
  options.cancel = &cancel;
  std::int64_t last = 0;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LT(done, total);
    last = done;
    cancel = true;
  };
  EXPECT_EQ(ClassifyHeads(Bundled(), options).status().code(), StatusCode::kIoError);
  EXPECT_EQ(last, kMostText);
}

}  // namespace
}  // namespace manyhead
