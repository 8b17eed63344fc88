"""Tests of checkpoints that are damaged, missing, from another run, or cannot be written. A run that cannot resume
fails with one message and changes no file. A save that fails leaves the previous checkpoint intact."""
import os
import resource
import shutil
import subprocess
import tempfile

from orthant_process import ORTHANT, ProcessTest, Running, main, meeting, text


class AfterARun(ProcessTest):
    """Each test starts from its own copy of the folder of one finished run."""
    settings = ()
    first = None

    def setUp(self):
        super().setUp()
        cls = type(self)
        if cls.first is None:
            self.train_well(*self.settings)
            cls.first = tempfile.TemporaryDirectory(prefix="orthant-process-")
            cls.addClassCleanup(cls.first.cleanup)
            shutil.copytree(self.dump, f"{cls.first.name}/run", symlinks=True)
        else:
            shutil.copytree(f"{cls.first.name}/run", self.dump, symlinks=True)


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(before, folder):
    """The names of changed, new and missing files, in order."""
    after = tree(folder)
    return sorted(str(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name))


class Damaged(AfterARun):
    def assert_refused(self, *parts):
        before = tree(self.dump)
        for ranks in (1, 2):
            result = self.train("training.steps=12", "--resume", f"run.ranks={ranks}")
            self.assert_says(result, 1, *parts)
            self.assertNotIn("step    11", result.out)
        self.assertEqual(changed(before, self.dump), [])

    def test_flipped_bit(self):
        for name in ("model.safetensors", "orthant/optimizer.safetensors"):
            with self.subTest(name):
                path = self.latest() / name
                whole = path.read_bytes()
                flipped = bytearray(whole)
                flipped[len(whole) // 2] ^= 1
                path.write_bytes(flipped)
                self.assert_refused(name, "offset", "step-000005", "move")
                path.write_bytes(whole)
        self.train_well("training.steps=12", "--resume")  # the control: with the original bytes the run resumes

    def test_truncated_file(self):
        path = self.latest() / "model.safetensors"
        size = path.stat().st_size
        os.truncate(path, size - 1000)
        self.assert_refused("model.safetensors", f"{size}", f"{size - 1000}", "step-000005")

    def test_missing_file(self):
        (self.latest() / "orthant/optimizer.safetensors").unlink()
        self.assert_refused("optimizer.safetensors", "step-000005")

    def test_suggested_fix_works(self):
        path = self.latest() / "model.safetensors"
        os.truncate(path, 100)
        self.assert_refused("step-000005", str(self.latest().name))
        shutil.move(self.latest(), self.folder / "away")
        result = self.train_well("training.steps=12", "--resume")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 13)))
        self.assertIn("step-000005", result.out)

    def test_newer_format_is_not_damage(self):
        path = self.latest() / "orthant/manifest.json"
        path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
        self.assert_refused("step-000010", "written by a newer Orthant (format 3, this program reads up to 2)")

    def test_file_or_folder_blocks_path(self):
        shutil.move(self.dump / "checkpoints", self.folder / "away")
        (self.dump / "checkpoints").write_text("")
        self.assert_refused("run/checkpoints: ", "has the name of a folder")
        (self.dump / "checkpoints").unlink()
        shutil.move(self.folder / "away", self.dump / "checkpoints")
        (self.dump / "checkpoints/latest").unlink()
        (self.dump / "checkpoints/latest").mkdir()
        before = len(self.steps())
        result = self.train("training.steps=12", "--resume")
        self.assert_says(result, 1, "checkpoints/latest is a directory", "move it away")
        self.assertEqual(len(self.steps()), before)  # the error comes before the first step, not at the first save

    def test_truncated_metrics(self):
        history = (self.dump / "metrics.jsonl").read_text()
        last = [line for line in history.splitlines(keepends=True) if "grad_norm" in line][-1]
        (self.dump / "metrics.jsonl").write_text(history[:history.index(last) + 20])
        result = self.train_well("training.steps=12", "--resume")
        self.assertIn("run/metrics.jsonl lacks 1 step of the 10 before this run", result.err)

    def test_no_complete_checkpoint(self):
        for member in (self.dump / "checkpoints").glob("step-*"):
            os.truncate(member / "model.safetensors", 100)
        self.assert_refused("no other complete checkpoint")


class OtherRun(AfterARun):
    settings = ("training.steps=5",)

    def test_other_model_batch_or_precision(self):
        before = tree(self.dump)
        for ranks, setting, *parts in ((2, "model.hidden_size=64", "model.hidden_size = 64", "32"),
                                       (1, "model.tie_word_embeddings=true", "model.tie_word_embeddings"),
                                       (2, "training.dtype=float64", "training.dtype = ", "float32", "precision"),
                                       (1, "training.seed=5", "training.seed = 5", "1234"),
                                       (1, "training.global_batch_size=6", "training.global_batch_size = 6", "5")):
            with self.subTest(setting):
                result = self.train(setting, "training.steps=8", "--resume", f"run.ranks={ranks}")
                self.assert_says(result, 1, "command line", "step-000005", "job.dump_folder", *parts)
                self.assertEqual(changed(before, self.dump), [])
        self.train_well("training.steps=8", "--resume")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))

    def test_refused_run_resumes_with_own_run_file(self):
        result = self.train("training.steps=8", "--resume", "model.hidden_size=64")
        self.assert_says(result, 1, "model.hidden_size = 64 (command line)", "which has 32")
        result = self.orthant("train", "run/config.toml", "--training.steps=8", "--resume")
        self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))

    def test_other_data(self):
        before = tree(self.dump)
        (self.folder / "text.txt").write_text(text(500))
        self.assert_says(self.train("training.steps=8", "--resume"), 1, "data.path", "run.toml:", "step-000005")
        self.assertEqual(changed(before, self.dump), [])  # the stored tokens are unchanged, too

    def test_no_write_before_every_rank_accepts(self):
        """Rank 1 sees a damaged checkpoint, as on a machine whose disk has another copy, so no rank writes a file."""
        before = tree(self.dump)
        shutil.copytree(self.dump, self.folder / "other", symlinks=True)
        os.truncate(self.latest(self.folder / "other") / "model.safetensors", 1000)
        variables = meeting(2)
        running = []
        for rank, folder in enumerate((self.folder, self.folder / "second")):
            folder.mkdir(exist_ok=True)
            env = self.environment({"RANK": str(rank), **variables})
            if rank == 1:
                for name in ("run.toml", "text.txt"):
                    shutil.copy(self.folder / name, folder)
                shutil.move(self.folder / "other", folder / "run")
            command = [ORTHANT, "train", "run.toml", "training.steps=8", "--resume"]
            running.append(Running(folder, command, env))
            self.addCleanup(running[-1].end)
        results = [rank.result() for rank in running]
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        self.assertIn("model.safetensors", results[0].err + results[1].err)
        self.assertEqual(changed(before, self.dump), [])

    def test_allowed_changes(self):
        changed = self.train_well("training.steps=7", "--resume", "optimizer.lr=1e-3", "run.ranks=3",
                                  "checkpoint.interval=1").out
        plain = " ".join("".join(c for c in changed if c.isascii() and c != "|").split())
        self.assertIn("step-000005; changed since: training.steps 5 -> 7, optimizer.lr 0.01 -> 0.001 ", plain)
        self.assertIn(" lr 1.00e-03 in step 6, 1.00e-02 without the changes ", plain)
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 8)))

    def test_more_steps_extend_decay(self):
        """A run of 4 steps is resumed with 6 steps. The learning rate of step 5 is then still decaying, whereas in the
        first run the decay ended with step 4. The banner reports the rate of step 5 with and without the change."""
        decay = ("lr_scheduler.decay_type=linear", "lr_scheduler.min_lr_factor=0.5", "job.dump_folder=decay")
        first = self.train_well("training.steps=4", *decay).out
        again = self.train_well("training.steps=6", *decay, "--resume").out
        says = "5.00e-03 without the changes; its decay now ends at step 6"
        self.assertNotIn("without the changes", first)
        self.assertIn(says, again)
        self.assertIn("step 5, " + says, again)
        rates = [record["lr"] for record in self.steps(self.folder / "decay")]
        self.assertIn(f"{rates[4]:.2e} in step 5", again)
        self.assertNotIn("without the changes", self.train_well("training.steps=6", *decay, "--resume").out)

    def test_resume_of_finished_run(self):
        before = self.weights()
        files = {name: (self.dump / name).read_bytes() for name in ("config.toml", "plan.json", "report.html")}
        result = self.train_well("training.steps=5", "--resume")
        self.assertEqual(self.weights(), before)
        self.train_well("training.steps=5", "--resume", "checkpoint.keep_latest_k=3")
        for name, content in files.items():
            self.assertEqual((self.dump / name).read_bytes(), content, f"{name} must show settings that a step used")
        self.assertIn("resumed", result.out)
        self.assertNotIn("changed", result.out)

    def test_resume_without_checkpoint_begins_a_run(self):
        for ranks in (1, 2):
            keys = [f"run.ranks={ranks}", "training.steps=5"]
            result = self.train_well(f"job.dump_folder=other-{ranks}", "--resume", *keys)
            self.assertIn(f"--resume: there is no checkpoint in other-{ranks}/checkpoints yet; the run begins with step 1",
                          result.err)
            self.assertNotIn("resumed", result.out)
            self.train_well(f"job.dump_folder=new-{ranks}", *keys)
            self.assertEqual(self.weights(self.folder / f"other-{ranks}"), self.weights(self.folder / f"new-{ranks}"))


class InBackground(ProcessTest):
    def test_same_checkpoints(self):
        self.train_well("checkpoint.interval=3")
        self.train_well("checkpoint.interval=3", "checkpoint.async_mode=async", "job.dump_folder=other")
        for step in ("step-000009", "step-000010"):
            result = self.orthant("checkpoint", "diff", f"run/checkpoints/{step}", f"other/checkpoints/{step}")
            self.assertEqual(result.code, 0, result)
            self.assertIn("equal: ", result.out)
        self.assertEqual(self.losses(), self.losses(self.folder / "other"))


class FullDisk(ProcessTest):
    def assert_whole_and_resumable(self, *arguments):
        self.assertEqual(sorted(path.name for path in (self.dump / "checkpoints").iterdir()), ["latest", "step-000005"])
        self.train_well("training.steps=12", "--resume", *arguments)
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 13)))

    def test_file_size_limit(self):
        self.train_well("training.steps=5")
        before = tree(self.latest())
        limit = (self.latest() / "orthant/optimizer.safetensors").stat().st_size // 2

        def set_limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        for ranks, mode in ((1, "disabled"), (2, "disabled"), (2, "async")):
            # Python ignores SIGXFSZ, and the program inherits that, so write() fails as it does on a full disk. The
            # limit would also apply to UCX's shared memory, which consists of files; hence Gloo.
            result = self.train("training.steps=12", "--resume", f"run.ranks={ranks}", "run.transport=gloo",
                                f"checkpoint.async_mode={mode}", preexec_fn=set_limit, restore_signals=False)
            self.assert_says(result, 1, "saving the checkpoint of step 10", "File too large", "offset", "step-000005",
                             "unchanged")
            self.assertEqual(tree(self.latest()), before)
        self.assert_whole_and_resumable()

    def test_full_disk(self):
        disk = self.folder / "disk"
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk],
                                               capture_output=True).returncode != 0:
            self.skipTest("only root may mount the small disk that this test fills")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        self.dump = disk / "run"
        settings = [f"job.dump_folder={self.dump}", "metrics.enable_tensorboard=false"]
        self.train_well("training.steps=5", *settings)
        before = tree(self.latest())
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        # The remaining 200 kB suffice for metrics and plan, but not for another checkpoint.
        (disk / "filler").write_bytes(bytes(free - 200_000))
        result = self.train("training.steps=12", "--resume", *settings)
        self.assert_says(result, 1, "saving the checkpoint of step 10", "No space left", "step-000005", "unchanged")
        self.assertEqual(tree(self.latest()), before)
        (disk / "filler").unlink()
        self.assert_whole_and_resumable(*settings)


if __name__ == "__main__":
    main()
