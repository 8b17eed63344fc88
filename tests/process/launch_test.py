"""Tests of our own launcher, and of ranks that are started by hand with the variables of torchrun. Also tests the files
that a complete run leaves, and the messages of a launch that fails. launchers_test.py runs other launchers."""
import json
import os
import socket
import time
import tomllib

from orthant_process import ORTHANT, ProcessTest, main, meeting

STEP_FIELDS = {"step", "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "mfu",
               "peak_memory_bytes"}


class FullRun(ProcessTest):
    def test_two_local_ranks_write_all_files(self):
        result = self.train_well()
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 11)))
        self.assertLess(self.losses()[-1][1], self.losses()[0][1] - 0.5)
        for record in self.steps():
            self.assertLessEqual(STEP_FIELDS, set(record))
            self.assertNotIn(None, [record[field] for field in STEP_FIELDS])
        validations = [r for r in self.records() if "validation_loss" in r]
        self.assertEqual([r["step"] for r in validations], [5, 10])
        self.assertTrue(all(0 < r["bits_per_byte"] < 9 for r in validations))

        self.assertEqual({path.name for path in self.dump.iterdir()},
                         {"config.toml", "metrics.jsonl", "plan.json", "schedule.svg", "tb", "checkpoints", "report.html",
                          "sample.txt", "data"})
        self.assertEqual(sorted(path.name for path in (self.dump / "checkpoints").iterdir()),
                         ["latest", "step-000005", "step-000010"])
        self.assertEqual(self.latest().name, "step-000010")
        self.assertEqual({path.name for path in self.latest().iterdir()},
                         {"config.json", "generation_config.json", "model.safetensors", "orthant", "tokenizer.json",
                          "tokenizer_config.json"})
        self.assertEqual({path.name for path in (self.latest() / "orthant").iterdir()},
                         {"optimizer.safetensors", "state.json", "config.toml", "manifest.json"})
        self.assertGreater(sum(path.stat().st_size for path in (self.dump / "tb").iterdir()), 500)
        self.assertIn("<svg", (self.dump / "report.html").read_text())
        self.assertNotIn("src=\"http", (self.dump / "report.html").read_text())
        self.assertGreater(len((self.dump / "sample.txt").read_text()), 20)
        self.assertEqual(json.loads((self.dump / "plan.json").read_text())["ranks"], 2)

        for said in ("step", "run/report.html", "run/checkpoints/step-000010", "orthant generate run"):
            self.assertIn(said, result.out)

    def test_pipeline_writes_timeline_of_last_step(self):
        self.train_well("parallelism.pipeline_parallel_degree=2", "training.local_batch_size=1")
        trace = json.loads((self.dump / "timeline.json").read_text())
        self.assertEqual(trace["otherData"]["step"], 10)
        self.assertGreater(trace["otherData"]["simulated_s"], 0)
        self.assertLess(trace["otherData"]["clock_error_s"], 1)
        times = {0: [], 1: []}
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                times[event["pid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        ends = {name: end for row in times.values() for _, end, name in row}
        slack_us = 1e6 * trace["otherData"]["clock_error_s"] + 0.01
        for rank, row in times.items():
            for (_, end, name), (start, _, after) in zip(row, row[1:]):
                self.assertGreaterEqual(start + 0.01, end, f"{after} of rank {rank} begins in {name}")
            for start, end, name in row:
                self.assertGreaterEqual(end, start, name)
                # The input of an Action was computed on the other rank before the Action began.
                for kind, of, by in (("F", 1, 0), ("B", 0, 1)):
                    if name.startswith(f"PP:{of}{kind}"):
                        self.assertGreaterEqual(start + slack_us, ends[name.replace(str(of), str(by), 1)], name)
            self.assertEqual(sum(name.startswith((f"PP:{rank}F", f"PP:{rank}B")) for _, _, name in row), 10)
        # The planned trace has the same spans on the same ranks and threads.
        result = self.orthant("plan", "run.toml", "parallelism.pipeline_parallel_degree=2",
                              "training.local_batch_size=1", "--trace", "planned.json")
        self.assertEqual(result.code, 0, result)
        planned = json.loads((self.folder / "planned.json").read_text())
        spans = [{(event["pid"], event["cat"], event["name"]) for event in each["traceEvents"] if event["ph"] == "X"}
                 for each in (planned, trace)]
        self.assertEqual(*spans)
        self.assertEqual(sum(event["ph"] == "s" for event in planned["traceEvents"]), 10)
        page = (self.dump / "report.html").read_text()
        self.assertIn("Measured: step 10 took", page)
        self.assertIn("measured / simulated", page)
        self.assertIn("The measured schedule", page)

    def test_effective_run_file_gives_same_run(self):
        self.train_well("training.steps=4", "--optimizer.lr", "2e-2")
        saved = (self.dump / "config.toml").read_text()
        values = tomllib.loads(saved)
        self.assertEqual((values["training"]["steps"], values["optimizer"]["lr"]), (4, 2e-2))
        self.assertIn("run.toml:", saved)
        self.assertIn("command line", saved)
        (self.folder / "again.toml").write_text(saved)
        again = self.orthant("train", "again.toml", "job.dump_folder=again")
        self.assertEqual(again.code, 0, again)
        self.assertEqual(self.losses(), self.losses(self.folder / "again"))
        self.assertEqual(self.weights(), self.weights(self.folder / "again"))

    def test_any_number_of_ranks_trains_same_model(self):
        losses = {}
        for ranks in (1, 2, 3):
            dump = self.folder / f"run-{ranks}"
            self.train_well(f"run.ranks={ranks}", f"job.dump_folder={dump}", "training.dtype=float64")
            losses[ranks] = self.losses(dump)
        for ranks in (2, 3):
            for (_, one), (_, many) in zip(losses[1], losses[ranks], strict=True):
                # The loss is summed over ranks in float64, the gradients' dtype, and is of the order of 1 nat.
                self.assertAlmostEqual(one, many, delta=1e-10)
        self.assertNotEqual(losses[1][0], losses[1][1])

    def test_second_run_moves_files_of_first(self):
        self.train_well("training.steps=3")
        first = self.losses()
        result = self.train_well("training.steps=2", "training.seed=5")
        self.assertIn("run/earlier/1", result.err)
        self.assertEqual(self.losses(self.dump / "earlier/1"), first)
        self.assertEqual(len(self.losses()), 2)

    def test_summary_does_not_name_missing_report(self):
        (self.dump / "report.html").mkdir(parents=True)
        result = self.train("run.ranks=1")
        self.assert_says(result, 1, "run/report.html")
        self.assertNotIn("run/report.html", result.out)
        self.assertEqual(self.latest().name, "step-000010")

    def test_dry_run_and_print_config_start_nothing(self):
        for flag in ("--dry-run", "--print-config"):
            result = self.train_well(flag)
            self.assertFalse((self.dump / "metrics.jsonl").exists())
            self.assertIn("32", result.out)

    def test_generate_report_verify_and_plan_read_run_folder(self):
        self.train_well()
        texts = [self.orthant("generate", "run", "--prompt", "The red", "--max-new-tokens", "20", "--seed", "3")
                 for _ in range(2)]
        self.assertEqual(texts[0].code, 0, texts[0])
        self.assertEqual(texts[0].out, texts[1].out)
        self.assertTrue(texts[0].out.startswith("The red"))
        self.assertEqual(self.orthant("report", "run").code, 0)
        verified = self.orthant("verify", "run.toml", "--json")
        self.assertEqual(verified.code, 0, verified)
        self.assertTrue(json.loads(verified.out)["ok"])
        planned = json.loads(self.orthant("plan", "run.toml", "--json").out)
        self.assertEqual(planned["ranks"], 2)


class ByHand(ProcessTest):
    def by_hand(self, *arguments_of_rank):
        variables = meeting(len(arguments_of_rank))
        running = [self.start([ORTHANT, "train", "run.toml", *arguments], env={"RANK": str(rank), **variables})
                   for rank, arguments in enumerate(arguments_of_rank)]
        return [process.result() for process in running]

    def test_variables_of_torchrun_set_by_hand(self):
        self.train_well()
        for result in self.by_hand(["job.dump_folder=hand"], ["job.dump_folder=hand"]):
            self.assertEqual(result.code, 0, result)
        self.assertEqual(self.losses(self.folder / "hand"), self.losses())

    def test_ranks_of_one_job_with_different_run_files(self):
        variables = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": str(os.getpid())}
        running = [self.start([ORTHANT, "train", "run.toml", *arguments],
                              env={"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank, **variables})
                   for rank, arguments in (("0", []), ("1", ["optimizer.lr=0.5"]))]
        results = [process.result() for process in running]
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        for part in ("different runs", "lr = 0.01", "lr = 0.5", "rank 1"):
            self.assertIn(part, messages[0])
        self.assertFalse((self.dump / "metrics.jsonl").exists())

    def test_a_rank_that_cannot_open_its_data_says_so(self):
        """Rank 0 fails while the other ranks wait for it, and a Watch already runs in each of them."""
        (self.folder / "empty.txt").write_text("")
        for ranks in (2, 3):
            results = self.by_hand(*[["data.validation=empty.txt"]] * ranks)
            self.assertEqual([one.code for one in results], [1] * ranks)
            messages = [message for one in results for message in one.errors()]
            self.assertEqual(len(messages), 1, results)
            self.assertIn("empty.txt", messages[0])

    def test_ranks_with_unreadable_run_file(self):
        results = self.by_hand(["training.seq_len=500"], ["training.seq_len=500"], ["training.seq_len=500"])
        self.assertEqual([result.code for result in results], [1, 1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("training.seq_len = 500 (command line)", messages[0])

    def test_mesh_for_other_number_of_ranks(self):
        mesh = ["parallelism.tensor_parallel_kind=2d", "parallelism.tensor_parallel_mesh=[2,2,1]"]
        results = self.by_hand(mesh, mesh, mesh)
        self.assertEqual([result.code for result in results], [1, 1, 1], results[0])
        for result in results:
            self.assertNotIn("store", result.err)
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("tensor_parallel_mesh = [2, 2, 1] (command line) must be at most the 3 ranks of the run", messages[0])

    def test_incomplete_variables_of_torchrun(self):
        self.assert_says(self.train(env={"RANK": "0"}), 1, "RANK is set", "WORLD_SIZE", "unset")
        self.assert_says(self.train(env={"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                         "MASTER_PORT": "1234"}), 1, "the rank is 2 and the world size 2")
        self.assert_says(self.train(env={"RANK": "0", "WORLD_SIZE": "two"}), 1, "WORLD_SIZE", "two")

    def test_unknown_host(self):
        variables = {**meeting(2), "MASTER_ADDR": "no-such-host.invalid"}
        result = self.train("run.timeout_s=4", env={"RANK": "1", **variables})
        place = f"no-such-host.invalid:{variables['MASTER_PORT']}"
        self.assert_says(result, 1, f"no store answered at {place} for 4 s (the name cannot be resolved: ", "MASTER_ADDR")
        self.assertIn(f"waiting for the store at {place}, for at most 4 s: the name cannot be resolved", result.err)

    def test_missing_rank(self):
        variables = meeting(2)
        alone = self.train("run.timeout_s=3", env={"RANK": "0", **variables})
        self.assert_says(alone, 1, "rank 0: rank 1 of 2 did not connect to the store", "within 3 s")
        hasty = self.train("run.timeout_s=0.25", env={"RANK": "0", **variables})
        self.assert_says(hasty, 1, "rank 0: rank 1 of 2 did not connect to the store", "within 0.25 s")
        self.assertIn("waiting for all 2 ranks to connect to the store", alone.err)
        refused = self.train("run.timeout_s=3", env={"RANK": "1", **variables})
        self.assert_says(refused, 1, f"127.0.0.1:{variables['MASTER_PORT']} for 3 s (Connection refused)")

    def test_ranks_do_not_wait_for_rank_with_unreadable_run_file(self):
        started = time.monotonic()
        results = self.by_hand([], ["training.seq_len=500"])
        self.assertEqual([result.code for result in results], [1, 1], results[0])
        messages = [line for result in results for line in result.errors()]
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("training.seq_len = 500", messages[0])
        self.assertLess(time.monotonic() - started, 20)  # much less than run.timeout_s

    def test_port_in_use(self):
        with socket.socket() as holder:
            holder.bind(("0.0.0.0", 0))
            holder.listen()
            port = str(holder.getsockname()[1])
            result = self.train(env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            self.assert_says(result, 1, port, "in use", "MASTER_PORT")


if __name__ == "__main__":
    main()
