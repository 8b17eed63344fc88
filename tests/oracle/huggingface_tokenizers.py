"""Compares our ids with those of Hugging Face's `tokenizers`, for tokenizers built as those of known model families and
trained here on the sources of this project. The texts are hostile: every character of Unicode, sequences of emoji,
spaces of all kinds, long texts without a space, invalid UTF-8, random mixtures.

    huggingface_tokenizers.py --build build                   # three families
    huggingface_tokenizers.py --build build --families all
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from venv_python import use_the_tests_python

use_the_tests_python()
try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
PIECES = 2000
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def repository_files():
    names = subprocess.run(["git", "-C", str(SOURCE), "ls-files"], capture_output=True, text=True, check=True).stdout
    texts = []
    for name in names.split("\n"):
        if name.endswith((".cc", ".h", ".md", ".py", ".txt", ".cu", ".cmake")):
            texts.append((SOURCE / name).read_text(encoding="utf-8"))
    return texts


def split_of(expression):
    return pre_tokenizers.Split(Regex(expression), behavior="isolated")


def byte_level(steps, normalizer=None, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=PIECES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|begin|>"])


def fallback(normalizer=None, pre_tokenizer=None):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer, trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<unk>", "</s>", *BYTES],
                                          limit_alphabet=200, show_progress=False, max_token_length=16)


def unigram(normalizer, pre_tokenizer, byte_tokens=False):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0)], 0, byte_tokens))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(vocab_size=PIECES, unk_token="<unk>", show_progress=False,
                                              special_tokens=["<unk>", "</s>", *(BYTES if byte_tokens else [])])


def replacement_table(folder):
    """sentencepiece's table nmt_nfkc, from a model that spm_train writes; empty if there is no spm_train."""
    text = folder / "text.txt"
    text.write_text("".join(f"word{i} other{i}\n" for i in range(500)))
    try:
        subprocess.run(["spm_train", f"--input={text}", f"--model_prefix={folder}/nfkc", "--vocab_size=100",
                        "--hard_vocab_limit=false"], capture_output=True, check=True)
    except FileNotFoundError:
        return b""
    model = (folder / "nfkc.model").read_bytes()
    # Field 2 of the normalizer is the table, the longest field of bytes: tag 0x12 and its length as a varint.
    best = b""
    for at in range(len(model) - 4):
        if model[at] == 0x12:
            length = model[at + 1] & 127 | (model[at + 2] & 127) << 7 | (model[at + 3] & 127) << 14
            if model[at + 1] > 127 and model[at + 2] > 127 and model[at + 3] < 128 and len(best) < length:
                best = model[at + 4:at + 4 + length]
    return best


def families(folder):
    space = normalizers.Replace(" ", "▁")
    deepseek = [split_of(r"[\r\n]"), split_of(r"\s?\p{L}+"), split_of(r"\s?\p{P}+"), split_of("[一-龥ࠀ-一가-퟿]+"),
                pre_tokenizers.Digits(individual_digits=True)]
    made = {
        "gpt2": byte_level([]),
        "llama3": byte_level([split_of(GPT4)], ignore_merges=True),
        "qwen2": byte_level([split_of(QWEN)], normalizers.NFC()),
        "gpt4o": byte_level([split_of(GPT4O)]),
        "deepseek": byte_level(deepseek),
        "llama2": fallback(normalizers.Sequence([normalizers.Prepend("▁"), space])),
        "mistral": fallback(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        "gemma": fallback(space, pre_tokenizers.Split(" ", "merged_with_previous")),
        "nfkd": fallback(normalizers.Sequence([normalizers.NFKD(), normalizers.Strip(), space])),
        "unigram": unigram(normalizers.NFKC(), pre_tokenizers.Metaspace()),
        "unigram_bytes": unigram(None, pre_tokenizers.Metaspace(prepend_scheme="first"), byte_tokens=True),
    }
    table = replacement_table(folder)
    if not table:
        print("t5 is left out, because there is no spm_train")
    else:
        made["t5"] = unigram(normalizers.Precompiled(table), pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]))
    return made


def add_tokens(tokenizer):
    tokenizer.add_tokens([AddedToken("<|word|>", single_word=True), AddedToken("<|left|>", lstrip=True),
                          AddedToken("<|both|>", lstrip=True, rstrip=True, normalized=False), "naïve word",
                          AddedToken("<|both|>x", normalized=False)])
    tokenizer.add_special_tokens(["<|end|>", AddedToken("<|right|>", rstrip=True)])


def hostile_texts():
    every = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(every[at:at + 64]) for at in range(0, len(every), 64)]
    texts += [f"a{c}b {c}1{c}{c}" for c in every[:0x3100] if c != "\0"]
    texts += ["👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪🇫🇷" * 20, "e\u0301" * 50 + "é", "ｆｕｌｌ ①②③ ﬁ ﷺ ½", "\u1100\u1161\u11a8 각 한국어", "ÀÉ\u0300ô\u0302"]
    texts += ["I'm we'll THEY'RE it'S 'ſ x'T 12345678 3.14159 ½¾ ٣٤٥ ", "a\u00a0b\u2003c\u180ed\u3000e\u0085f\u2028g\ufeffh",
              "   leading", "trailing   ", " \t\n \r\n\n\n  x\n", "\r", "a\r\nb\n\n\n   c", "", " ", "  ", "\n"]
    texts += ["x" * 100000, "ab" * 60000, "日本語" * 30000, " " * 50000, "\n" * 20000, "1" * 30000, "'" * 20000]
    texts += ["<|endoftext|>", "a <|endoftext|> b", "<|both|>x <|both|> y<|both|>", "  <|left|>  <|right|>  z <|end|>",
              "w<|word|>w <|word|> <|word|>.", "a naïve word, nai\u0308ve word", "<|endoftex", "<<|end|>>", "▁a▁ b", "<0x0A>",
              "<unk> x</s>"]
    generator = random.Random(7)
    parts = ["a", "B", "the", " ", "  ", "\n", "\t", "é", "e\u0301", "日", "👍", "🏽", "1", "23", "'s", "'LL", "<|end|>", "<|left|>",
             "▁", "-", "...", "ß", "\u200d", "\u00a0", "Ω", "ख़", "\U0001fae8", "\U00031350", "\u0897", "x" * 9]
    texts += ["".join(generator.choices(parts, k=generator.randrange(1, 40))) for _ in range(3000)]
    return texts


def encode(program, tokenizer_path, texts, folder):
    """Our ids of texts, which are bytes, whether they decode to themselves, and the size of the vocabulary."""
    path = folder / "texts"
    path.write_bytes(b"".join(text + b"\0" for text in texts))
    done = subprocess.run([program, str(tokenizer_path), str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"encode_texts failed with {tokenizer_path}: {done.stderr}")
    *lines, last = done.stdout.splitlines()
    words = [line.split(" ") for line in lines]
    return [[int(id) for id in line[1:] if id] for line in words], [line[0] == "exact" for line in words], last.split()


def write(tokenizer, path):
    tokenizer.save(str(path))
    # Older files have merges of another form.
    if path.stem == "llama3":
        content = json.loads(path.read_text(encoding="utf-8"))
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
        path.write_text(json.dumps(content), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=SOURCE / "build", type=pathlib.Path)
    parser.add_argument("--families", nargs="+", default=["llama3", "qwen2", "t5"])
    arguments = parser.parse_args()
    program = str(arguments.build / "tests" / "encode_texts")
    repository = repository_files()
    texts = hostile_texts() + repository
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, (tokenizer, trainer) in families(folder).items():
            if name not in arguments.families and arguments.families != ["all"]:
                continue
            tokenizer.train_from_iterator(repository[::20], trainer)
            add_tokens(tokenizer)
            path = folder / f"{name}.json"
            write(tokenizer, path)
            tokenizer = Tokenizer.from_file(str(path))
            ours, exact, last = encode(program, path, [text.encode() for text in texts], folder)
            theirs = [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]
            wrong = [i for i in range(len(texts)) if ours[i] != theirs[i]]
            for i in wrong[:5]:
                print(f"{name}: {texts[i][:60]!r}\n  ours   {ours[i][:40]}\n  theirs {theirs[i][:40]}")
            if int(last[1]) != tokenizer.get_vocab_size():
                wrong.append(-1)
                print(f"{name}: a vocabulary of {last[1]}, not {tokenizer.get_vocab_size()}")
            if name == "gpt2":
                invalid = [b"\xff", b"a\xc3", b"\xe2\x28\xa1 x", b"\xf0\x9f\x91 \x80\x80", bytes(range(1, 256)) * 3]
                wrong += [i for i, same in enumerate(encode(program, path, invalid, folder)[1]) if not same]
            print(f"{name}: {len(texts)} texts, {len(wrong)} differ, {exact.count(False)} do not decode to themselves")
            failed += bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
