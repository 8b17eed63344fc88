"""Text and tokens that are missing, empty, too little, damaged or of another vocabulary; numbers that blow up."""
import json
import shutil
import struct
import sys
import unittest

from orthant_process import ProcessTest, text


def write_tokens(prefix, documents, type_code=8, pack="<H"):
    """A Megatron dataset by hand: PREFIX.bin and PREFIX.idx; the code 8 is uint16."""
    with open(f"{prefix}.bin", "wb") as data:
        for document in documents:
            data.write(b"".join(struct.pack(pack, token) for token in document))
    width, at, offsets = struct.calcsize(pack), 0, []
    for document in documents:
        offsets.append(at)
        at += len(document) * width
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, type_code, len(documents), len(documents) + 1))
        index.write(struct.pack(f"<{len(documents)}i", *map(len, documents)))
        index.write(struct.pack(f"<{len(documents)}q", *offsets))
        index.write(struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1)))


def read_safetensors(path):
    """Header and data part."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), bytearray(raw[8 + size:]), raw[:8 + size]


class Text(ProcessTest):
    def test_no_such_file(self):
        for ranks in (1, 2):
            result = self.train("data.path=nowhere.txt", f"run.ranks={ranks}")
            self.assert_says(result, 1, "data.path", "nowhere.txt", "no such file")
            self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_a_glob_without_matches(self):
        self.assert_says(self.train("data.path=books/*.txt"), 1, "data.path", "books/*.txt", "matches no file",
                         str(self.folder))

    def test_a_folder_for_a_file(self):
        (self.folder / "books").mkdir()
        self.assert_says(self.train("data.path=books"), 1, "books", "directory")

    def test_empty_and_blank_text(self):
        (self.folder / "text.txt").write_text("")
        self.assert_says(self.train(), 1, "text.txt", "empty")
        (self.folder / "text.txt").write_text("\n \n\t\n")
        self.assert_says(self.train(), 1, "text.txt", "blank")

    def test_too_little_text(self):
        (self.folder / "text.txt").write_text("A few words.\n")
        self.assert_says(self.train("validation.freq=0"), 1, "data.path", "14 tokens", "training.seq_len + 1 = 33")

    def test_nothing_to_hold_out(self):
        (self.folder / "text.txt").write_text("One document only, of more than enough tokens. " * 20)
        result = self.train()
        if result.code != 0:
            self.assert_says(result, 1, "data.validation")

    def test_damaged_gzip(self):
        (self.folder / "text.gz").write_bytes(b"\x1f\x8b\x08" + bytes(40))
        self.assert_says(self.train("data.path=text.gz"), 1, "text.gz")


class Tokens(ProcessTest):
    def setUp(self):
        super().setUp()
        result = self.orthant("tokenize", "text.txt", "--output", "tokens")
        self.assertEqual(result.code, 0, result)
        self.bin = self.folder / "tokens.bin"

    def test_whole_tokens_train_as_their_text_does(self):
        self.train_well("data.path=tokens", "training.steps=3")
        tokens = self.losses()
        self.train_well("training.steps=3", "job.dump_folder=other")
        self.assertEqual(tokens, self.losses(self.folder / "other"))

    def test_truncated_bin(self):
        size = self.bin.stat().st_size
        with open(self.bin, "r+b") as file:
            file.truncate(size - 101)
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.bin", f"{size}", f"{size - 101}")
        self.bin.unlink()
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.bin")

    def test_truncated_idx(self):
        index = self.folder / "tokens.idx"
        index.write_bytes(index.read_bytes()[:-9])
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.idx", "offset")

    def test_tokens_beyond_the_vocabulary(self):
        documents = [list(range(100, 200)) for _ in range(40)]
        documents[7][13] = 300  # a larger tokenizer's
        write_tokens(self.folder / "large", documents)
        for ranks in (1, 2):
            result = self.train("data.path=large", "training.steps=200", f"run.ranks={ranks}")
            offset = 2 * (7 * 100 + 13)
            self.assert_says(result, 1, "large.bin", f"offset {offset}", "300", "257", "tokenizer")

    def test_verify_and_plan_answer_alike(self):
        for command in ("verify", "plan"):
            self.assert_says(self.orthant(command, "run.toml", "data.path=nowhere"), 1, "nowhere")
        self.assert_says(self.orthant("tokenize", "nowhere", "--output", "x"), 1, "nowhere")


class Numbers(ProcessTest):
    def test_a_learning_rate_beyond_all_measure(self):
        for ranks in (1, 2):
            shutil.rmtree(self.dump, ignore_errors=True)
            result = self.train("optimizer.lr=1e10", "checkpoint.interval=1", "training.steps=50", "validation.freq=0",
                                "training.max_norm=0", f"run.ranks={ranks}")
            message = self.assert_says(result, 1, "is not finite: the ", "run/checkpoints/step-0000", "optimizer.lr")
            self.assertRegex(message, r"step \d+: loss \S+, gradient norm (nan|inf)")
            command = self.resume_command(message)
            good = self.weights()
            self.assertIn(self.latest().name, message)
            again = self.start(command).result()  # as it is, it ends as it did, and the checkpoint is still the good one
            self.assert_says(again, 1, "is not finite")
            self.assertEqual(self.weights(), good)

    def test_an_update_that_overflows_is_not_saved(self):
        for ranks in (1, 2):
            result = self.train("optimizer.lr=1e38", "checkpoint.interval=1", "training.steps=50", f"run.ranks={ranks}")
            self.assert_says(result, 1, "step 1: the update made the weight ", "not finite", "optimizer.lr")
            self.assertFalse((self.dump / "checkpoints").exists())

    def test_not_finite_before_the_first_checkpoint(self):
        self.assert_says(self.train("optimizer.lr=1e38", "training.steps=50", "validation.freq=0",
                                    "checkpoint.interval=0"), 1, "not finite", "no checkpoint yet", "optimizer.lr")

    def test_a_weight_that_is_infinite(self):
        self.train_well("training.steps=2")
        model = self.latest()
        header, data, head = read_safetensors(model / "model.safetensors")
        begin = header["model.layers.1.mlp.down_proj.weight"]["data_offsets"][0]
        data[begin + 40:begin + 44] = struct.pack("<f", float("inf"))
        (model / "model.safetensors").write_bytes(head + data)
        for ranks in (1, 2):
            result = self.train(f"model.from={model}", "training.seed_weights=false", "job.dump_folder=other",
                                f"run.ranks={ranks}")
            self.assert_says(result, 1, "step 1", "the weight model.layers.1.mlp.down_proj.weight")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
