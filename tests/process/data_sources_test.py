"""Tests runs on blends, named validation sets and conversations: training, resuming, and refusals."""
import json

from orthant_process import ProcessTest, main, text

TEMPLATE = """{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""


class DataSources(ProcessTest):
    def validations(self, dump=None):
        return [record for record in self.records(dump) if "validation_loss" in record]

    def test_a_blend_with_validation_sets(self):
        (self.folder / "code.txt").write_text("".join(f"int f{i}() {{ return {i}; }}\n\n" for i in range(300)))
        words = ("data.path=text.txt,code.txt", "data.weights=0.75,0.25",
                 "data.validation={code = 'code.txt', prose = 'text.txt'}", "training.max_norm=0",
                 "training.dtype=float64")
        whole = self.folder / "whole"
        done = self.train_well(*words, f"job.dump_folder={whole}")
        self.assertRegex(done.out, r"valid .* code \d\.\d+ +prose \d\.\d+")
        for record in self.validations(whole):
            self.assertEqual(list(record["sets"]), ["code", "prose"])
            low, high = sorted(one["validation_loss"] for one in record["sets"].values())
            self.assertTrue(low < record["validation_loss"] < high, record)
        # A stop in between, and another number of ranks, leave the order of samples as it is.
        self.train_well(*words, "training.steps=5", "--run.ranks=1")
        self.train_well(*words, "--resume")
        losses = zip(self.losses(whole), self.losses(), strict=True)
        self.assertTrue(all(abs(a[1] - b[1]) < 1e-10 * a[1] for a, b in losses))
        self.assert_says(self.train(*words, "--resume", "data.weights=0.5,0.5"), 1, "data.weights = [0.5, 0.5]",
                         "it was [0.75, 0.25]", "another order")
        self.assertIn("loss of prose", (whole / "report.html").read_text())

    def test_sets_of_a_blend_have_legal_names(self):
        (self.folder / "code.txt").write_text("".join(f"int f{i}() {{ return {i}; }}\n\n" for i in range(300)))
        self.train_well(f"data.path=text.txt,{self.folder}/c*.txt", "data.weights=0.75,0.25", "data.validation=0.1")
        text_set, code_set = list(self.validations()[0]["sets"])
        self.assertEqual(text_set, "text.txt")
        self.assertRegex(code_set, r"^[\w.-]+-c-\.txt$")

    def test_several_prefixes(self):
        for name in "ab":
            (self.folder / f"{name}.txt").write_text(text())
            self.assertEqual(self.orthant("tokenize", f"{name}.txt", "--output", name).code, 0)
        for command in ("plan", "train"):
            words = [command, "run.toml", "data.path=a,b"]
            self.assert_says(self.orthant(*words), 1, "data.path = [\"a\", \"b\"]", "the Megatron PREFIX a among 2 paths",
                             "data.weights")
        self.assert_says(self.train("data.path=text.txt", "data.validation=a,b"), 1, "the table [data.validation]")
        self.train_well("data.path=a,b", "data.weights=1,2", "data.validation={a = 'a', b = 'b'}")

    def test_conversations(self):
        lines = [json.dumps({"messages": [{"role": "user", "content": f"What is {i} + 1?"},
                                          {"role": "assistant", "content": f"It is {i + 1}."}]}) for i in range(80)]
        (self.folder / "chat.jsonl").write_text("\n".join(lines) + "\n")
        (self.folder / "chat.jinja").write_text(TEMPLATE)
        words = ("data.path=chat.jsonl", "data.format=chat", "data.chat_template=chat.jinja", "data.validation=0.1",
                 "data.mask_documents=true", "training.seq_len=128", "optimizer.lr=3e-2")
        done = self.train_well(*words)
        losses = [loss for _, loss in self.losses()]
        self.assertLess(losses[-1], losses[0] - 1, done)
        saved = next((self.dump / "checkpoints").glob("step-*")) / "chat_template.jinja"
        self.assertEqual(saved.read_text(), TEMPLATE)
        self.train_well(*words, "training.steps=12", "--resume")
        (self.folder / "chat.jinja").write_text(TEMPLATE.replace("</>", "."))
        self.assert_says(self.train(*words, "training.steps=14", "--resume"), 1, "data.chat_template = \"chat.jinja\"",
                         "differs from the data")
        (self.folder / "chat.jsonl").write_text(lines[0] + "\n" + '{"messages": [{"role": "user", "content": "x"}]}\n')
        self.assert_says(self.train(*words), 1, "chat.jsonl: line 2 has no message of the assistant", "remove the line")


if __name__ == "__main__":
    main()
