#!/usr/bin/env python3
"""Hostile files of up to 4 MB whose time or memory once grew with the square of their size, or faster. Fuzzers try short
files only, which do not show that. Each must be read, or refused, within the seconds below and the memory law of its
target. Usage: large_files_test.py FOLDER_OF_PROGRAMS"""
import json
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path()
MOST_SECONDS = 20  # an idle core takes less than one; those with quadratic time took more than 40
N = 100_000


def rows(*rows_of_cells) -> bytes:
    return "".join(",".join(row) + "\n" for row in rows_of_cells).encode()


def tokenizer(**members) -> bytes:
    base = {"added_tokens": [{"id": 3, "content": "</s>", "special": True}],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
    return json.dumps(base | members).encode()


def replace(text: str, by: str) -> dict:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text: bytes, kind: int) -> bytes:
    return field(1, field(1, text) + b"\x18" + bytes([kind]))


def plain_bpe(*texts: bytes) -> bytes:
    known = [piece(b"<unk>", 2), piece(b"<s>", 3), piece(b"</s>", 3), *(piece(b"<0x%02X>" % i, 6) for i in range(256))]
    return b"".join(known + [piece(text, 1) for text in texts]) + field(2, b"\x18\2") + field(3, b"\x18\0\x20\0")


MANY_KEYS = ",".join(f'"k{i}":0' for i in range(3 * N))
CONFIG = '{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,'
CASES = {
    "schedule_csv": {
        "many_ranks": rows(*([f"{s}F0", f"{s}B0"] for s in range(N))),
        "ranks_in_turn": rows(*([f"{s}F{m}" for m in (s % 2, 1 - s % 2)] + [f"{s}B{m}" for m in (s % 2, 1 - s % 2)]
                                for s in range(N // 2))),
        "many_microbatches": rows([f"0{kind}{m}" for m in range(N) for kind in "FIW"]),
        "many_stages": rows([f"{s}F0" for s in range(N)] + [f"{s}B0" for s in reversed(range(N))]),
        "empty_ranks": rows([f"0{kind}{m}" for m in range(16000) for kind in ("E", "F", "S", "T", "B", "EB")])
        + b"\n" * N,
    },
    "jsonl": {
        "keys": ("{" + MANY_KEYS + ',"text":"a"}\n').encode(),
        "deep": b'{"text":"a","x":' + b"[" * N + b"]" * N + b"}",
    },
    "hf_config": {"keys": (CONFIG + MANY_KEYS + "}").encode()},
    "run_file": {"long_key": b"[model]\n" + b"a" * 1_000_000 + b" = 1\n"},
    "hardware": {"long_key": b"a" * 1_000_000 + b" = 1\n"},
    "sentencepiece": {
        "unknown_pieces": b"\x0a\2\x18\2" * 50_000 + field(2, field(44, b"x" * 200_000)),
        "long_pieces": plain_bpe(*(b"a" * length for length in range(1, 1000))),
        "long_piece": plain_bpe(b"a" * 1_000_000),
        "empty_pieces": b"\x0a\0" * 500_000,
    },
    "tokenizer_json": {
        "begin_tokens": tokenizer(post_processor={
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "A"}}] * 5000,
            "special_tokens": {"A": {"ids": [3] * 5000}}}),
        "long_token": tokenizer(added_tokens=[], decoder=replace("a", "bb"),
                                model={"vocab": {"a" * 2_000_000: 0, "</s>": 1}, "merges": []}),
        "decoder_steps": tokenizer(decoder={"type": "Sequence", "decoders": [replace("a", "b")] * 20_000}),
        "normalizer_steps": tokenizer(normalizer={"type": "Sequence", "normalizers": [replace("a", "b")] * 20_000}),
        "long_content": tokenizer(normalizer=replace(" ", "x" * 1_000_000)),
        "spaces": tokenizer(added_tokens=[{"id": 3, "content": " ", "lstrip": True, "rstrip": True},
                                          {"id": 4, "content": "</s>"}]),
        "added_tokens": tokenizer(added_tokens=[{"id": 3 + i, "content": f"<{i}>", "lstrip": True}
                                                for i in range(20_000)]),
    },
    "safetensors": {
        "shape": (lambda text: struct.pack("<Q", len(text)) + text)(
            b'{"a":{"dtype":"U8","shape":[' + b"0," * 500_000 + b'0],"data_offsets":[0,0]}}'),
    },
}


class LargeFiles(unittest.TestCase):
    def test_each_is_read_in_linear_time_and_memory(self):
        for target, files in CASES.items():
            for name, content in files.items():
                with self.subTest(target=target, file=name), tempfile.TemporaryDirectory() as folder:
                    (Path(folder) / name).write_bytes(content)
                    result = subprocess.run([FOLDER / f"fuzz_{target}", folder], capture_output=True, text=True,
                                            timeout=MOST_SECONDS)
                    self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    FOLDER = Path(sys.argv.pop(1))
    unittest.main()
