"""Tests of metrics for Prometheus in real runs: the file has the last record, the server answers during the run on the
loopback only, and clients that stall or die, or a port in use, do not stop training."""
import socket
import urllib.error
import urllib.request

from listening_test import LOOPBACK, listening
from orthant_process import ProcessTest, main, meeting


def samples(text):
    """The values by name. Fails unless each sample follows its HELP and TYPE."""
    lines, found = text.splitlines(), {}
    for help_line, type_line, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = sample.split("{")[0].split()[0]
        assert help_line.startswith(f"# HELP {name} "), help_line
        assert type_line == f"# TYPE {name} " + ("counter" if name.endswith("_total") else "gauge"), type_line
        found[name] = float(sample.rsplit(" ", 1)[1])
    return found


class Metrics(ProcessTest):
    def setUp(self):
        super().setUp()
        self.port = meeting(1)["MASTER_PORT"]

    def assert_last_record(self, found):
        step = self.steps()[-1]
        validation = [record for record in self.records() if "validation_loss" in record][-1]
        for name, value in (("steps_total", step["step"]), ("loss", step["loss"]), ("tokens_total", step["tokens"]),
                            ("gradient_norm", step["grad_norm"]), ("learning_rate", step["lr"]),
                            ("step_seconds", step["step_seconds"]), ("peak_memory_bytes", step["peak_memory_bytes"]),
                            ("sent_bytes", step["communication_bytes"]), ("planned_steps", 10),
                            ("validation_loss", validation["validation_loss"]), ("validation_step", 10)):
            self.assertEqual(found["orthant_" + name], value, name)

    def test_file_has_the_last_record(self):
        self.train_well("metrics.enable_prometheus=true", "metrics.log_freq=4")
        text = (self.dump / "metrics.prom").read_text()
        self.assertIn('orthant_info{run="run",version="', text)
        self.assert_last_record(samples(text))
        self.train_well()  # a new run without the key moves the file away, so that no collector reads an old one
        self.assertFalse((self.dump / "metrics.prom").exists())
        self.assertTrue((self.dump / "earlier/1/metrics.prom").exists())

    def test_server_during_a_run(self):
        running = self.start_training(f"metrics.port={self.port}", "checkpoint.interval=0", "validation.freq=0")
        self.assertLessEqual(set(listening([running.ranks()[0]])), LOOPBACK)
        url = f"http://127.0.0.1:{self.port}/"
        silent = [socket.create_connection(("127.0.0.1", int(self.port))) for _ in range(8)]
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        silent[1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        silent.pop().close()
        for _ in range(3):
            before = samples(urllib.request.urlopen(url + "metrics", timeout=60).read().decode())["orthant_steps_total"]
            running.until(lambda: len(self.steps()) > before + 5, "progress with stalled clients")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url + "metrics.jsonl", timeout=60)
        self.assertEqual(refused.exception.code, 404)
        for client in silent:
            client.close()

    def test_port_in_use_is_a_warning(self):
        with socket.create_server(("127.0.0.1", int(self.port))):
            result = self.train_well(f"metrics.port={self.port}")
        self.assertIn(f"warning: metrics.port = {self.port}: Address already in use; the run goes on", result.err)
        self.assertEqual(len(self.steps()), 10)
        self.assertFalse((self.dump / "metrics.prom").exists())

    def test_illegal_port(self):
        self.assert_says(self.train("metrics.port=70000"), 2, "metrics.port = 70000", "0 to 65535")


if __name__ == "__main__":
    main()
