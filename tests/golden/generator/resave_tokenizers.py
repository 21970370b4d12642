"""Saves the tokenizers of golden pipelines again as transformers 5 does (tokenizer.json and tokenizer_config.json alone) and records ids.

    python resave_tokenizers.py ../pipelines ../saved_tokenizers --seed 1

needs transformers 5.23, tokenizers, sentencepiece, protobuf. ids.json: for each prompt the ids without padding, and with padding and truncation to
`max_length`, from the tokenizer as loaded from the folder that was saved.
"""
import argparse, json, pathlib, random, shutil
from transformers import AutoTokenizer

FIXED = ["", " ", "a photo of a cat", "  leading and trailing spaces  ", "A Cat, A DOG; and—well... 3 BIRDS!!!", "café naïve résumé Übergröße façade",
         "line one\nline two\ttabbed\r\nwindows", "!!!???...,,,;;;:::", "don't you've we'll it's I'm they'd he're O'Brien's", "e\u0301 decomposed versus é composed",
         "100 cats, 2.5 dogs & 3/4 of a bird @ $9.99 #art", "<|startoftext|> injected <|endoftext|> tokens", "</s> and <extra_id_0> literals", "[CLS] a [MASK] of [UNK] [SEP]",
         "一只可爱的猫坐在窗边的木椅上", "mixed中文and英文without空格", "🐱🌈 happy cat 🚀🚀", "ＦＵＬＬＷＩＤＴＨ １２３ ｶﾀｶﾅ", "\u00a0nbsp\u3000ideographic\u200bzero width", "Привет мир, γειά σου, שלום, مرحبا",
         "the mountains and rivers of the old masters, " * 12]
ALPHABET = list("abcdefghijklmnopqrstuvwxyz ABCDEFG 0123456789 .,;:!?'\"-()<>[]/&@#") + list("éüßñÅ中山水日本ひカ한국🐱🚀\u200d\u0301\u00a0\u2009\t\n")

def main():
    p = argparse.ArgumentParser(description=__doc__); p.add_argument("pipelines"); p.add_argument("out"); p.add_argument("--seed", type=int, default=1); a = p.parse_args()
    rng = random.Random(a.seed); prompts = FIXED + ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 60))) for _ in range(60)]
    for folder in sorted(pathlib.Path(a.pipelines).glob("*/tokenizer*")):
        name = f"{folder.parent.name}.{folder.name}"; out = pathlib.Path(a.out) / name
        shutil.rmtree(out, ignore_errors=True); out.mkdir(parents=True)
        AutoTokenizer.from_pretrained(folder).save_pretrained(out)
        for f in out.iterdir():
            if f.name not in ("tokenizer.json", "tokenizer_config.json"): f.unlink()
        t = AutoTokenizer.from_pretrained(out); length = min(t.model_max_length, 77 if "clip" in type(t).__name__.lower() else 40)
        rows = [{"prompt": s, "ids": t(s)["input_ids"], "padded": (e := t(s, padding="max_length", truncation=True, max_length=length))["input_ids"], "mask": e["attention_mask"]} for s in prompts]
        (out / "ids.json").write_text(json.dumps({"class": type(t).__name__, "max_length": length, "rows": rows}, ensure_ascii=False))
        print(name, type(t).__name__, length)
main()
