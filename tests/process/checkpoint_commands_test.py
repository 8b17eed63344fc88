"""Tests of orthant checkpoint list, verify and diff on checkpoints of real runs, with their texts and their JSON, and of
a checkpoint that an earlier version of the format holds."""
import json
import os
import shutil
import tempfile

from orthant_process import SOURCE, ProcessTest, main, read_safetensors


class Commands(ProcessTest):
    """Each test starts from its own copy of two runs with different stages of ZeRO, whose tensors have the same bits."""
    first = None

    def setUp(self):
        super().setUp()
        cls = type(self)
        if cls.first is None:
            self.train_well()
            self.train_well("job.dump_folder=other", "parallelism.zero_stage=1")
            cls.first = tempfile.TemporaryDirectory(prefix="orthant-process-")
            cls.addClassCleanup(cls.first.cleanup)
            for name in ("run", "other"):
                shutil.copytree(self.folder / name, f"{cls.first.name}/{name}", symlinks=True)
        else:
            for name in ("run", "other"):
                shutil.copytree(f"{cls.first.name}/{name}", self.folder / name, symlinks=True)

    def checkpoint(self, *arguments, code=0):
        result = self.orthant("checkpoint", *arguments)
        self.assertEqual(result.code, code, result)
        if code != 2 and "--json" not in arguments:
            self.assertTrue(all(c.isprintable() for c in result.out.replace("\n", "")), result)
        return result

    def json_of(self, *arguments, code=0):
        return json.loads(self.checkpoint(*arguments, "--json", code=code).out)

    def change_weight(self, name, folder):
        """Flips a bit in the exponent of the first element of a float32 tensor."""
        path = self.latest(self.folder / folder) / "model.safetensors"
        header, data, head = read_safetensors(path)
        data[header[name]["data_offsets"][0] + 3] ^= 0x40
        path.write_bytes(head + bytes(data))

    def test_list(self):
        for folder in ("run", "run/checkpoints"):
            out = self.checkpoint("list", folder).out
            lines = out.splitlines()
            self.assertEqual(len(lines), 4, out)
            self.assertRegex(lines[2], r"^  step-000005 +5 +[0-9.]+ KiB +20[0-9-]+ [0-9:]+ +float32 +[0-9]+ +yes +data 2$")
            self.assertRegex(lines[3], r"^  step-000010 \(latest\) +10 ")
        answer = self.json_of("list", "run")
        self.assertTrue(answer["ok"])
        self.assertEqual([(c["step"], c["latest"], c["complete"]) for c in answer["checkpoints"]],
                         [(5, False, True), (10, True, True)])
        os.truncate(self.latest() / "model.safetensors", 100)
        (self.dump / "checkpoints/.tmp-step-000015").mkdir()
        out = self.checkpoint("list", "run").out
        self.assertIn("not complete: ", out)
        self.assertIn("model.safetensors: offset 100: the file has 100 bytes", out)
        self.assertIn(".tmp-step-000015", out)
        answer = self.json_of("list", "run")
        self.assertEqual((answer["ok"], answer["leftovers"]), (False, [".tmp-step-000015"]))
        self.assertEqual(len(self.json_of("list", self.latest())["checkpoints"]), 1)

    def test_verify(self):
        answer = self.json_of("verify", "run")
        files = [p for p in self.latest().rglob("*") if p.is_file() and p.name != "manifest.json"]
        self.assertEqual((answer["ok"], answer["files"]), (True, len(files)))
        self.assertEqual(answer["bytes"], sum(p.stat().st_size for p in files))
        out = self.checkpoint("verify", "run/checkpoints/latest").out
        self.assertEqual(out, f"complete: {len(files)} files, {answer['bytes']:,} bytes, {answer['tensors']} tensors\n")
        out = self.checkpoint("verify", "run").out
        self.assertTrue(out.endswith(" tensors, in run/checkpoints/step-000010\n"), out)
        self.change_weight("model.norm.weight", "run")
        message = self.assert_says(self.orthant("checkpoint", "verify", "run"), 1, "model.safetensors",
                                   'tensor "model.norm.weight": damaged', "damaged between offset 0 and", "expected")
        self.assertNotIn("model.embed_tokens", message)
        answer = self.json_of("verify", "run", code=1)
        self.assertEqual((answer["ok"], len(answer["problems"])), (False, 2))
        (self.dump / "checkpoints/latest").unlink()
        for folder in ("run", "run/checkpoints"):  # the newest one, not the newest that is complete
            self.assert_says(self.orthant("checkpoint", "verify", folder), 1, "step-000010 has 2 problems")

    def test_diff_of_equal_runs(self):
        out = self.checkpoint("diff", "run", "other").out
        self.assertIn("\nequal: ", out)
        self.assertIn(" by the hashes in their manifests\n", out)
        self.assertIn("note: orthant/config.toml differs\n", out)
        answer = self.json_of("diff", "run", "other")
        self.assertEqual((answer["equal"], answer["read_tensors"], answer["different"]), (True, False, []))
        self.assertEqual(answer["settings"], ["orthant/config.toml"])

    def test_diff_of_different_steps(self):
        answer = self.json_of("diff", "run/checkpoints/step-000005", "run", code=1)
        self.assertEqual(len(answer["different"]), answer["tensors"])
        names = [tensor["name"] for tensor in answer["different"]]
        self.assertEqual(names, sorted(names))
        self.assertEqual(sum("elements" in tensor for tensor in answer["different"]), 10)
        fields = {field["field"]: (field["a"], field["b"]) for field in answer["state"]}
        self.assertEqual(fields["step"], ("5", "10"))
        self.assertEqual(fields["next_sample"], ("25", "50"))
        out = self.checkpoint("diff", "run/checkpoints/step-000005", "run", code=1).out
        self.assertIn(f"different: {len(names)} of {len(names)} tensors that both have, the first is \"{names[0]}\"", out)
        self.assertIn(f"  and {len(names) - 10} more\n", out)
        self.assertIn('state: step is 5 in A, and 10 in B\n', out)

    def test_diff_with_a_model(self):
        """A directory without a manifest: its tensors are hashed, and the elements that differ are counted."""
        self.assertEqual(self.orthant("convert", "run", "model").code, 0)
        self.assertIn("equal: ", self.checkpoint("diff", "run", "model", "--weights").out)
        out = self.checkpoint("diff", "run", "model", code=1).out
        self.assertIn("only in A (", out)
        self.assertIn("note: --weights compares the model alone\n", out)
        path = self.folder / "model/model.safetensors"
        header, data, head = read_safetensors(path)
        begin, _ = header["model.norm.weight"]["data_offsets"]
        data[begin + 3] ^= 0x80  # the sign of the first element
        path.write_bytes(head + bytes(data))
        answer = self.json_of("diff", "run", "model", "--weights", code=1)
        self.assertTrue(answer["read_tensors"])
        [tensor] = answer["different"]
        self.assertEqual((tensor["name"], tensor["elements"], tensor["different"]), ("model.norm.weight", 32, 1))
        self.assertGreater(tensor["largest_difference"], 1)  # twice a norm's weight
        message = self.assert_says(self.orthant("checkpoint", "verify", "model"), 1, "there are no checksums")
        self.assertIn("orthant checkpoint diff model COPY --weights", message)
        self.assertFalse(self.json_of("verify", "model", code=1)["ok"])

    def test_hostile_names(self):
        """A name with an escape sequence of the terminal is printed as text."""
        self.assertEqual(self.orthant("convert", "run", "model").code, 0)
        path = self.folder / "model/model.safetensors"
        path.write_bytes(path.read_bytes().replace(b'"model.norm.weight"', b'"\\u001b[31m.weight"'))
        out = self.checkpoint("diff", "run", "model", "--weights", code=1).out
        self.assertIn('only in B (1): "\\u001b[31m.weight"', out)

    def test_refusals(self):
        (self.folder / "file").write_text("")
        (self.folder / "empty").mkdir()
        for action in (["list"], ["verify"], ["diff", "run"]):
            for name in ("none", "file", "empty"):
                message = self.assert_says(self.orthant("checkpoint", *action, name), 1, name)
                self.assertRegex(message, "name a (run folder|checkpoint)")
        for arguments, part in ((["verify", "run", "other"], "takes one directory, but got 2"),
                                (["diff", "run"], "takes two directories, but got 1"),
                                (["list", "run", "--weights"], "--weights requires diff"),
                                (["lost", "run"], "lost"), (["list"], "DIR is required")):
            self.assert_says(self.orthant("checkpoint", *arguments), 2, part, "orthant checkpoint --help")
        path = self.latest() / "orthant/manifest.json"
        path.write_text(path.read_text().replace('"version": 2', '"version": 9'))
        for action in (["verify"], ["diff", "other"]):
            self.assert_says(self.orthant("checkpoint", *action, "run"), 1, "newer Orthant (format 9")
        self.assertIn("newer Orthant (format 9", self.checkpoint("list", "run").out)


class VersionOne(ProcessTest):
    """tests/checkpoint/fixtures/v1 was saved by a program that knew version 1 of the format only."""

    def test_resume(self):
        shutil.copytree(SOURCE / "tests/checkpoint/fixtures/v1", self.folder / "run/checkpoints")
        shutil.move(self.folder / "run/checkpoints/text.txt", self.folder / "text.txt")
        shutil.copy(self.folder / "run/checkpoints/step-000002/orthant/config.toml", self.folder / "run.toml")
        self.assertIn("complete: ", self.orthant("checkpoint", "verify", "run").out)
        result = self.train_well("--resume", "training.steps=4")
        self.assertIn("step-000002", result.out)
        self.assertEqual([step for step, _ in self.losses()], [3, 4])
        self.assertEqual(self.latest().name, "step-000004")
        out = self.orthant("checkpoint", "diff", "run/checkpoints/step-000002", "run").out
        self.assertIn("different: ", out)
        self.assertIn('state: step is 2 in A, and 4 in B\n', out)


if __name__ == "__main__":
    main()
