"""Speed of tokenizers built as those of known families, compared with Hugging Face's `tokenizers`. Writes the table of
RESULTS.md:

    make build && ninja -C build encode_texts && .venv/bin/python3 benchmarks/tokenizers/run.py
"""
import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "oracle")]
import common  # noqa: E402
import huggingface_tokenizers as families  # noqa: E402

JARGON = "/usr/share/doc/jargon-text/jargon.txt.gz"
DOCUMENT = 8192  # characters
PEER = """
import json, sys, time
from tokenizers import Tokenizer
path, texts, method = sys.argv[1:]
texts = open(texts, encoding="utf-8", newline="").read().split("\\0")[:-1]
encode = getattr(Tokenizer.from_file(path), method)
start = time.perf_counter()
found = encode(texts, add_special_tokens=False)
seconds = time.perf_counter() - start
print(json.dumps([seconds, [one.ids for one in found]]))
"""


def on(cores, command):
    done = subprocess.run(["taskset", "-c", cores, *command], capture_output=True, text=True, check=True,
                          env={**os.environ, "TOKENIZERS_PARALLELISM": "true"})
    return done.stdout


def run_ours(cores, path, texts):
    lines = on(cores, [str(ROOT / "build/tests/encode_texts"), path, texts]).splitlines()
    return float(lines[-1].split()[0]), [[int(id) for id in line.split()[1:]] for line in lines[:-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pieces", type=int, default=32000)
    arguments = parser.parse_args()
    families.PIECES = arguments.pieces
    corpus = [gzip.open(JARGON, "rt", encoding="latin1").read(), *families.repository_files()]
    text = "".join(corpus)
    documents = [text[at:at + DOCUMENT] for at in range(0, len(text), DOCUMENT)]
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    print(f"{common.machine()}; {megabytes:.1f} MB in {len(documents)} texts, {arguments.rounds} rounds\n")
    common.print_head(["family", "cores", "MB/s", "MB/s of `tokenizers`", "ratio"])
    with tempfile.TemporaryDirectory() as folder:
        texts = os.path.join(folder, "texts")
        pathlib.Path(texts).write_bytes("".join(document + "\0" for document in documents).encode())
        for name in ["gpt2", "llama3", "qwen2", "t5"]:
            tokenizer, trainer = families.families(pathlib.Path(folder))[name]
            tokenizer.train_from_iterator(corpus[::20] if name == "t5" else corpus, trainer)
            path = os.path.join(folder, f"{name}.json")
            tokenizer.save(path)
            for cores in ["0", "0-1"]:
                ours, theirs = [], {"encode_batch": [], "encode_batch_fast": []}
                for _ in range(arguments.rounds):
                    seconds, ids = run_ours(cores, path, texts)
                    ours.append(seconds)
                    for method, times in theirs.items():
                        seconds, found = json.loads(on(cores, [sys.executable, "-c", PEER, path, texts, method]))
                        times.append(seconds)
                        if found != ids:
                            sys.exit(f"{name}: the ids differ")
                mine, peer = statistics.median(ours), min(statistics.median(times) for times in theirs.values())
                common.print_row([name, str(1 if cores == "0" else 2), f"{megabytes / mine:.1f}",
                                  f"{megabytes / peer:.1f}", f"{peer / mine:.1f}"])


if __name__ == "__main__":
    main()
