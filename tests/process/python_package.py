"""The Python package of the build, and helpers of its tests. A build without the package skips the tests; its file
`missing` says why."""
import json
import os
import sys

from orthant_process import BUILD, SOURCE, ProcessTest

PACKAGE = BUILD / "python/orthant"
MISSING = BUILD / "python/missing"  # why the build has no package
if MISSING.exists():
    print("skipped:", MISSING.read_text())
    sys.exit(0)
sys.path.insert(0, str(BUILD / "python"))
import orthant  # noqa: E402

__all__ = ["PACKAGE", "SOURCE", "MODEL", "PythonTest", "orthant"]

MODEL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 257}
HF_CONFIG = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
             "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


class PythonTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def plan_json(self, *arguments):
        result = self.orthant("plan", *arguments, "--json")
        self.assertEqual(result.code, 0, result)
        return json.loads(result.out)

    def write_hf(self, **changes):
        (self.folder / "config.json").write_text(json.dumps({**HF_CONFIG, **changes}))
        return self.folder / "config.json"
