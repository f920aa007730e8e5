#include "runtime/text/pretokenizer_table.h"

#include <algorithm>
#include <array>
#include <iterator>

// Literals of several lines are concatenated by the compiler; one name serves several tables.
// Contractions are spelled out, since (?i) would also fold U+017F to s.
#define MANYHEAD_CONTRACTIONS "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define MANYHEAD_LOWER_CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

namespace manyhead {
namespace {

constexpr std::string_view kGpt2Words =
    MANYHEAD_LOWER_CONTRACTIONS R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kDigits3 = R"(\p{N}{1,3})";
constexpr std::string_view kNewline = R"([\r\n])";

/// Runs of CJK ideographs, of everything from U+0800 on up to them, and of Hangul. Spaces in that
/// range are excluded: in the reference no space belongs to a range.
constexpr std::string_view kCjkRuns =
    R"((?:(?!\s)[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}])+)";
constexpr std::string_view kHanKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";

constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)",
                                         "[0-9][0-9][0-9]"};
constexpr std::string_view kGpt2[] = {kGpt2Words};
constexpr std::string_view kStarcoder[] = {kDigit, kGpt2Words};
constexpr std::string_view kFalcon[] = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Words, "[0-9][0-9][0-9]"};

constexpr std::string_view kLlama3[] = {
    MANYHEAD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen2[] = {
    MANYHEAD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen35[] = {
    MANYHEAD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
                          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kBailing[] = {
    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
constexpr std::string_view kSeedCoder[] = {
    MANYHEAD_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+)"
                          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// In these expressions a word ends before a capital that follows a small letter.
#define MANYHEAD_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MANYHEAD_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define MANYHEAD_LEAD R"([^\r\n\p{L}\p{N}]?)"
constexpr std::string_view kTekken[] = {
    MANYHEAD_LEAD MANYHEAD_UPPER "*" MANYHEAD_LOWER "+|" MANYHEAD_LEAD MANYHEAD_UPPER
                                 "+" MANYHEAD_LOWER
                                 "*"
                                 R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kGpt4o[] = {MANYHEAD_LEAD MANYHEAD_UPPER
                                       "*" MANYHEAD_LOWER "+" MANYHEAD_CONTRACTIONS
                                       "?|" MANYHEAD_LEAD MANYHEAD_UPPER "+" MANYHEAD_LOWER
                                       "*" MANYHEAD_CONTRACTIONS R"(?|\p{N}{1,3})"
                                       R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

// The letters of the Latin, Greek, Cyrillic, Armenian and a few other scripts that have case.
constexpr std::string_view kDeepseekLlm[] = {
    kNewline,
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)",
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+)",
    // Every run of spaces is examined once: without the look-behind and the possessive plus a run
    // in the middle would cost its length squared.
    R"((?<!\s)\s++\z)", kCjkRuns, R"(\p{N}+)"};
constexpr std::string_view kDeepseekCoder[] = {kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjkRuns,
                                               kDigit};
constexpr std::string_view kDeepseekV3[] = {
    kDigits3, kHanKana,
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

/// Spaces were escaped before, so merges may cross words; only line ends separate them.
constexpr std::string_view kLines[] = {R"([^\n]+|\n+)"};

constexpr PreTokenizerSpec kDefaultSpec{kDefault};
constexpr PreTokenizerSpec kGpt2Spec{kGpt2};
constexpr PreTokenizerSpec kStarcoderSpec{kStarcoder};
constexpr PreTokenizerSpec kCommandRSpec{.expressions = kStarcoder, .nfc = true};
constexpr PreTokenizerSpec kNeoxSpec{.expressions = kGpt2, .nfc = true};
constexpr PreTokenizerSpec kFalconSpec{kFalcon};
constexpr PreTokenizerSpec kLlama3Spec{kLlama3, true, true};
constexpr PreTokenizerSpec kDbrxSpec{kLlama3};
constexpr PreTokenizerSpec kGlm4Spec{kLlama3, true, false};
constexpr PreTokenizerSpec kQwen2Spec{.expressions = kQwen2, .nfc = true};
constexpr PreTokenizerSpec kQwen2WordsSpec{kQwen2};
constexpr PreTokenizerSpec kQwen35Spec{kQwen35};
constexpr PreTokenizerSpec kBailingSpec{kBailing};
constexpr PreTokenizerSpec kSeedCoderSpec{kSeedCoder};
constexpr PreTokenizerSpec kTekkenSpec{kTekken, true, true};
constexpr PreTokenizerSpec kGpt4oSpec{kGpt4o};
constexpr PreTokenizerSpec kDeepseekLlmSpec{kDeepseekLlm};
constexpr PreTokenizerSpec kDeepseekCoderSpec{kDeepseekCoder};
constexpr PreTokenizerSpec kDeepseekV3Spec{kDeepseekV3};
constexpr PreTokenizerSpec kLinesSpec{kLines, false, true, true};

struct Entry {
  std::string_view name;
  const PreTokenizerSpec* spec;
};

/// Sorted by name.
constexpr Entry kEntries[] = {
    {"a.x-4.0", &kGpt2Spec},
    {"bailingmoe", &kBailingSpec},
    {"bailingmoe2", &kBailingSpec},
    {"chatglm-bpe", &kDbrxSpec},
    {"codeshell", &kStarcoderSpec},
    {"command-r", &kCommandRSpec},
    {"dbrx", &kDbrxSpec},
    {"deepseek-coder", &kDeepseekCoderSpec},
    {"deepseek-llm", &kDeepseekLlmSpec},
    {"deepseek-r1-qwen", &kQwen2Spec},
    {"deepseek-v3", &kDeepseekV3Spec},
    {"default", &kDefaultSpec},
    {"exaone", &kStarcoderSpec},
    {"exaone4", &kGpt2Spec},
    {"falcon", &kFalconSpec},
    {"falcon-h1", &kLlama3Spec},
    {"falcon3", &kLlama3Spec},
    {"gemma4", &kLinesSpec},
    {"gigachat", &kGpt2Spec},
    {"glm4", &kGlm4Spec},
    {"gpt-2", &kGpt2Spec},
    {"gpt-4o", &kGpt4oSpec},
    {"granite-docling", &kGpt2Spec},
    {"grok-2", &kQwen2WordsSpec},
    {"hunyuan", &kQwen2WordsSpec},
    {"hunyuan-dense", &kDeepseekV3Spec},
    {"jais", &kGpt2Spec},
    {"joyai-llm", &kDeepseekV3Spec},
    {"kanana2", &kGpt4oSpec},
    {"kormo", &kQwen2WordsSpec},
    {"lfm2", &kLlama3Spec},
    {"llada-moe", &kBailingSpec},
    {"llama-bpe", &kLlama3Spec},
    {"llama-v3", &kLlama3Spec},
    {"llama3", &kLlama3Spec},
    {"llama4", &kGpt4oSpec},
    {"megrez", &kQwen2WordsSpec},
    {"mellum", &kGpt2Spec},
    {"mellum2", &kStarcoderSpec},
    {"midm-2.0", &kLlama3Spec},
    {"minerva-7b", &kStarcoderSpec},
    {"minimax-m2", &kGpt4oSpec},
    {"mpt", &kNeoxSpec},
    {"olmo", &kNeoxSpec},
    {"phi-2", &kGpt2Spec},
    {"pixtral", &kLlama3Spec},
    {"qwen2", &kQwen2Spec},
    {"qwen35", &kQwen35Spec},
    {"refact", &kStarcoderSpec},
    {"seed-coder", &kSeedCoderSpec},
    {"smaug-bpe", &kDbrxSpec},
    {"smollm", &kStarcoderSpec},
    {"solar-open", &kQwen2WordsSpec},
    {"stablelm2", &kQwen2WordsSpec},
    {"starcoder", &kStarcoderSpec},
    {"tekken", &kTekkenSpec},
    {"trillion", &kGpt2Spec},
};

constexpr bool NameLess(const Entry& a, const Entry& b) { return a.name < b.name; }
static_assert(std::is_sorted(std::begin(kEntries), std::end(kEntries), NameLess));

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kEntries)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kEntries[i].name;
  return names;
}();

}  // namespace

const PreTokenizerSpec* FindPreTokenizer(std::string_view name) noexcept {
  const Entry* found =
      std::lower_bound(std::begin(kEntries), std::end(kEntries), Entry{name, nullptr}, NameLess);
  return found != std::end(kEntries) && found->name == name ? found->spec : nullptr;
}

std::span<const std::string_view> PreTokenizerNames() noexcept { return kNames; }

}  // namespace manyhead
