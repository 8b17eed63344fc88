"""Runs of several ranks that share one GPU, with tensors that travel through host memory: their losses are those of one
rank on the CPU. Skipped where the program cannot use a GPU."""
from orthant_process import ProcessTest, main

SHORT = ("training.steps=5", "training.global_batch_size=4", "checkpoint.interval=0", "validation.freq=0",
         "model.num_hidden_layers=4")
P = "parallelism."
PIPELINE = P + "pipeline_parallel_degree="
LAYOUTS = [(2, (P + "zero_stage=1",)),
           (2, (P + "zero_stage=3",)),
           (2, (P + "context_parallel_ring=2",)),
           (2, (P + "context_parallel_ulysses=2",)),
           (2, (P + "tensor_parallel_degree=2",)),
           (4, (P + "tensor_parallel_mesh=[2, 2, 1]", P + "tensor_parallel_kind=2d")),
           (2, (PIPELINE + "2", P + "pipeline_parallel_schedule=1f1b")),
           (2, (PIPELINE + "2", P + "pipeline_parallel_schedule=zb_v", P + "vocabulary_parallel=algorithm_2")),
           (4, (PIPELINE + "2", P + "context_parallel_ring=2", P + "vocabulary_parallel=algorithm_1"))]


class SharedGpu(ProcessTest):
    def setUp(self):
        super().setUp()
        result = self.train("run.device=cuda", "run.ranks=1", "--dry-run")
        if 'must be "cpu", because' in result.err:
            self.skipTest(result.err.strip().splitlines()[0])

    def losses_of(self, name, *arguments):
        dump = self.folder / name
        self.train_well(*SHORT, f"job.dump_folder={dump}", *arguments)
        return [loss for _, loss in self.losses(dump)]

    def test_layouts_compute_what_one_cpu_rank_computes(self):
        expected = self.losses_of("cpu", "run.ranks=1")
        for number, (ranks, keys) in enumerate(LAYOUTS):
            with self.subTest(keys=keys):
                found = self.losses_of(f"gpu{number}", "run.device=cuda", "run.transport=gloo", f"run.ranks={ranks}", *keys)
                self.assertEqual(len(found), len(expected))
                for one, other in zip(found, expected):  # float32: two CPU layouts differ by at most 3e-8
                    self.assertAlmostEqual(one, other, delta=2e-4 * other)


if __name__ == "__main__":
    main()
