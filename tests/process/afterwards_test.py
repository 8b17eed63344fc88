"""Tests of the commands that use a finished run: `generate`, which writes text with its model, and `report`. The text
of a run on a tensor mesh must equal, byte for byte, the text of the same run on one rank."""
import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys

from orthant_process import ORTHANT, ProcessTest, main, read_safetensors


class Generate(ProcessTest):
    def setUp(self):
        super().setUp()
        self.train_well("training.steps=5", "run.ranks=1", "validation.freq=0")

    def generate(self, *arguments):
        return self.orthant("generate", "run", "--prompt", "The red door", "--temperature", "0", *arguments)

    def test_generate_stops_at_last_position(self):
        result = self.generate("--max-new-tokens", "1000")
        speed, note = result.err.splitlines()
        self.assertEqual(result.code, 0, result)
        self.assertRegex(speed, r"^[0-9]+ tokens in .*: [0-9.]+ tokens/s$")
        self.assertIn("max_position_embeddings = 128", note)
        self.assertGreater(len(result.out), len("The red door") + 100)
        result = self.generate("--max-new-tokens", "20")  # the control
        self.assertEqual((result.code, len(result.err.splitlines())), (0, 1), result)

    def test_generate_continues_the_prompts_of_a_file(self):
        """The model computes in float64, so that the sums of a batch, in another order, do not change a choice."""
        self.train_well("training.steps=5", "run.ranks=1", "validation.freq=0", "training.dtype=float64",
                        "job.dump_folder=wide")
        prompts = ["The red door", "A", "key number 7 and the lamp", "\u00e9", "The red door"]
        prompts.insert(1, "")  # an empty prompt: the model begins a document
        (self.folder / "prompts.txt").write_text("\n".join(prompts))
        (self.folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
        alone = [self.orthant("generate", "wide", "--prompt", one, "--temperature", "0", "--max-new-tokens", "30").out
                 for one in prompts]
        for file, batch in (("prompts.txt", 1), ("prompts.txt", 3), ("prompts.jsonl", 8)):
            result = self.orthant("generate", "wide", "--prompt-file", file, "--batch-size", str(batch),
                                  "--temperature", "0", "--max-new-tokens", "30")
            self.assertEqual(result.code, 0, result)
            made = [json.loads(line) for line in result.out.splitlines()]
            self.assertEqual([one["prompt"] for one in made], prompts)
            self.assertEqual([one["prompt"] + one["text"] + "\n" for one in made], alone)
            self.assertEqual({one["end"] for one in made} - {"max_new_tokens", "end_token"}, set())
            self.assertRegex(result.err, r"^[0-9]+ tokens of 6 texts in .*: [0-9.]+ tokens/s\n$")
        sampled = self.orthant("generate", "wide", "--prompt-file", "prompts.txt", "--temperature", "1")
        texts = [json.loads(line)["text"] for line in sampled.out.splitlines()]
        self.assertNotEqual(texts[0], texts[5])  # equal prompts have random numbers of their own
        self.assertEqual(texts, [json.loads(line)["text"] for line in self.orthant(
            "generate", "wide", "--prompt-file", "prompts.txt", "--temperature", "1", "--batch-size", "2").out.splitlines()])

    def test_generate_refuses_bad_prompt_files(self):
        (self.folder / "blank.txt").write_text("")
        (self.folder / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
        (self.folder / "role.jsonl").write_text('{"messages": [{"content": "a"}]}\n')
        (self.folder / "both.jsonl").write_text('{"prompt": "a", "messages": []}\n')
        (self.folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
        (self.folder / "long.txt").write_text("a\n" + "b" * 129)
        for file, *words in (("blank.txt", "is empty"), ("bad.jsonl", "line 2", "\"text\" must not be a member"),
                             ("chat.jsonl", "has no chat template", "chat_template.jinja"),
                             ("role.jsonl", "line 1", "\"role\""), ("both.jsonl", "line 1", "either"), ("none.txt", "none.txt"),
                             ("long.txt", "long.txt: line 2: the 129 tokens of the prompt", "max_position_embeddings = 128")):
            self.assert_says(self.orthant("generate", "run", "--prompt-file", file), 1, *words)
        (self.folder / "none.jsonl").write_text('{"id": 1}\n')
        (self.folder / "five.jsonl").write_text('{"prompt": 5}\n')
        os.mkfifo(self.folder / "pipe.jsonl")
        for file, *words in (("none.jsonl", "line 1", "prompt"), ("five.jsonl", "must be a text or a list of messages"),
                             ("pipe.jsonl", "not a regular file")):
            self.assert_says(self.orthant("generate", "run", "--prompt-file", file), 1, *words)
        self.assert_says(self.orthant("generate", "run", "--chat"), 1, "--chat", "--prompt")
        self.assertEqual(self.generate("--prompt-file", "blank.txt").code, 2)  # together with --prompt
        self.assertEqual(self.generate("--batch-size", "2").code, 2)  # without a file of prompts

    def test_generate_answers_messages(self):
        """The prompt of a message is what the model's chat template writes, and begin tokens come from it alone."""
        model = self.latest()
        (model / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")
        written = "user: The red door\nassistant: "
        options = ["--temperature", "0", "--max-new-tokens", "20"]
        want = self.orthant("generate", "run", "--prompt", written, *options).out.removeprefix(written)
        self.assertEqual(self.generate("--chat", *options[2:]).out, want)
        message = [{"role": "user", "content": "The red door"}]
        (self.folder / "chat.jsonl").write_text(json.dumps({"id": 7, "messages": message}).replace("7", "12345678901234567890123") + "\n"
                                                + json.dumps({"prompt": written}) + "\n")
        made = [json.loads(line) for line in self.orthant("generate", "run", "--prompt-file", "chat.jsonl", *options)
                .out.splitlines()]
        self.assertEqual(made[0], {"id": 12345678901234567890123, "messages": message, "text": want[:-1], "tokens": 20, "end": "max_new_tokens"})
        self.assertEqual(made[1]["text"] + "\n", want)

    def test_a_continued_model_keeps_its_end_tokens(self):
        """Generation ends at each of them, as in transformers, and checkpoints keep the files of the model."""
        source = self.folder / "source"
        shutil.copytree(self.latest(), source, ignore=shutil.ignore_patterns("orthant"))
        text = self.generate("--max-new-tokens", "20").out.removeprefix("The red door")[:-1]
        last = text[10]
        ends = {"eos_token_id": [256, ord(last)], "max_length": 77}
        (source / "generation_config.json").write_text(json.dumps(ends))
        config = json.loads((source / "config.json").read_text()) | {"pad_token_id": 3, "bos_token_id": 4}
        (source / "config.json").write_text(json.dumps(config))
        (source / "added_tokens.json").write_text("{}")
        with open(source / "tokenizer.json", "a") as file:
            file.write("\n")  # so that it is not taken for the byte tokenizer of Orthant
        self.train_well("training.steps=1", "run.ranks=1", "validation.freq=0", f"model.from={source}",
                        "training.seed_weights=false", "job.dump_folder=next", "optimizer.lr=1e-9")
        kept = self.latest(self.folder / "next")
        self.assertEqual(json.loads((kept / "generation_config.json").read_text()), ends)
        self.assertTrue((kept / "added_tokens.json").exists())
        after = json.loads((kept / "config.json").read_text())
        self.assertEqual([after[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")], [4, 256, 3])
        result = self.orthant("generate", "next", "--prompt", "The red door", "--temperature", "0")
        self.assertEqual(result.out, f"The red door{text[:text.index(last)]}\n", result)

    def test_generate_prints_text_in_pieces(self):
        """The output is written in pieces while it is generated. Over a SOCK_SEQPACKET socket, each write arrives as a
        message of its own, so that the test can count them."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, its:
            process = subprocess.Popen([ORTHANT, "generate", "run", "--prompt", "The red door", "--temperature", "0",
                                        "--max-new-tokens", "20"], cwd=self.folder, env=self.environment({}), stdout=its)
            its.close()
            messages = list(iter(lambda: ours.recv(1 << 16).decode(errors="replace"), ""))
        self.assertEqual(process.wait(), 0)
        self.assertEqual("".join(messages), self.generate("--max-new-tokens", "20").out)
        self.assertTrue(messages[0].startswith("The red door"), messages)
        # Nearly every one of the 20 tokens is a complete character, because the model was trained on ASCII text.
        self.assertGreater(len(messages), 10)

    def test_terminal_receives_complete_characters(self):
        """A terminal receives only complete characters, although an untrained model generates arbitrary bytes. Except
        for replacement characters, the terminal shows the same text as a pipe receives."""
        self.train_well("training.steps=1", "run.ranks=1", "validation.freq=0", "job.dump_folder=new")
        main, side = pty.openpty()
        process = subprocess.Popen([ORTHANT, "generate", "new", "--prompt", "caf\u00e9", "--temperature", "2",
                                    "--max-new-tokens", "100"], cwd=self.folder, env=self.environment({}), stdout=side)
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # raised when the program has closed the other side
            while piece := os.read(main, 1 << 16):
                shown += piece
        os.close(main)
        self.assertEqual(process.wait(), 0)
        raw = subprocess.run([ORTHANT, "generate", "new", "--prompt", "caf\u00e9", "--temperature", "2",
                              "--max-new-tokens", "100"], cwd=self.folder, env=self.environment({}), check=True,
                             stdout=subprocess.PIPE).stdout
        self.assertIn(b"caf\xc3\xa9", shown)
        # Control characters are not shown. Python's count of replacement characters may differ from the program's,
        # because they split invalid bytes differently, so replacement characters are left out of the comparison.
        visible = [c for c in raw.decode(errors="replace") if (c >= " " and not "\x7f" <= c <= "\x9f") or c in "\n\t"]
        have = shown.decode().replace("\r\n", "\n")
        self.assertEqual(have.replace("\ufffd", ""), "".join(visible).replace("\ufffd", ""))
        self.assertGreater(have.count("\ufffd"), 10)

    def test_generate_refuses_weights_not_finite(self):
        model = self.latest()
        header, data, head = read_safetensors(model / "model.safetensors")
        for value in (float("nan"), float("inf")):
            begin = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0]
            data[begin + 40:begin + 44] = struct.pack("<f", value)
            (model / "model.safetensors").write_bytes(head + data)
            self.assert_says(self.generate(), 1, str(model.name), "model.layers.0.mlp.up_proj.weight", "not finite",
                             "earlier checkpoint")

    def test_generate_refuses_numbers_too_large(self):
        largest = 2**63 - 1
        for option in ("--seed", "--max-new-tokens"):
            for value in (largest + 1, 2**64 + 1, 10**30, "1.5", "1e3"):
                result = self.generate(option, str(value))
                self.assert_says(result, 2, option, str(value), str(largest))
        self.assertEqual(self.generate("--seed", str(largest)).code, 0)

    def test_another_seed_gives_another_text(self):
        texts = {self.orthant("generate", "run", "--temperature", "1", "--seed", str(seed)).out
                 for seed in (1, 1 + 2**32, 2**63 - 1)}
        self.assertEqual(len(texts), 3)


class GenerateMemory(ProcessTest):
    PEAK = ("import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
            "print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n")

    def peak_and_parameters(self, layers):
        dump = self.folder / str(layers)
        self.train_well("run.ranks=1", "training.steps=1", "validation.freq=0", "lr_scheduler.warmup_steps=0",
                        "model.hidden_size=256", "model.intermediate_size=1024", f"model.num_hidden_layers={layers}",
                        f"job.dump_folder={dump}")
        result = self.start([sys.executable, "-c", self.PEAK, ORTHANT, "generate", dump, "--prompt", "The",
                             "--max-new-tokens", "4"]).result()
        self.assertEqual(result.code, 0, result)
        return int(result.out), json.loads((dump / "plan.json").read_text())["parameters"]["count"]

    def test_memory_per_parameter(self):
        """`generate` needs 12 bytes per parameter, as docs/training.md states: 4 each for the weights, the memory of
        their gradients, and the mapped pages of the file. The difference between a model of 2 layers and one of 22
        removes the memory that does not depend on the model."""
        (few_bytes, few), (many_bytes, many) = (self.peak_and_parameters(layers) for layers in (2, 22))
        self.assertAlmostEqual((many_bytes - few_bytes) / (many - few), 12, delta=0.6)


class TensorRun(ProcessTest):
    """The model of a run on a tensor mesh writes the same text as the model of a run on one rank, although no rank held
    a full weight. This holds also after the run was resumed on another mesh."""
    MESH = ("run.ranks=4", "parallelism.tensor_parallel_kind=2.5d", "parallelism.tensor_parallel_mesh=[2,1,2]")

    def run_to(self, steps, dump, *arguments):
        return self.train_well(f"training.steps={steps}", f"job.dump_folder={dump}", "training.dtype=float64",
                               "training.global_batch_size=8", "validation.freq=0", *arguments)

    def texts(self, dump):
        return [(self.folder / dump / "sample.txt").read_text(),
                *(self.orthant("generate", dump, "--prompt", "The red door", "--temperature", temperature).out
                  for temperature in ("0", "1"))]

    def test_text_equals_that_of_one_rank_after_change_of_mesh(self):
        self.run_to(5, "one", "run.ranks=1")
        self.run_to(5, "mesh", *self.MESH)
        after_five = self.texts("one")
        self.assertGreater(min(map(len, after_five)), 60)
        self.assertEqual(self.texts("mesh"), after_five)
        self.run_to(10, "one", "run.ranks=1", "--resume")
        shutil.copytree(self.folder / "mesh", self.folder / "again", symlinks=True)
        self.run_to(10, "mesh", "run.ranks=1", "--resume")
        self.run_to(10, "again", *self.MESH, "--resume")
        after_ten = self.texts("one")
        self.assertEqual([self.texts("mesh"), self.texts("again")], [after_ten, after_ten])
        for before, after in zip(after_five, after_ten):
            self.assertNotEqual(before, after)  # the negative control: other weights write another text

    def test_sample_of_fewer_steps_is_removed(self):
        for mesh in self.sweep((self.MESH, ("run.ranks=2",)), 1):
            self.train_well("training.steps=5", "training.global_batch_size=8", *mesh)
            self.assertTrue((self.dump / "sample.txt").exists())
            running = self.start_training("training.global_batch_size=8", "--resume", *mesh, until_step=8)
            running.process.send_signal(signal.SIGTERM)
            self.assertEqual(running.result().code, 0)
            self.assertFalse((self.dump / "sample.txt").exists())

    def test_no_sample_of_zero_tokens(self):
        result = self.train_well("training.steps=2", "run.ranks=1", "metrics.sample_tokens=0")
        self.assertFalse((self.dump / "sample.txt").exists())
        self.assertIn("To sample:", result.out + result.err)


class LongTensorRun(TensorRun):
    MESH = ("run.ranks=8", "parallelism.tensor_parallel_kind=2.5d", "parallelism.tensor_parallel_mesh=[2,2,2]")


class Report(ProcessTest):
    def test_report_with_damaged_metrics(self):
        self.train_well("training.steps=5", "run.ranks=1", "validation.freq=0")
        path = self.dump / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:2]) + lines[2][:20] + "\n" + "".join(lines[3:]))
        self.assert_says(self.orthant("report", "run"), 1, "run/metrics.jsonl:3: ")
        path.write_text("".join(lines[:2]) + lines[2][:20])  # the control: an incomplete last line is ignored
        self.assertEqual(self.orthant("report", "run").code, 0)


if __name__ == "__main__":
    main()
