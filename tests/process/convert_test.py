"""Tests of `orthant convert`: dtypes, shards, companions of the weights, and refusals."""
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess

from orthant_process import ORTHANT, ProcessTest, main, read_safetensors


def bfloat16_bits(value):
    """The upper 16 bits of a float32, rounded to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def numbers(tensor, letter):
    return [one for one, in struct.iter_unpack("<" + letter, tensor)]


def tensors_of(path):
    header, data, _ = read_safetensors(path)
    return {name: bytes(data[slice(*one["data_offsets"])]) for name, one in header.items() if name != "__metadata__"}


class Convert(ProcessTest):
    def setUp(self):
        super().setUp()
        self.train_well("training.steps=2", "run.ranks=1", "validation.freq=0")

    def convert_well(self, *arguments):
        result = self.orthant("convert", *arguments)
        self.assertEqual((result.code, result.errors()), (0, []), result)
        return result

    def config(self, directory):
        return json.loads((self.folder / directory / "config.json").read_text())

    def listing(self):
        return sorted(one.name for one in self.folder.iterdir() if not one.name.startswith(".output"))

    def test_dtypes_and_shards(self):
        self.convert_well("run", "half", "--dtype", "bfloat16", "--max-shard-gb", "0.00001")
        stored, half = tensors_of(self.latest() / "model.safetensors"), {}
        shards = sorted((self.folder / "half").glob("model-*.safetensors"))
        self.assertGreater(len(shards), 2)
        for shard in shards:
            half.update(tensors_of(shard))
        self.assertEqual(sorted(stored), sorted(half))
        for name, tensor in stored.items():
            self.assertEqual(numbers(half[name], "H"), [bfloat16_bits(one) for one in numbers(tensor, "f")], name)
        self.assertEqual(self.config("half")["torch_dtype"], "bfloat16")
        # Back: float32 holds every bfloat16 number, so that another conversion changes nothing.
        self.convert_well("half", "wide/", "--dtype", "float32")
        self.convert_well("wide", "again", "--dtype", "bfloat16", "--max-shard-gb", "0.00001")
        for shard in shards:
            self.assertEqual((self.folder / "again" / shard.name).read_bytes(), shard.read_bytes())
        text = self.orthant("generate", "half", "--temperature", "0", "--max-new-tokens", "10")
        self.assertEqual((text.code, text.errors()), (0, []), text)

    def test_copy_as_stored_trains_and_keeps_unknown_keys(self):
        shutil.copytree(self.latest(), self.folder / "model")
        config = self.config("model")
        (self.folder / "model/config.json").write_text(json.dumps({**config, "of_another_program": [1, "a"]}))
        (self.folder / "model/chat_template.jinja").write_text("{{ messages }}")
        result = self.convert_well("model", "copy")
        self.assertEqual(self.config("copy"), {**config, "of_another_program": [1, "a"]})
        for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
            self.assertEqual((self.folder / "copy" / name).read_bytes(), (self.folder / "model" / name).read_bytes())
        self.assertFalse((self.folder / "copy/orthant").exists())
        self.assertIn('from = "copy"', result.out)
        self.assertIn("seed_weights = false", result.out)
        self.assertIn("warning: model/config.json has keys that Orthant does not read: of_another_program;", result.err)
        begun = self.train_well("model.from=copy", "training.steps=1", "run.ranks=1", "validation.freq=0",
                                "job.dump_folder=drawn")
        self.assertIn("of_another_program", begun.out + begun.err)
        self.assertIn("set training.seed_weights to false", begun.out + begun.err)
        continued = self.train_well("model.from=copy", "training.seed_weights=false", "training.steps=1", "run.ranks=1", "validation.freq=0",
                                    "job.dump_folder=second")
        self.assertNotIn("set training.seed_weights to false", continued.out + continued.err)

    def test_family_that_predicts_the_next_token_only(self):
        """The names and layouts of GPT-2's tensors are not those of the type orthant."""
        self.train_well("training.steps=1", "run.ranks=1", "validation.freq=0", "model.architecture=gpt2",
                        "model.num_key_value_heads=4", "job.dump_folder=gpt2")
        shutil.copytree(self.folder / "gpt2/checkpoints/latest", self.folder / "masked")
        masked = {**self.config("masked"), "is_causal": False}
        (self.folder / "masked/config.json").write_text(json.dumps(masked))
        self.assert_says(self.orthant("convert", "masked", "to"), 1, "masked: no class of transformers computes this gpt2")
        capped = {**self.config("masked"), "is_causal": True, "attn_logit_softcapping": 5.0}
        (self.folder / "masked/config.json").write_text(json.dumps(capped))
        self.assert_says(self.orthant("convert", "masked", "to"), 1, "attn_logit_softcapping = 5.0",
                         "transformers ignores it")
        # Dropouts of GPT-2 are not read, and kept.
        dropped = {**capped, "attn_logit_softcapping": None, "attn_pdrop": 0.1, "embd_pdrop": 0.2}
        (self.folder / "masked/config.json").write_text(json.dumps(dropped))
        self.convert_well("masked", "dropped")
        kept = self.config("dropped")
        self.assertEqual((kept["attn_pdrop"], kept["embd_pdrop"]), (0.1, 0.2))
        # A masked Llama has tensors of the same names.
        shutil.copytree(self.latest(), self.folder / "llama")
        (self.folder / "llama/config.json").write_text(json.dumps({**self.config("llama"), "is_causal": False}))
        result = self.convert_well("llama", "to")
        self.assertIn('names the type "orthant", which transformers does not read', result.err)

    def test_refusals(self):
        shutil.copytree(self.latest(), self.folder / "model")
        path = self.folder / "model/model.safetensors"
        good = path.read_bytes()
        header_bytes = struct.unpack("<Q", good[:8])[0]
        header = json.loads(good[8:8 + header_bytes])
        begin = header["model.norm.weight"]["data_offsets"][0] + 8 + header_bytes
        before = self.listing()
        path.write_bytes(good[:begin] + struct.pack("<f", 70000) + good[begin + 4:])
        self.assert_says(self.orthant("convert", "model", "to", "--dtype", "float16"), 1, "model.norm.weight", "65504",
                         "--dtype bfloat16")
        path.write_bytes(good[:begin] + struct.pack("<f", 3.4e38) + good[begin + 4:])
        self.assert_says(self.orthant("convert", "model", "to", "--dtype", "bfloat16"), 1, "model.norm.weight", "3.4e38",
                         "--dtype float32")
        path.write_bytes(good.replace(b"model.norm.weight", b"model.norm.weighs", 1))
        self.assert_says(self.orthant("convert", "model", "to"), 1, "missing (1): model.norm.weight",
                         "unexpected (1): model.norm.weighs")
        path.write_bytes(good[:-4])
        self.assert_says(self.orthant("convert", "model", "to"), 1, "model.safetensors")
        path.write_bytes(good)
        template = self.folder / "model/chat_template.jinja"
        template.symlink_to("nowhere")
        self.assert_says(self.orthant("convert", "model", "to"), 1, "model/chat_template.jinja must be a file or a link")
        template.unlink()
        self.assert_says(self.orthant("convert", "model", "run"), 1, "TO = run exists")
        self.assert_says(self.orthant("convert", "model", "run/checkpoints/step-000009"), 1, "the name of a checkpoint")
        self.assert_says(self.orthant("convert", "nowhere", "to"), 1, "nowhere is neither a run folder")
        self.assertEqual(self.orthant("convert", "model", "to", "--dtype", "int8").code, 2)
        self.assertEqual(self.listing(), before)


    def test_an_interrupted_convert_leaves_nothing(self):
        unfinished = lambda: list(self.folder.glob(".orthant-convert.*"))
        codes = []
        for attempt in range(5):
            running = self.start([ORTHANT, "convert", "run", f"to{attempt}", "--max-shard-gb", "0.00001"])
            while not unfinished() and running.process.poll() is None:
                pass
            running.process.send_signal(signal.SIGINT)
            codes.append(running.result().code)
            self.assertEqual(unfinished(), [])
            self.assertEqual((self.folder / f"to{attempt}").exists(), codes[-1] == 0, codes)
        self.assertIn(130, codes)

    def test_the_remains_of_killed_processes_are_removed(self):
        """An old folder without a lock is removed. A locked one belongs to a process, perhaps of another container."""
        remains, used = (self.folder / f".orthant-convert.{name}" for name in ("remain", "locked"))
        for folder in (remains, used):
            folder.mkdir()
            (folder / "model.safetensors").write_text("part of a model")
        descriptor = os.open(used, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.convert_well("run", "n" * 250)
        self.assertEqual([folder.exists() for folder in (remains, used)], [False, True])

    def test_names_of_the_target(self):
        self.assertEqual(self.orthant("convert", "run", "").code, 2)
        self.assert_says(self.orthant("convert", "run", "run/checkpoints/./step-000009"), 1, "name of a checkpoint")
        for name in ("a/.", "b/../c/", "d\u00e9", "\udcff"):  # the last is no UTF-8
            self.convert_well("run", name)
        self.assertTrue((self.folder / "a/model.safetensors").exists() and (self.folder / "c/config.json").exists())

    def test_templates_are_copied(self):
        more = self.latest() / "additional_chat_templates"
        more.mkdir()
        (more / "tool_use.jinja").write_text("tools")
        more.chmod(0o555)
        self.addCleanup(more.chmod, 0o755)
        self.convert_well("run", "to")
        self.assertEqual((self.folder / "to/additional_chat_templates/tool_use.jinja").read_text(), "tools")


class LongConvert(ProcessTest):
    def peak_bytes(self, layers):
        """Trains a model with so many layers for a step. Returns the bytes of its weights, those of the largest tensor,
        and the largest resident size of a process that converts it."""
        self.train_well("training.steps=1", "run.ranks=1", "validation.freq=0", "model.hidden_size=512",
                        "model.intermediate_size=2048", f"model.num_hidden_layers={layers}",
                        f"job.dump_folder=of_{layers}")
        # Only the header, because the process below inherits the peak of this one.
        with open(self.folder / f"of_{layers}/checkpoints/latest/model.safetensors", "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        ranges = [one["data_offsets"] for name, one in header.items() if name != "__metadata__"]
        sizes = [end - begin for begin, end in ranges]
        process = subprocess.Popen([ORTHANT, "convert", f"of_{layers}", f"to_{layers}", "--dtype", "bfloat16"],
                                   cwd=self.folder, env=self.environment({}), stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return sum(sizes), max(sizes), usage.ru_maxrss * 1024

    def test_memory_does_not_grow_with_the_model(self):
        small, largest, small_peak = self.peak_bytes(2)
        large, _, large_peak = self.peak_bytes(26)
        self.assertGreater(large - small, 50 * largest)
        self.assertLess(large_peak - small_peak, 2 * largest, f"{large} bytes of weights")


if __name__ == "__main__":
    main()
