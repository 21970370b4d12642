"""Small tokenizers of many forms as the tokenizers library writes them, each with the ids it makes.

    python make_tokenizer_variants.py ../saved_tokenizers/flux_dev.tokenizer_2/tokenizer.json ../tokenizers/json_variants.json --seed 1

needs transformers 5.23, tokenizers 0.23. Each entry: name, class, config (tokenizer_config.json), tokenizer (tokenizer.json; the
precompiled_charsmap of the first argument is written as "@charsmap@"), max_length, rows of prompt, ids and cut (ids cut to max_length). The ids are
those of transformers where it reads the file as it stands ("reads": "transformers"), else of the tokenizers library.
"""
import argparse, json, pathlib, random, tempfile
from tokenizers import Regex, AddedToken, Tokenizer, models, normalizers as n, pre_tokenizers as p, processors, trainers
from transformers import AutoTokenizer

TEXT = """a photo of a cat sitting on a wooden chair by the window, the light of the morning sun falls through the leaves; two dogs and 3 birds, 100 cats!
An astronaut riding a horse on the moon. The mountains and rivers of the old masters, oil on canvas, 1888. It's I'm they'd we'll you've he's DON'T
Café naïve résumé Übergröße façade déjà vu; привет мир; γειά σου κόσμε; 一只可爱的猫坐在窗边的木椅上; 日本の山と水; ｶﾀｶﾅ カタカナ; 한국어 문장; שלום; مرحبا
a red apple, a green pear, the blue sky, an old house near the river, the portrait of a young woman in the style of the old masters, highly detailed""".split("\n")
FIXED = ["", " ", "a photo of a cat", "  leading and  trailing spaces  ", "A Cat, A DOG; and—well... 3 BIRDS!!!", "café naïve e\u0301 Übergröße", "line one\nline two\ttabbed\r\nwindows\n\n ",
         "don't you'VE it's 'S '\u017f O'Brien", "100 cats, 2.5 dogs & 3/4", "<mark>x <mark> y<mark>", "zebra zebras a zebra.", "Crow CROW crow scarecrow", "a  <sp>  b", "[CLS] a [MASK] of [UNK] [SEP]",
         "</s> <s> <unk> <|im_start|>user<|im_end|>", "一只可爱的猫", "🐱🌈 happy 👩\u200d🚀", "ＦＵＬＬ １２３ ｶﾞｷﾞ", "\u00a0nbsp\u3000\u200bzero", "Привет мир שלום مرحبا", "▁a ▁▁b", "ﬁ ½ ① ͏ ²"]
ALPHABET = list("abcdefghijklmnop stuvw  ABC 0123 .,;:!?'\"-()<>[]/&@#") + list("éüßÑÅ中山水日ひカ한🐱🚀\u200d\u0301\u00a0\u2009\t\n") + ["<mark>", "zebra", "Crow", "<sp>"]

GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = GPT4.replace("{1,3}", "")
MARKS = [AddedToken("<mark>", special=True, normalized=False), AddedToken("zebra", single_word=True, normalized=True), AddedToken("Crow", normalized=True), AddedToken("<sp>", lstrip=True, rstrip=True, normalized=False)]


def bpe(size=500, initial=(), special=(), train=None, **options):
    t = Tokenizer(models.BPE(**options))
    return t, trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(initial), special_tokens=list(special), show_progress=False,
                                  continuing_subword_prefix=options.get("continuing_subword_prefix") or "", end_of_word_suffix=options.get("end_of_word_suffix") or "")


def with_model(t, **options):
    """The same tokenizer with other options of its model."""
    d = json.loads(t.to_str()); d["model"].update(options); return Tokenizer.from_str(json.dumps(d))


def make(charsmap):
    """Yields name, class, config, tokenizer."""
    def byte_level(pattern=None, space=False, regex=True, norm=None, **options):
        t, trainer = bpe(size=400, initial=p.ByteLevel.alphabet(), **options); t.normalizer = norm
        split = [p.Split(Regex(pattern), "isolated")] if pattern else []
        t.pre_tokenizer = p.Sequence(split + [p.ByteLevel(add_prefix_space=space, use_regex=regex and not pattern)]); t.train_from_iterator(TEXT, trainer); return t
    def spm_bpe(**options):
        t, trainer = bpe(size=400, special=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], unk_token="<unk>", **options)
        t.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]); t.pre_tokenizer = p.Split("▁", "merged_with_next"); t.train_from_iterator(TEXT[:2] + TEXT[3:], trainer); t.pre_tokenizer = None; return t
    def unigram(extra=(), lines=TEXT[:2] + TEXT[3:]):
        t = Tokenizer(models.Unigram()); t.normalizer = n.Precompiled(charsmap); t.pre_tokenizer = p.Sequence([p.WhitespaceSplit(), p.Metaspace()])
        t.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"] + list(extra), unk_token="<unk>", show_progress=False)); return t
    def wordpiece(norm, pre, **options):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]", **options)); t.normalizer = norm; t.pre_tokenizer = pre
        t.train_from_iterator(TEXT[:2] + [TEXT[2][:60]] + TEXT[3:], trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False)); return t
    def frame(t, single, pair, **ids):
        t.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(k, t.token_to_id(k)) for k in set(single.split()) if not k.startswith("$")]); return t

    t = byte_level(space=True); t.add_special_tokens(["<s>", "</s>", "<pad>"]); t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")), trim_offsets=True)
    t.add_tokens(MARKS); yield "gpt2_prefix_space", "PreTrainedTokenizerFast", {"pad_token": "<pad>"}, t
    t = byte_level(QWEN, norm=n.NFC()); t.post_processor = processors.ByteLevel(trim_offsets=False); t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    yield "qwen2", "Qwen2Tokenizer", {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer"}, t
    t = Tokenizer.from_str(t.to_str()); t.add_tokens(MARKS + [AddedToken("一只", normalized=True)])
    yield "qwen2_added", "Qwen2Tokenizer", {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer", "truncation_side": "left"}, t
    yield "qwen2_split_special", "Qwen2Tokenizer", {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer", "split_special_tokens": True}, Tokenizer.from_str(t.to_str())
    yield "llama3_ignore_merges", "PreTrainedTokenizerFast", {}, with_model(byte_level(GPT4), ignore_merges=True)
    yield "o200k", "PreTrainedTokenizerFast", {}, byte_level(O200K)
    t = byte_level(None); d = json.loads(t.to_str()); d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]; yield "merges_as_texts", "PreTrainedTokenizerFast", {}, Tokenizer.from_str(json.dumps(d)), d
    t, trainer = bpe(size=500, initial=p.ByteLevel.alphabet(), end_of_word_suffix="</w>", unk_token="<|endoftext|>", special=["<|startoftext|>", "<|endoftext|>"])
    t.normalizer = n.Sequence([n.NFC(), n.Replace(Regex(r"\s+"), " "), n.Lowercase()])
    t.pre_tokenizer = p.Sequence([p.Split(Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True), p.ByteLevel(add_prefix_space=False)])
    t.train_from_iterator(TEXT, trainer); t.add_tokens(MARKS); t.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    yield "clip_added", "CLIPTokenizer", {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "padding_side": "left"}, t
    yield "llama", "PreTrainedTokenizerFast", {"pad_token": "</s>"}, frame(with_model(spm_bpe(), byte_fallback=True, fuse_unk=True), "<s> $A", "<s> $A $B")
    yield "bpe_unknown", "PreTrainedTokenizerFast", {}, with_model(spm_bpe(), byte_fallback=False, fuse_unk=False)
    yield "bpe_fused_unknown", "PreTrainedTokenizerFast", {}, with_model(spm_bpe(), byte_fallback=False, fuse_unk=True)
    yield "bpe_no_unknown", "PreTrainedTokenizerFast", {}, with_model(spm_bpe(), byte_fallback=False, unk_token=None)
    t = with_model(spm_bpe(), byte_fallback=True, fuse_unk=True); t.normalizer = n.Replace(" ", "▁"); t.pre_tokenizer = p.Split(" ", "merged_with_previous"); t.add_tokens(MARKS)
    yield "gemma", "GemmaTokenizer", {"pad_token": "<s>"}, t
    t, trainer = bpe(size=300, continuing_subword_prefix="##", end_of_word_suffix="$", unk_token="<unk>", special=["<unk>"]); t.pre_tokenizer = p.Whitespace(); t.train_from_iterator(TEXT, trainer); yield "bpe_affixes", "PreTrainedTokenizerFast", {}, t
    for scheme in ["always", "first", "never"]:
        for split in [True, False]:
            t = with_model(unigram([f"<0x{b:02X}>" for b in range(256)] if scheme == "first" else ()), byte_fallback=scheme == "first")
            t.normalizer = n.Sequence([n.Precompiled(charsmap), n.Strip(left=scheme == "never", right=True), n.Replace(Regex(" {2,}"), "▁")]); t.pre_tokenizer = p.Metaspace(prepend_scheme=scheme, split=split); t.add_tokens(MARKS)
            yield f"unigram_{scheme}{'' if split else '_whole'}", "PreTrainedTokenizerFast", {"pad_token": "<pad>"}, frame(t, "$A </s>", "$A </s> $B </s>")
    t = frame(unigram(), "$A </s>", "$A </s> $B </s>"); t.add_tokens(MARKS); yield "t5_added", "T5Tokenizer", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "model_max_length": 512, "additional_special_tokens": ["<mark>"], "truncation_side": "left"}, t
    t = unigram(); t.normalizer = n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(r"[\d]+"), "0"), n.Lowercase()]); t.pre_tokenizer = p.Sequence([p.WhitespaceSplit(), p.Metaspace(prepend_scheme="first"), p.Digits(individual_digits=True)]); yield "unigram_nmt", "PreTrainedTokenizerFast", {}, t
    for name, norm, config in [("bert_cased", n.BertNormalizer(lowercase=False), {"do_lower_case": False}), ("bert_accents", n.BertNormalizer(lowercase=True, strip_accents=False), {"do_lower_case": True, "strip_accents": False}),
                               ("bert_stripped", n.BertNormalizer(lowercase=False, strip_accents=True), {"do_lower_case": False, "strip_accents": True}), ("bert_chinese", n.BertNormalizer(handle_chinese_chars=False), {"tokenize_chinese_chars": False})]:
        t = frame(wordpiece(norm, p.BertPreTokenizer()), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"); t.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]); t.add_tokens(MARKS); yield name, "BertTokenizer", {"tokenizer_class": "BertTokenizer", **config}, t
    t = wordpiece(n.BertNormalizer(clean_text=False), p.Sequence([p.WhitespaceSplit(), p.Punctuation("contiguous")]), max_input_chars_per_word=8); t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)); yield "wordpiece_uncleaned", "PreTrainedTokenizerFast", {}, t
    t = wordpiece(n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase(), n.Strip()]), p.Sequence([p.Whitespace(), p.Digits()])); t.post_processor = processors.Sequence([processors.ByteLevel(), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))]); yield "wordpiece_nfd", "PreTrainedTokenizerFast", {}, t
    t = wordpiece(n.NFKD(), p.Sequence([p.CharDelimiterSplit(" "), p.Punctuation("merged_with_next"), p.FixedLength(5)])); t.enable_padding(direction="left", pad_id=0, pad_token="[PAD]", length=9); t.enable_truncation(7, direction="left"); yield "wordpiece_fixed", "PreTrainedTokenizerFast", {"pad_token": "[PAD]"}, t
    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            yield f"split_{behavior}{'_inverted' if invert else ''}", "PreTrainedTokenizerFast", {}, wordpiece(n.Lowercase(), p.Split(Regex(r"[aeo]|[ .]"), behavior, invert=invert))
    t = byte_level(None); t.normalizer = n.ByteLevel(); t.pre_tokenizer = p.Split(Regex(r"Ġ+"), "merged_with_next"); yield "byte_normalizer", "PreTrainedTokenizerFast", {}, t


def main():
    a = argparse.ArgumentParser(description=__doc__); a.add_argument("t5"); a.add_argument("out"); a.add_argument("--seed", type=int, default=1); a = a.parse_args()
    encoded = json.loads(pathlib.Path(a.t5).read_text())["normalizer"]["precompiled_charsmap"]
    import base64
    rng = random.Random(a.seed); random_prompts = ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 40))) for _ in range(18)]
    entries, limit = [], 9
    for name, cls, config, t, *texts in make(base64.b64decode(encoded)):
        written = texts[0] if texts else json.loads(t.to_str()); prompts = FIXED + random_prompts
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(written)); pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls, **config}))
            t.no_padding(); t.no_truncation(); t.encode_special_tokens = config.get("split_special_tokens", False); plain = [t.encode(s).ids for s in prompts]
            slow = AutoTokenizer.from_pretrained(folder); ids = slow(prompts)["input_ids"]; cut = slow(prompts, truncation=True, max_length=limit)["input_ids"]; reads = "transformers"
            if ids != plain: raise SystemExit(f"{name}: transformers and tokenizers differ: " + str([(s, x, y) for s, x, y in zip(prompts, ids, plain) if x != y][:2]))
        text = json.dumps(written, ensure_ascii=False, separators=(",", ":")).replace(encoded, "@charsmap@")
        rows = [{"prompt": s, "ids": i} if i == c else {"prompt": s, "ids": i, "cut": c} for s, i, c in zip(prompts, ids, cut)]
        entries.append({"name": name, "class": cls, "config": json.dumps(config), "tokenizer": text, "max_length": limit, "pads_left": slow.padding_side == "left", "rows": rows})
        print(name, cls, len(text), len(set(map(tuple, ids))))
    pathlib.Path(a.out).write_text(json.dumps({"variants": entries}, ensure_ascii=False, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


main()
