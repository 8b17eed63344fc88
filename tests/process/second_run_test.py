"""Tests of two runs that were given the same MASTER_PORT: the second one fails with the reason, and the first one
continues unaffected."""
import signal
import time

from orthant_process import ORTHANT, ProcessTest, main, meeting

LOOK_S = 1.5  # seconds in which a rank would detect a failure of others: it checks every 0.5 s

class SecondRun(ProcessTest):
    def start_rank(self, rank, variables, *arguments):
        return self.start([ORTHANT, "train", "run.toml", *arguments], env={"RANK": str(rank), **variables})

    def start_first(self, **more):
        """Starts a run of two ranks. Returns them and the environment variables that they were started with."""
        variables = {**meeting(2), **more}
        ranks = [self.start_rank(rank, variables, "training.steps=1000000", "checkpoint.interval=0") for rank in (0, 1)]
        ranks[0].until(lambda: len(self.steps()) >= 3, "step 3")
        return ranks, variables

    def assert_refused(self, running, variables, *parts):
        place = f"another run already uses 127.0.0.1:{variables['MASTER_PORT']}"
        self.assert_says(running.result(), 1, place, "Choose another MASTER_PORT", *parts)

    def assert_goes_on(self, ranks):
        """The run continues to train, and saves when it is asked to stop."""
        time.sleep(LOOK_S)
        before = len(self.steps())
        ranks[0].until(lambda: len(self.steps()) >= before + 5, "steps after the second run")
        ranks[0].process.send_signal(signal.SIGTERM)
        for running in ranks:
            result = running.result()
            self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertEqual(int(self.latest().name[-6:]), self.steps()[-1]["step"])

    def test_all_ranks_of_second_run_fail(self):
        ranks, variables = self.start_first()
        for arguments in (["job.dump_folder=second"], ["training.steps=1000000", "checkpoint.interval=0"]):
            second = [self.start_rank(rank, variables, *arguments) for rank in (0, 1)]
            for running in second:
                self.assert_refused(running, variables)
        self.assertFalse((self.folder / "second").exists())
        self.assert_goes_on(ranks)

    def test_second_run_with_more_ranks_fails(self):
        ranks, variables = self.start_first()
        for rank in (1, 2):
            self.assert_refused(self.start_rank(rank, {**variables, "WORLD_SIZE": "3"}), variables,
                                "it has 2 ranks, but this rank was started as one of 3")
        self.assert_goes_on(ranks)

    def test_second_run_with_unreadable_run_file_fails(self):
        ranks, variables = self.start_first()
        for rank in (0, 1):
            result = self.start_rank(rank, variables, "training.seq_len=500").result()
            self.assert_says(result, 1, "training.seq_len = 500")
        self.assert_goes_on(ranks)

    def test_second_run_with_other_secret_fails(self):
        ranks, variables = self.start_first(ORTHANT_SECRET="the first run's secret")
        for secret, reason in (({"ORTHANT_SECRET": "another run's secret"}, "it has another secret than this rank"),
                               ({}, "it has a secret, but this rank has none")):
            without = {name: value for name, value in variables.items() if name != "ORTHANT_SECRET"}
            self.assert_refused(self.start_rank(1, {**without, **secret}), variables, reason,
                                "the same ORTHANT_SECRET or ORTHANT_SECRET_FILE")
        self.assert_goes_on(ranks)

    def test_refused_rank_can_be_restarted(self):
        """A rank that was started with another run file is refused, and does not end the run, which waits for the right
        rank."""
        variables = meeting(2)
        first = self.start_rank(0, variables)
        wrong = self.start_rank(1, variables, "optimizer.lr=0.5")
        self.assert_refused(wrong, variables, "`lr = 0.01", "on rank 0, but `lr = 0.5", "on rank 1",
                            "start all with the same run file")
        right = self.start_rank(1, variables)
        for running in (first, right):
            result = running.result()
            self.assertEqual((result.code, result.errors()), (0, []), result)
        self.assertEqual(len(self.losses()), 10)


if __name__ == "__main__":
    main()
