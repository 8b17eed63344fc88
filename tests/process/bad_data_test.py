"""Tests of the errors for text and tokens that are missing, empty, too short, damaged, or from another vocabulary. The
message names the file and the offset."""
import os
import pathlib
import shutil
import signal
import struct

from orthant_process import ORTHANT, ProcessTest, main, wait_until


PLACEMENTS = ("none", "redistribution", "interlaced", "naive", "algorithm_1", "algorithm_2")


def write_tokens(prefix, documents, type_code=8, pack="<H"):
    """Writes a Megatron dataset, PREFIX.bin and PREFIX.idx. The type code 8 is uint16."""
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


class Text(ProcessTest):
    def test_missing_file(self):
        for ranks in (1, 2):
            result = self.train("data.path=nowhere.txt", f"run.ranks={ranks}")
            self.assert_says(result, 1, "data.path", "nowhere.txt", "no such file")
            self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_glob_without_matches(self):
        self.assert_says(self.train("data.path=books/*.txt"), 1, "data.path", "books/*.txt", "matches no file",
                         str(self.folder))

    def test_folder_instead_of_file(self):
        (self.folder / "books").mkdir()
        self.assert_says(self.train("data.path=books"), 1, "books", "directory")

    def test_empty_and_blank_text(self):
        (self.folder / "text.txt").write_text("")
        self.assert_says(self.train(), 1, "text.txt", "empty")
        (self.folder / "text.txt").write_text("\n \n\t\n")
        self.assert_says(self.train(), 1, "text.txt", "blank")

    def test_blank_text_to_tokenize(self):
        (self.folder / "blank.txt").write_text("\n \n\t\r\n")
        for tokenizer in ("byte", "train:300"):
            result = self.orthant("tokenize", "blank.txt", "--output", "out", "--tokenizer", tokenizer)
            self.assert_says(result, 1, "no text")
            self.assertEqual([path.name for path in self.folder.glob("out*")], [])
            self.assertEqual([path.name for path in self.folder.glob("*.tmp*")], [])

    def test_pipes_are_refused(self):
        os.mkfifo(self.folder / "pipe.txt")
        self.assert_says(self.train("data.path=pipe.txt"), 1, "data.path", "pipe.txt", "not a regular file",
                         "write it to a file")
        self.assert_says(self.orthant("tokenize", "pipe.txt", "--output", "out"), 1, "pipe.txt", "not a regular file")
        for name in ("pipe.model", "tokens.idx", "tokens.bin"):
            os.mkfifo(self.folder / name)
        self.assert_says(self.train("data.tokenizer=pipe.model"), 1, "data.tokenizer", "pipe.model", "not a regular file")
        self.assert_says(self.train("data.path=tokens"), 1, "tokens.idx", "not a regular file")

    def test_broken_paths(self):
        long = "n" * 300
        for key, ending in (("data.path", ""), ("data.tokenizer", ".model")):
            os.symlink("loop" + ending, self.folder / ("loop" + ending))
            self.assert_says(self.train(f"{key}=loop{ending}"), 1, f"loop{ending}: ", "symbolic link", "points to itself")
            self.assert_says(self.train(f"{key}={long}{ending}"), 1, long, "too long", "shorter")
        self.assert_says(self.orthant("tokenize", "loop", "--output", "out"), 1, "loop: ", "points to itself")
        self.assert_says(self.orthant("generate", "loop"), 1, "loop", "points to itself")

    def test_too_little_text(self):
        (self.folder / "text.txt").write_text("A few words.\n")
        self.assert_says(self.train("validation.freq=0"), 1, "data.path", "14 tokens", "training.seq_len + 1 = 33")

    def test_too_little_text_to_hold_out(self):
        (self.folder / "text.txt").write_text("One document only, of more than enough tokens. " * 20)
        self.assert_says(self.train(), 1, "data.validation", "single document", "data.validation = 0")

    def test_damaged_gzip(self):
        (self.folder / "text.gz").write_bytes(b"\x1f\x8b\x08" + bytes(40))
        self.assert_says(self.train("data.path=text.gz"), 1, "text.gz")


class Tokens(ProcessTest):
    def setUp(self):
        super().setUp()
        result = self.orthant("tokenize", "text.txt", "--output", "tokens")
        self.assertEqual(result.code, 0, result)
        self.bin = self.folder / "tokens.bin"

    def test_intact_tokens_train_like_their_text(self):
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

    def test_tokens_outside_vocabulary(self):
        documents = [list(range(100, 200)) for _ in range(40)]
        documents[7][13] = 300  # a token of a larger vocabulary
        write_tokens(self.folder / "large", documents)
        parts = ("large.bin", f"offset {2 * (7 * 100 + 13)}", "document 7, position 13: token 300", "257", "tokenizer")
        for ranks in (1, 2):
            self.assert_says(self.train("data.path=large", "training.steps=200", f"run.ranks={ranks}"), 1, *parts)
        for placement in PLACEMENTS:
            self.assert_says(self.train("data.path=large", "parallelism.pipeline_parallel_degree=2",
                                        f"parallelism.vocabulary_parallel={placement}"), 1, *parts)

    def test_labels_damaged_on_disk(self):
        place = self.bin.stat().st_size // 4 * 2
        with open(self.bin, "r+b") as file:
            file.seek(place)
            file.write(b"\xff\xff")
        for placement in PLACEMENTS:
            message = self.assert_says(self.train("data.path=tokens", "parallelism.pipeline_parallel_degree=2",
                                                  f"parallelism.vocabulary_parallel={placement}"),
                                       1, "tokens.bin", f"offset {place}", "token 65535", "257")
            self.assertRegex(message, r"document \d+, position \d+")
        self.assert_says(self.train("data.path=tokens", "run.ranks=1"), 1, "tokens.bin", f"offset {place}")

    def test_verify_and_plan_report_same_error(self):
        for command in ("verify", "plan"):
            self.assert_says(self.orthant(command, "run.toml", "data.path=nowhere"), 1, "nowhere")
        self.assert_says(self.orthant("tokenize", "nowhere", "--output", "x"), 1, "nowhere")


    def test_dataset_truncated_during_read(self):
        for ranks in (1, 2):
            running = self.start_training("data.path=tokens", f"run.ranks={ranks}", "checkpoint.interval=0",
                                          "validation.freq=0")
            whole = self.bin.read_bytes()
            os.truncate(self.bin, 0)
            result = running.result()
            self.assertEqual(result.code, 1, result)
            self.assertIn("error: tokens.bin: the file was shortened while it was being read", result.err)
            self.bin.write_bytes(whole)
            shutil.rmtree(self.dump)


class Documents(ProcessTest):
    """data.mask_documents with documents that are longer than a sample."""

    def documents(self, name, longer={}):
        write_tokens(self.folder / name, [[100 + i] * longer.get(i, 20) for i in range(40)])
        return name

    def asked(self, name, *settings, command="train"):
        dry = ["--dry-run"] if command == "train" and "run.ranks=2" not in settings else []
        return self.orthant(command, "run.toml", f"data.path={name}", "data.mask_documents=true", *settings, *dry)

    def test_document_as_long_as_sample(self):
        self.documents("books", {11: 32})
        result = self.asked("books")
        self.assertEqual(result.code, 0, result)

    def test_documents_longer_than_sample(self):
        self.documents("books", {11: 33, 12: 150, 30: 34})
        parts = ("data.mask_documents = true (command line)", "document 12 (from 0) of data.path = [\"books\"]",
                 "150 tokens, more than training.seq_len = 32 (run.toml:", "3 of 40 documents",
                 "Set training.seq_len to at least 150 and model.max_position_embeddings too",
                 "data.long_documents to \"cut\"")
        for ranks in (1, 2):
            self.assert_says(self.asked("books", f"run.ranks={ranks}"), 1, *parts)
        self.assert_says(self.asked("books", command="verify"), 1, *parts)
        self.assertFalse((self.dump / "metrics.jsonl").exists())
        self.train_well("data.path=books", "data.mask_documents=true", "data.long_documents=cut", "training.steps=2")
        self.train_well("data.path=books", "training.steps=2")  # without the mask, documents of any length are legal

    def test_suggested_length_works(self):
        self.documents("books", {5: 33})
        message = self.assert_says(self.asked("books"), 1, "document 5 (from 0)", "at least 33, or")
        self.assertNotIn("max_position_embeddings", message)
        self.assertEqual(self.asked("books", "training.seq_len=33").code, 0)

    def test_held_out_documents_longer_than_sample(self):
        self.documents("books")
        self.documents("held", {39: 40})
        self.assert_says(self.asked("books", "data.validation=held"), 1, "document 39 (from 0) of data.validation")


class CachedTokens(ProcessTest):
    """The tokens and the tokenizer in a run folder are made again if they were damaged, with a note, and the losses
    are unchanged."""

    def damage(self, name):
        path, = (self.dump / "data").glob(name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        return path

    def test_damaged_tokens_are_created_again(self):
        self.train_well("training.steps=8")
        whole = self.losses()
        for arguments in (("training.steps=8",), ("training.steps=5",), ("training.steps=8", "--resume")):
            path = self.damage("tokens-*.bin")
            result = self.train_well(*arguments)
            self.assertEqual(result.err.count("is damaged"), 1, result)
            self.assertIn(f"note: run/data/{path.name} is damaged", result.err)
            self.assertEqual(self.losses(), whole[:len(self.losses())])
        self.assertNotIn("damaged", self.train_well("training.steps=5").err)

    def test_damaged_tokenizer_is_trained_again(self):
        settings = ("data.tokenizer=train:300", "training.steps=5")
        self.train_well(*settings)
        whole = self.losses()
        path = self.damage("tokenizer-*.model")
        result = self.train_well(*settings, "training.steps=8", "--resume")
        self.assertIn(f"note: run/data/{path.name} is damaged", result.err)
        self.assertEqual(self.losses()[:5], whole)


class Programs(ProcessTest):
    def test_tokenizer_training_ends_with_killed_run(self):
        (self.folder / "bin").mkdir()
        program = self.folder / "bin/spm_train"
        program.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 1000\n")
        program.chmod(0o755)
        arguments = ("tokenize", "text.txt", "--output", "out", "--tokenizer", "train:300")
        running = self.start([ORTHANT, *arguments], {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"})

        def started():
            files = self.folder.glob(".orthant-tokenizer.*/work/*.tmp*/pid")
            return [path for path in files if path.read_text().endswith("\n")]

        running.until(started, "spm_train")
        pid = int(started()[0].read_text())
        running.process.kill()
        self.assertEqual(running.result().code, -signal.SIGKILL)

        def lives():
            try:
                return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                return False

        wait_until(lambda: not lives(), f"end of {pid}")
        self.assertTrue(started())  # the temporary folder is left, because a killed program cannot remove it
        (self.folder / "out-tokenizer.backup").mkdir()  # a folder of the user
        result = self.orthant(*arguments)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(list(self.folder.glob("*.tmp*")) + list(self.folder.glob(".orthant*")), [])
        self.assertTrue((self.folder / "out-tokenizer.backup").exists())


if __name__ == "__main__":
    main()
