#include "tools/manyhead/bench_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tools/manyhead/environment.h"
#include "tools/manyhead/rows.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

using ::manyhead::testing::TempDir;
using ::testing::HasSubstr;

/// A shared machine: every sample has some jitter, a third of them is disturbed by other programs,
/// one stretch of time is slow as a whole, and each run has its own speed.
class NoisyMachine {
 public:
  explicit NoisyMachine(unsigned seed) : random_(seed) {}

  TimedTest Run(double time, int samples) {
    const double speed = 1 + 0.012 * Normal();
    const int slow_begin = static_cast<int>(Uniform() * samples);
    const int slow_end = slow_begin + static_cast<int>(0.4 * Uniform() * samples);
    TimedTest test;
    for (int i = 0; i < samples; ++i) {
      double ns = time * speed * (1 + 0.01 * std::fabs(Normal()));
      if (Uniform() < 0.33) ns *= 1 - std::log(1 - Uniform());
      if (i >= slow_begin && i < slow_end) ns *= 1.5;
      test.samples_ns.push_back(ns);
    }
    test.probe_flops_per_second = 1e11 / speed * (1 + 0.01 * Normal());
    return test;
  }

 private:
  double Uniform() { return static_cast<double>(random_() >> 5) / (1U << 27); }
  double Normal() {  // Box, Muller: A note on the generation of random normal deviates, 1958
    return std::sqrt(-2 * std::log(1 - Uniform())) * std::cos(6.283185307179586 * Uniform());
  }
  std::mt19937 random_;
};

int Count(double change, int samples, BenchVerdict verdict) {
  int found = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    NoisyMachine machine(seed);
    const TimedTest before = machine.Run(1e6, samples);
    found += CompareTests(before, machine.Run(1e6 * change, samples)).verdict == verdict ? 1 : 0;
  }
  return found;
}

TEST(CompareTests, OnANoisyMachineTheSameBuildIsNoDifference) {
  EXPECT_GE(Count(1, 100, BenchVerdict::kNoDifference), 190);
  EXPECT_GE(Count(1, 30, BenchVerdict::kNoDifference), 190);
}

TEST(CompareTests, FindsTenPercentMoreAndLess) {
  EXPECT_GE(Count(1.10, 100, BenchVerdict::kSlower), 180);
  EXPECT_GE(Count(1 / 1.10, 100, BenchVerdict::kFaster), 180);
  EXPECT_EQ(Count(1.10, 100, BenchVerdict::kFaster), 0);
}

TimedTest Steady(double ns, double probe) { return {std::vector<double>(20, ns), probe}; }

TEST(CompareTests, AMachineThatRanSlowerIsNotASlowerBuild) {
  EXPECT_EQ(CompareTests(Steady(100, 1e9), Steady(150, 1e9)).verdict, BenchVerdict::kSlower);
  const BenchComparison explained = CompareTests(Steady(100, 1e9), Steady(150, 0.67e9));
  EXPECT_EQ(explained.verdict, BenchVerdict::kNoDifference);
  EXPECT_NEAR(*explained.corrected, 1.005, 1e-9);
  EXPECT_EQ(CompareTests(Steady(150, 0.67e9), Steady(100, 1e9)).verdict,
            BenchVerdict::kNoDifference);
  EXPECT_EQ(CompareTests(Steady(100, 0), Steady(150, 1e9)).verdict, BenchVerdict::kSlower)
      << "without a probe the times count as they are";
}

TEST(CompareTests, SmallDifferencesAreNone) {
  EXPECT_EQ(CompareTests(Steady(100, 1), Steady(104.9, 1)).verdict, BenchVerdict::kNoDifference);
  EXPECT_EQ(CompareTests(Steady(100, 1), Steady(105.1, 1)).verdict, BenchVerdict::kSlower);
  EXPECT_EQ(CompareTests(Steady(105.1, 1), Steady(100, 1)).verdict, BenchVerdict::kFaster);
  EXPECT_EQ(CompareTests({{100}, 1}, {{101}, 1}).verdict, BenchVerdict::kNoDifference);
}

Json Row(const char* type, std::int64_t n_gen) {
  Json row;
  row["model_type"] = type;
  row["n_prompt"] = 0;
  row["n_gen"] = n_gen;
  row["isa"] = "avx2";
  row["probe_flops_per_second"] = 5e9;
  row["samples_ns"] = std::vector<std::int64_t>{10, 20};
  return row;
}

TEST(EarlierRows, ReadsListsAndLinesAndFindsTheSameTest) {
  const TempDir dir;
  const std::string list = "[" + Row("a", 1).dump() + "," + Row("a", 2).dump() + "]";
  const std::string lines = Row("a", 1).dump() + "\n\n" + Row("a", 2).dump() + "\n";
  for (const std::string& text : {list, lines}) {
    std::ofstream(dir.File("rows")) << text;
    const Result<EarlierRows> earlier = EarlierRows::Read(dir.File("rows"));
    ASSERT_TRUE(earlier.ok()) << earlier.status().message();
    const auto found = earlier->Find(Row("a", 2));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->samples_ns, (std::vector<double>{10, 20}));
    EXPECT_EQ(found->probe_flops_per_second, 5e9);
    EXPECT_FALSE(earlier->Find(Row("a", 3)).has_value());
    EXPECT_FALSE(earlier->Find(Row("b", 2)).has_value());
    Json other = Row("a", 2);
    EXPECT_EQ(earlier->Changes(other), "");
    other["isa"] = "amx";
    EXPECT_EQ(earlier->Changes(other), "isa amx, was avx2");
  }
}

TEST(EarlierRows, NamesWhatIsNoRow) {
  const TempDir dir;
  const auto message = [&](const std::string& text) {
    std::ofstream(dir.File("rows")) << text;
    const Result<EarlierRows> earlier = EarlierRows::Read(dir.File("rows"));
    return earlier.ok() ? std::string("no error") : earlier.status().message();
  };
  EXPECT_THAT(message(""), HasSubstr("it has 0 rows; expected what bench -o json"));
  EXPECT_THAT(message("[1]"), HasSubstr("row 0 is no row of bench"));
  EXPECT_THAT(message("[" + Row("a", 1).dump() + ",{}]"), HasSubstr("row 1"));
  EXPECT_THAT(message("model,size\n"), HasSubstr("row 0"));
  Json row = Row("a", 1);
  const std::vector<double> kBad[] = {{10, 0}, {1e-320}, {1e308}, std::vector<double>(100001, 5.0)};
  for (const std::vector<double>& samples : kBad) {
    row["samples_ns"] = samples;
    EXPECT_THAT(message("[" + row.dump() + "]"), HasSubstr("row 0")) << samples.size();
  }
  EXPECT_THAT(EarlierRows::Read("/nowhere").status().message(), HasSubstr("/nowhere"));
}

// Coverage of the k-th of n: 1 - 2 P(Bin(n, 1/2) < k), from tables of the sign test.
TEST(ComputeMedian, IntervalIsFreeOfTheDistribution) {
  const auto of = [](int n) {
    std::vector<double> samples;
    for (int i = n; i >= 1; --i) samples.push_back(i);
    return ComputeMedian(samples);
  };
  EXPECT_EQ(of(1).median, 1);
  EXPECT_FALSE(of(1).low.has_value());
  EXPECT_EQ(of(4).median, 2.5);
  const struct {
    int n;
    double low, high, coverage;
  } cases[] = {{2, 1, 2, 0.5},          {5, 1, 5, 0.9375},       {6, 1, 6, 0.96875},
               {9, 2, 8, 0.9609375},    {10, 2, 9, 0.978515625}, {15, 4, 12, 0.96484375},
               {100, 40, 61, 0.9647998}};
  for (const auto& c : cases) {
    const MedianInterval found = of(c.n);
    EXPECT_EQ(*found.low, c.low) << c.n;
    EXPECT_EQ(*found.high, c.high) << c.n;
    EXPECT_NEAR(found.coverage, c.coverage, 1e-6) << c.n;
  }
}

TEST(CpuMask, HasABitForEachCpuHoweverManyThereAre) {
  EXPECT_EQ(*ParseCpuMask("5"), (std::vector<int>{0, 2}));
  EXPECT_EQ(*ParseCpuMask("0xF0"), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(*ParseCpuMask("8" + std::string(512, '0')), (std::vector<int>{2051}));
  for (const char* text : {"", "0", "0x", "g", "1 ", "-1", "0x0", "1,2"})
    EXPECT_THAT(ParseCpuMask(text).status().message(), HasSubstr("is not a mask")) << text;
  EXPECT_THAT(UseCpus({1 << 19}).message(),
              HasSubstr("--cpu-mask names CPU 524288; this process may use "));
}

TEST(Rows, CsvHasNumbersAsTheyAreAndNothingForNull) {
  Json row;
  row["a"] = 1;
  row["b"] = 2.5;
  row["c"] = Json();
  row["d"] = "x,\"y\"";
  row["e"] = true;
  row["f"] = std::vector<std::int64_t>{1, 2};
  row["g"] = std::nan("");
  EXPECT_EQ(CsvNames(row), "a,b,c,d,e,f,g\n");
  EXPECT_EQ(CsvValues(row), "1,2.5,,\"x,\"\"y\"\"\",true,\"[1,2]\",\n");
  EXPECT_EQ(FormatMarkdown({{"a", "b"}, {"x|y", "1"}}, 1),
            "| a | b |\n|---|---:|\n| x\\|y | 1 |\n");
}

}  // namespace
}  // namespace manyhead::cli
