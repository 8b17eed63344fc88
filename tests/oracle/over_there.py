"""Tests that Hugging Face's transformers reads our checkpoints: it generates the same text and the same tokens as our
program. Import this module only if transformers can be imported."""
import json
import pathlib
import shutil
import subprocess

import torch
import transformers

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def train_a_little(build, scratch, name, extra):
    (scratch / "text.txt").write_text("".join(
        f"The {('red', 'green', 'blue')[i % 3]} door number {i * i % 97} leads to room {i % 13}.\n\n" for i in range(600)))
    folder = scratch / f"run-{name}"
    (scratch / "run.toml").write_text(f"""
[job]
dump_folder = "{folder}"
[run]
ranks = 1
[model]
hidden_size = 48
intermediate_size = 96
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 256
[data]
path = ["{scratch}/text.txt"]
[training]
steps = 30
seq_len = 64
global_batch_size = 4
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 2
[validation]
freq = 0
""")
    subprocess.run([build / "orthant", "train", scratch / "run.toml", *extra], check=True, stdout=subprocess.DEVNULL,
                   timeout=300)
    return folder


def same_text(build, folder, model):
    """Greedy decoding of both sides, each with its own cache, gives the same text."""
    prompt = "The red door number"
    there = model.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=200, do_sample=False)[0].tolist()
    there = bytes(token for token in there if token < 256)
    here = subprocess.run([build / "orthant", "generate", folder, "--prompt", prompt, "--max-new-tokens", "200",
                           "--temperature", "0"], check=True, capture_output=True, timeout=120).stdout
    assert here.rstrip(b"\n") == there.rstrip(b"\n"), f"ours {here!r}, theirs {there!r}"
    assert len(there) > len(prompt) + 5, there


def same_tokens(directory):
    text = "Grüße, <b>\n\n\t0123 and more"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(text.encode()), tokenizer(text)
    assert tokenizer.decode(list(text.encode())) == text


TEXTS = ("The quick brown fox jumps over the lazy dog.", "a rank holds 1234567 bytes", " a b  c   d\n  e\t\tf \n", "\n\n\n",
         "Grüße aus 日本 \U0001f600, <b>né</b>", "<s> </s> <unk> <0x0A> <pad>", "carriage\r\nreturn", "nul\0byte",
         "          ten spaces,     five", "aaaaaaa aaaa aa a", "data data-parallel parallelism.data_parallel_degree")


def our_ids(build, model, text, scratch):
    """Returns the token ids of the text from `orthant tokenize`, without the end-of-text token."""
    (scratch / "one.txt").write_bytes(text.encode())
    subprocess.run([build / "orthant", "tokenize", scratch / "one.txt", "--output", scratch / "one", "--tokenizer", model],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    raw = (scratch / "one.bin").read_bytes()
    return [int.from_bytes(raw[at:at + 2], "little") for at in range(0, len(raw), 2)][:-1]


def our_trained_tokenizer(build, scratch):
    """The tokenizer in a checkpoint's directory, read without options, gives the same ids as ours, adds no special
    tokens, and decodes the ids to the text."""
    pages = sorted(SOURCE.glob("docs/*.md"))
    folder = train_a_little(build, scratch, "tokenizer", ["data.tokenizer=train:900", "training.steps=1",
                                                        "data.path=" + json.dumps([str(page) for page in pages])])
    directory = folder / "checkpoints/latest"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert len(tokenizer) == 900, len(tokenizer)
    # The spelled-out end-of-text token becomes its id in tokenizer.json only: see src/data/huggingface.h.
    texts = [text for text in TEXTS if text.strip()]
    texts += [page.read_text().replace("<|endoftext|>", "") for page in pages]
    ids = {text: our_ids(build, directory / "tokenizer.model", text, scratch) for text in texts}
    for text in texts:
        there = tokenizer(text)["input_ids"]
        assert there == ids[text], f"{text[:80]!r}: ours {ids[text][:40]}, theirs {there[:40]}"
        assert tokenizer.decode(there) == text, (text[:80], tokenizer.decode(there)[:80])
    assert tokenizer.eos_token_id == json.loads((directory / "config.json").read_text())["eos_token_id"]
    # The negative control: a tokenizer that merges pieces in another order gives other ids.
    wrong = scratch / "wrong-tokenizer"
    shutil.copytree(directory, wrong)
    model = json.loads((wrong / "tokenizer.json").read_text())
    model["model"]["merges"].reverse()
    (wrong / "tokenizer.json").write_text(json.dumps(model))
    tokenizer = transformers.AutoTokenizer.from_pretrained(wrong)
    assert any(tokenizer(text)["input_ids"] != ids[text] for text in texts), "another order of merges was not noticed"
    print(f"our trained tokenizer there: the same ids for {len(texts)} texts, {sum(map(len, ids.values()))} tokens")
