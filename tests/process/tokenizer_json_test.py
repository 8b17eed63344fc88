"""Tests runs on JSONL with a tokenizer.json: training, resuming, continuing the model, and generation."""
import json
import subprocess

from orthant_process import ProcessTest, main, text


def byte_characters():
    """GPT-2's characters for bytes, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte if byte in printable else next(other)) for byte in range(256)]


class TokenizerJson(ProcessTest):
    def setUp(self):
        super().setUp()
        vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
        merges = [["t", "h"], ["th", "e"], ["r", "o"], ["ro", "o"], ["roo", "m"]]
        for left, right in merges:
            vocabulary[left + right] = len(vocabulary)
        tokens = ["<|begin|>", "<|end|>"]
        self.tokenizer = {
            "added_tokens": [{"id": len(vocabulary) + i, "content": name, "special": True, "normalized": False}
                             for i, name in enumerate(tokens)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": {"type": "TemplateProcessing",
                               "single": [{"SpecialToken": {"id": "<|begin|>"}}, {"Sequence": {"id": "A"}}],
                               "special_tokens": {"<|begin|>": {"ids": [len(vocabulary)]}}},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
        self.write_tokenizer()
        lines = [json.dumps({"id": i, "body": paragraph}) for i, paragraph in enumerate(text().split("\n\n"))]
        (self.folder / "text.jsonl").write_text("\n".join(lines) + "\n")
        subprocess.run(["gzip", "-k", self.folder / "text.jsonl"], check=True)
        self.words = ("data.tokenizer=my tokenizer/tokenizer.json", "data.path=text.jsonl.gz", "data.format=jsonl",
                      "data.text_key=body")

    def write_tokenizer(self):
        folder = self.folder / "my tokenizer"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>",
                                                                       "model_max_length": int(1e30)}))

    def test_a_run_and_those_that_follow(self):
        whole = self.folder / "whole"
        self.train_well(*self.words, f"job.dump_folder={whole}")
        self.train_well(*self.words, "training.steps=5")
        self.train_well(*self.words, "--resume")
        self.assertEqual(self.weights(), self.weights(whole))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((self.latest() / name).read_bytes(), (self.folder / "my tokenizer" / name).read_bytes())
        # A run that continues the model takes its tokenizer, and begins with its loss.
        words = [word for word in self.words if "tokenizer" not in word]
        other = self.folder / "other"
        self.train_well(*words, f"model.from={self.latest()}", "training.seed_weights=false", "training.steps=1",
                        f"job.dump_folder={other}")
        self.assertIn(f'tokenizer = "{self.latest()}/tokenizer.json"  # default with model.from',
                      (other / "config.toml").read_text())
        self.assertLess(self.losses(other)[0][1], self.losses()[0][1] - 0.5)
        made = self.orthant("generate", self.dump, "--prompt", "The red", "--max-new-tokens", "5", "--top-k", "1")
        self.assertEqual(made.code, 0, made)
        self.assertTrue(made.out.startswith("The red"), made)
        self.assertIn("tokens/s", made.err)

    def test_changes_are_refused(self):
        self.train_well(*self.words, "training.steps=5")
        self.assert_says(self.train(*self.words, "--resume", "data.text_key=id"), 1, "text")
        self.tokenizer["model"]["merges"].pop()
        self.write_tokenizer()
        self.assert_says(self.train(*self.words, "--resume"), 1, "tokenizer")

    def test_text_that_is_not_there(self):
        self.assert_says(self.train(*self.words[:2]), 1, "text.jsonl.gz", 'requires data.format = "jsonl"')
        self.assert_says(self.train(*self.words[:3]), 1, 'text.jsonl.gz: line 1 has no key "text"', "data.text_key")
        self.assert_says(self.train(*self.words, "data.text_key=id"), 1, 'the value of "id" must be a text')
        self.assert_says(self.train(*self.words, "model.vocab_size=100"), 1, "model.vocab_size = 100", "263")


if __name__ == "__main__":
    main()
