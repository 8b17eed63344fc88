"""Tests of pipeline runs from the command line. Losses equal those of one rank within 1e-9 in float64, and the text
equals it byte for byte, also if a run is resumed with other stages. Also tests memory and refused schedules."""
import shutil
from xml.etree import ElementTree

from orthant_process import ORTHANT, ProcessTest, main, meeting


def stages(schedule, ranks, *more):
    return (f"run.ranks={ranks}", "parallelism.pipeline_parallel_degree=2",
            f"parallelism.pipeline_parallel_schedule={schedule}", *more)


SVG = "{http://www.w3.org/2000/svg}"
MODEL = ("model.num_hidden_layers=4", "training.local_batch_size=1", "training.dtype=float64")


class Pipeline(ProcessTest):
    def assert_losses(self, have, want):
        self.assertEqual(len(have), len(want))
        for (step, loss), (other_step, other) in zip(have, want):
            self.assertEqual(step, other_step)
            self.assertAlmostEqual(loss, other, delta=1e-9)

    def validations(self, dump):
        return [(record["step"], record["validation_loss"]) for record in self.records(dump)
                if "validation_loss" in record]

    def text(self, dump):
        result = self.orthant("generate", dump, "--prompt", "The red", "--max-new-tokens", "40", "--seed", "3")
        self.assertEqual(result.code, 0, result)
        return result.out

    def test_run_equals_that_of_one_rank_for_all_stages(self):
        one = self.folder / "one"
        self.train_well(*MODEL, "run.ranks=1", f"job.dump_folder={one}")
        for keys in self.sweep((stages("zb_v", 2), stages("1f1b", 2),
                                stages("zb_h1", 4, "parallelism.data_parallel_degree=2"),
                                stages("v_min", 4, "parallelism.tensor_parallel_degree=2"),
                                stages("v_half", 2, "parallelism.vocabulary_parallel=algorithm_2")), 2):
            with self.subTest(keys):
                shutil.rmtree(self.dump, ignore_errors=True)
                self.train_well(*MODEL, *keys)
                self.assert_losses(self.losses(), self.losses(one))
                self.assert_losses(self.validations(self.dump), self.validations(one))
                self.assertEqual((self.dump / "sample.txt").read_bytes(), (one / "sample.txt").read_bytes())
                self.assertEqual(self.text(self.dump), self.text(one))

    def test_run_resumes_with_other_stages(self):
        """A run that is resumed with the same stages equals the uninterrupted run to the bit. If it is resumed with
        other stages, its losses are equal within 1e-9."""
        keys = stages("zb_v", 2)
        self.train_well(*MODEL, *keys, "training.steps=5")
        shutil.copytree(self.dump, self.folder / "half", symlinks=True)
        whole = self.folder / "whole"
        self.train_well(*MODEL, *keys, f"job.dump_folder={whole}")
        self.train_well(*MODEL, *keys, "--resume")
        self.assertEqual(self.losses(), self.losses(whole))
        self.assertEqual(self.weights(), self.weights(whole))
        shutil.rmtree(self.dump)
        (self.folder / "half").rename(self.dump)
        self.train_well(*MODEL, *stages("1f1b", 4, "parallelism.data_parallel_degree=2"), "--resume")
        self.assert_losses(self.losses(), self.losses(whole))

    def test_verify_of_pipeline(self):
        result = self.orthant("verify", "run.toml", "--steps", "2", *MODEL, *stages("v_half", 2))
        self.assertEqual(result.code, 0, result)
        # With this many float32 tokens, the rounding bound of `verify` could hide a mistake.
        many = ("training.global_batch_size=65536", "training.local_batch_size=64", "training.dtype=float32")
        self.assert_says(self.orthant("verify", "run.toml", "--steps", "1", *stages("zb_h1", 2), *many), 1,
                         'training.dtype = "float32"', "hide a mistake", "training.global_batch_size = 65536")

    def peak(self, microbatches, schedule):
        shutil.rmtree(self.dump, ignore_errors=True)
        self.train_well("model.num_hidden_layers=4", "training.local_batch_size=1", "training.steps=2",
                        "validation.freq=0", "checkpoint.interval=0",
                        f"training.global_batch_size={microbatches}", *stages(schedule, 2))
        return max(record["peak_memory_bytes"] for record in self.steps())

    def test_memory_does_not_grow_with_microbatches(self):
        """Peak memory is the same for 8 and for 64 microbatches, within 3 %: the weight gradients of two microbatches
        never exist at the same time, and the number of microbatches with saved activations is bounded."""
        for schedule in self.sweep(("zb_h1", "v_half", "1f1b", "zb_v"), 1):
            with self.subTest(schedule):
                self.assertLess(self.peak(64, schedule), 1.03 * self.peak(8, schedule))
        # The negative control: gpipe saves the activations of all microbatches.
        self.assertGreater(self.peak(64, "gpipe"), 1.5 * self.peak(8, "gpipe"))

    def test_drawing_has_title_of_schedule(self):
        (self.folder / "a<b>&.csv").write_text("0F0,0B0\n1F0,1B0\n")
        for keys, heading in ((stages("zb_h1", 2), "Planned zb_h1: 2 pipeline ranks, 3 microbatches"),
                              (stages("a<b>&.csv", 2, "training.global_batch_size=1", "training.local_batch_size=1"),
                               "Planned a<b>&.csv: 2 pipeline ranks, 1 microbatch")):
            with self.subTest(keys):
                result = self.orthant("plan", "run.toml", "--svg", "drawn.svg", *keys)
                self.assertEqual(result.code, 0, result)
                texts = [text.text for text in ElementTree.parse(self.folder / "drawn.svg").iter(SVG + "text")]
                self.assertEqual(texts[0], heading)

    def test_ranks_with_different_schedule_files(self):
        """Two ranks in folders of their own, as on two machines, have files of the same name with different
        schedules. Both fail, with one message."""
        running, variables = [], meeting(2)
        for rank, row in enumerate(("1F0,1B0", "1F0,1I0,1W0")):
            folder = self.folder / f"machine-{rank}"
            folder.mkdir()
            for name in ("run.toml", "text.txt"):
                shutil.copy(self.folder / name, folder)
            (folder / "mine.csv").write_text(f"0F0,0B0\n{row}\n")
            train = [ORTHANT, "train", "run.toml", *stages("mine.csv", 2, "training.global_batch_size=1",
                                                             "training.local_batch_size=1")]
            running.append(self.start(["sh", "-c", 'cd "$0" && exec "$@"', folder, *train],
                                      env={"RANK": str(rank), **variables}))
        results = [process.result() for process in running]
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        for part in ("different runs", 'pipeline_parallel_schedule = "mine.csv"', "rank 1"):
            self.assertIn(part, messages[0])

    def test_impossible_pipelines_are_refused(self):
        (self.folder / "mine.csv").write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n")
        (self.folder / "one.csv").write_text("0F0,0B0\n1F0,1B0\n")
        for keys, parts in (
                (stages("1f1b", 3), ("parallelism.pipeline_parallel_degree = 2", "3 ranks")),
                (stages("interleaved_1f1b", 2, "parallelism.pipeline_parallel_stages_per_rank=9"),
                 ("pipeline_parallel_stages_per_rank = 9", "must be at most model.num_hidden_layers = 2")),
                (stages("mine.csv", 2, "training.global_batch_size=2"), ("1RECV_F0 is missing", "line 2, cell 1")),
                (stages("one.csv", 2),
                 ("the schedule is for 1 microbatch (0F0 in line 1, cell 1), but training.global_batch_size = ",
                  "set training.global_batch_size to 2, or")),
                (stages("gpipe", 2, "parallelism.vocabulary_parallel=interlaced"),
                 ("parallelism.pipeline_parallel_schedule", "set it to \"1f1b\""))):
            with self.subTest(keys):
                self.assert_says(self.train(*keys), 1, *parts)


class LongPipeline(Pipeline):
    pass


if __name__ == "__main__":
    main()
