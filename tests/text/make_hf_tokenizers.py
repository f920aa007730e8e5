#!/usr/bin/env python3
"""Makes small tokenizers of every kind with the package tokenizers, and what it encodes 500 texts to.

usage: make_hf_tokenizers.py FOLDER [TOKENIZER.json...]

Writes FOLDER/strings.json, 500 texts in 20 scripts, code, emoji, control characters and combining accents, and for each
kind FOLDER/KIND.json, a tokenizer.json that was trained on some of them, and FOLDER/KIND.ids, a line for each text: the
count of its ids and the FNV-1a hash of these as 32-bit numbers. With other files it writes only their ids, beside them.
hf_tokenizer_test compares them with what this library encodes. The files are kept, so that tests need no package.
"""
import json
import pathlib
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

SCRIPTS = {
    "Latin": "The quick brown fox jumps over the lazy dog's back, doesn't it? I'll see; we've seen THEM.",
    "Latin2": "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Ünïcödé straße İstanbul ﬁ ﬀ ǅ ſtill",
    "Vietnamese": "Tiếng Việt có nhiều dấu thanh, đặc biệt là ở nguyên âm.",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΌΔΟΣ ὀδυσσεύς",
    "Cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак ґанок",
    "Armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "Georgian": "ყველა ადამიანი იბადება თავისუფალი. ᲧᲕᲔᲚᲐ",
    "Hebrew": "כל בני אדם נולדו בני חורין ושווים בערכם. שָׁלוֹם",
    "Arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. مُحَمَّد ٠١٢٣",
    "Devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता। क़ १२३",
    "Bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা নিয়ে জন্মগ্রহণ করে।",
    "Tamil": "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน ๑๒๓",
    "Tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས།",
    "Ethiopic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "Khmer": "មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព។",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 각",
    "Japanese": "すべての人間は、生れながらにして自由であり。カタカナ ｶﾀｶﾅ が が",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。𠀀𠮷 ㈱ ① Ⅳ",
    "Cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ ꭰꭱ",
}
ODD = [
    "", " ", "  ", "   \n\n\t ", "a", " a", "a ", "  a  b   c    ", "\r\n\r\n", "\t\tx\n  y\n", "1234567890 12 3.14 1,000",
    "ab1c23def456", "don't we'll I'VE they'Re it'S 'tis x'y", "…—–‘’“”«»¿¡", "a_b-c.d/e\\f|g", "!!??..,,;;::", "x" * 150,
    "e\u0301 é n\u0303 \u0041\u030A Å Å \u1E9B\u0323", "\u0301start \u0300\u0301\u0302", "q\u0307\u0323 q\u0323\u0307",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺", "a\u200db \u200c \u200b \ufeff \u2060", "\u00a0nbsp\u2003em\u3000wide\u2028line\u2029par",
    "\x00\x01\x02\x1b[31m\x7f\x85", "tab\tcr\rnl\nvt\x0bff\x0c", "\ufffd\ufffe", "\U0001F9FF\U000E0041\U0010FFFF",
    "def f(x: int) -> int:\n    return x ** 2  # square\n", "for (int i = 0; i < n; ++i) { sum += a[i]; }\n",
    "<html><body class=\"a b\">&amp;</body></html>", "SELECT * FROM t WHERE a >= 'x' AND b <> 3;", "{\"k\": [1, 2.5e-3, null]}",
    "https://example.org/a?b=c&d=%20#e", "C:\\Users\\x\\file.txt", "\\frac{a}{b} \\sum_{i=1}^{n} x_i^2", "#!/bin/sh\nset -eu\n\n\n",
    "<s>", "</s>", "a<s>b", "[CLS] [SEP][MASK]", "x [MASK] y", "<|x|>", "a <|x|> b", "word<word>word <word> <word>s",
    "NoRmAl tok NORMAL tok", "▁▁ a▁b", "Ġ Ċ ĉ", "<0x41> <0x0A> <unk>", "ﷺ ﷽", "Å\u0301\u0327", "½ ² ³ ™ ℌ ｆｕｌｌ",
]


def strings() -> list[str]:
    """The scripts whole and in random pieces, joined and not, beside the odd texts."""
    choice = random.Random(5)
    texts = list(SCRIPTS.values()) + ODD
    pool = list(SCRIPTS.values()) + [text for text in ODD if text]
    while len(texts) < 500:
        parts = []
        for _ in range(choice.randint(1, 3)):
            text = choice.choice(pool)
            begin = choice.randrange(len(text))
            parts.append(text[begin:begin + choice.randint(1, 30)])
        texts.append(choice.choice(["", " ", "  ", "\n"]).join(parts))
    return texts[:500]


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
SPECIAL = ["<unk>", "<s>", "</s>"]


def added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("<|x|>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<word>", single_word=True, normalized=False),
                          AddedToken("NoRmAl tok", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True), "[CLS]"])
    return tokenizer


def byte_level(texts: list[str], **splits) -> Tokenizer:
    made = Tokenizer(models.BPE(ignore_merges=splits.get("ignore", False)))
    made.normalizer = splits.get("normalizer")
    made.pre_tokenizer = splits.get("pre") or pre_tokenizers.ByteLevel(add_prefix_space=splits.get("prefix", False))
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return made


def llama3_splits(pattern: str):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_gpt2(texts):
    return added(byte_level(texts))


def make_roberta(texts):
    made = added(byte_level(texts, prefix=True))
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return made


def make_llama3(texts):
    made = added(byte_level(texts, pre=llama3_splits(LLAMA3), ignore=True))
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])])
    return made


def make_qwen2(texts):
    return added(byte_level(texts, pre=llama3_splits(LLAMA3.replace("{1,3}", "")), normalizer=normalizers.NFC()))


def make_digits(texts):
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\r\n]"), "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    return added(byte_level(texts, pre=pre))


def make_llama2(texts):
    """Characters with byte fallback, as converted SentencePiece models have them."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.train_from_iterator(texts[:8], trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    data = json.loads(made.to_str())
    for token in data["added_tokens"]:  # the bytes are tokens of the model alone
        token["special"] = token["id"] < 3
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 3]
    return added(Tokenizer.from_str(json.dumps(data)))


def make_metaspace(texts):
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    made.train_from_iterator(texts[:8], trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, show_progress=False))
    return added(made)


def make_unigram(texts, byte_fallback=False):
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(texts[:14], trainers.UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False))
    return added(made)


def make_bert(texts, **options):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made.add_tokens([AddedToken("NoRmAl tok", normalized=True)])
    return made


def make_bert_cased(texts):
    return make_bert(texts, lowercase=False, handle_chinese_chars=False, clean_text=False)


def make_words(texts):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    made.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=["[UNK]"], show_progress=False))
    return made


KINDS = {"gpt2": make_gpt2, "roberta": make_roberta, "llama3": make_llama3, "qwen2": make_qwen2, "digits": make_digits,
         "llama2": make_llama2, "metaspace": make_metaspace, "unigram": make_unigram, "bert": make_bert,
         "bert-cased": make_bert_cased, "words": make_words}


def fnv1a(ids: list[int]) -> int:
    value = 0xCBF29CE484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def write_ids(tokenizer: Tokenizer, path: pathlib.Path, texts: list[str]) -> None:
    tokenizer.no_padding()  # a batch's, not a text's
    tokenizer.no_truncation()
    lines = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        lines.append(f"{len(ids)} {fnv1a(ids):016x}\n")
    path.write_text("".join(lines), encoding="utf-8")


def main(folder: pathlib.Path, files: list[str]) -> None:
    texts = strings()
    for file in files:
        path = pathlib.Path(file)
        write_ids(Tokenizer.from_file(file), path.with_suffix(".ids"), texts)
    if files:
        return
    (folder / "strings.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    for kind, make in KINDS.items():
        made = make(texts)
        # One line: written with indents it is four times as long.
        (folder / f"{kind}.json").write_text(made.to_str() + "\n", encoding="utf-8")
        write_ids(made, folder / f"{kind}.ids", texts)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
