#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/heads/classify/conllu.h"
#include "tests/support/fuzz.h"

// Any bytes as a CoNLL-U file: a reason in one line, or sentences whose words lie in their text and
// all lead to one root.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto sentences = manyhead::ParseConllu({reinterpret_cast<const char*>(data), size});
  if (!sentences.ok()) {
    FuzzCheckMessage(sentences.status().message());
    return 0;
  }
  FuzzCheck(!sentences->empty());
  for (const manyhead::DependencySentence& sentence : *sentences) {
    const auto words = static_cast<std::int64_t>(sentence.words.size());
    FuzzCheck(words > 0);
    std::size_t begin = 0;
    for (const manyhead::DependencyWord& word : sentence.words) {
      FuzzCheck(begin <= word.begin && word.begin < word.end && word.end <= sentence.text.size());
      FuzzCheck(!word.relation.empty());
      begin = word.begin;
      std::int64_t steps = 0;
      for (std::int64_t i = word.head; i >= 0; i = sentence.words[static_cast<std::size_t>(i)].head)
        FuzzCheck(i < words && ++steps <= words);
    }
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const std::string rest = "\t_\t_\n";
  return {
      "# text = Birds sing.\n1\tBirds\t_\tNOUN\t_\t_\t2\tnsubj" + rest +
          "2\tsing\t_\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n3\t.\t_\tPUNCT\t_\t_\t2\tpunct" +
          rest + "\n1\tYes\t_\tINTJ\t_\t_\t0\troot" + rest,
      "1-2\tdon't\t_\t_\t_\t_\t_\t_" + rest + "1\tdo\t_\tAUX\t_\t_\t3\taux" + rest +
          "2\tn't\t_\tPART\t_\t_\t3\tadvmod" + rest + "2.1\tx\t_\t_\t_\t_\t_\t_\t0:dep\t_\n" +
          "3\tgo\t_\tVERB\t_\t_\t0\troot" + rest,
  };
}
