#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/json_metadata.h"
#include "runtime/text/hf_tokenizer.h"
#include "tests/support/fuzz.h"

// Any bytes as a tokenizer.json: an error of one line, or a tokenizer whose ids are all its own.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace manyhead;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<JsonMetadata> config = JsonMetadata::Parse("{}", "config.json");
  const Result<HfTokenizer> tokenizer = ReadHfTokenizer({text, {}, {}, {}}, *config);
  if (!tokenizer.ok()) {
    FuzzCheckMessage(tokenizer.status().message());
    return 0;
  }
  for (const std::string_view sample :
       {std::string_view("ab a  b\n12 \xC3\xA9 e\xCC\x81 <s>\xFF"), text}) {
    const auto ids = tokenizer->pipeline->Encode(sample.substr(0, 4096), {true, true});
    if (!ids.ok()) {
      FuzzCheckMessage(ids.status().message());
      continue;
    }
    for (const TokenId id : *ids) FuzzCheck(tokenizer->vocabulary.Contains(id));
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      R"({"added_tokens":[{"id":3,"content":"<s>","special":true,"lstrip":true,"rstrip":true,)"
      R"("single_word":true,"normalized":false}],"normalizer":{"type":"Sequence","normalizers":[)"
      R"({"type":"NFC"},{"type":"Prepend","prepend":"a"},{"type":"Replace","pattern":{"String":" "},)"
      R"("content":"b"}]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a|b+"},)"
      R"("behavior":"MergedWithNext","invert":true},"decoder":{"type":"Sequence","decoders":[)"
      R"({"type":"ByteFallback"},{"type":"Fuse"}]},"post_processor":{"type":"TemplateProcessing",)"
      R"("single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":)"
      R"({"ids":[3]}}},"model":{"type":"BPE","unk_token":"a","fuse_unk":true,"byte_fallback":true,)"
      R"("vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})",
      R"({"normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
      R"("decoder":{"type":"WordPiece"},"model":{"type":"WordPiece","unk_token":"a","vocab":)"
      R"({"a":0,"##b":1}}})",
      R"({"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"first"},"model":{"type":"Unigram",)"
      R"("unk_id":0,"vocab":[["a",-1],["b",-2.5],["ab",-3]]}})",
      R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":)"
      R"(true},{"type":"ByteLevel"}]},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)"
      R"({"a":0,"b":1},"merges":[]}})",
  };
}
