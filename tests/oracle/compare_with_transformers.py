"""Compares our LLaMA with Hugging Face's: the logits, the loss and every gradient of random models must agree within
the rounding bounds below. Hugging Face's library then reads our checkpoints. Negative controls plant mistakes in a
model.

compare_with_transformers.py --build BUILD [--packages FOLDER]

Exits with 77 (skipped) if transformers cannot be imported. Packages in FOLDER take precedence, so that a second major
version of transformers can be tested.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from venv_python import use_the_tests_python

SKIPPED = 77
EPSILON = 2.0**-24  # float32, round to nearest
LOGITS_BOUND = 1e-5
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def import_or_skip(packages=None):
    global torch, transformers, load_file, save_file, over_there
    if packages and not pathlib.Path(packages).exists():
        print(f"skipped: there is no {packages}; `make test` installs this version of transformers there from PyPI")
        sys.exit(SKIPPED)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch
        import transformers
        from safetensors.torch import load_file, save_file
        from transformers import LlamaConfig, LlamaForCausalLM  # noqa: F401
    except ImportError as error:
        print(f"skipped: Hugging Face transformers cannot be imported ({error}); `make test` installs it from PyPI")
        sys.exit(SKIPPED)
    if packages:
        assert transformers.__file__.startswith(packages), transformers.__file__
    import over_there
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


CASES = {
    "grouped-query": dict(),
    "tied": dict(tie_word_embeddings=True, num_key_value_heads=4),
    "one key-value head, no rotation of the usual base": dict(num_key_value_heads=1, rope_theta=500.0),
    "llama3 rope": dict(
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=16)),
    "yarn": dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24)),
    "yarn with factors of its own": dict(
        rope_scaling=dict(rope_type="yarn", factor=6.0, original_max_position_embeddings=16, beta_fast=12.0,
                          beta_slow=0.5, mscale=0.8, mscale_all_dim=0.3)),
    "linear rope": dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
    "head_dim beside hidden_size": dict(head_dim=20, tie_word_embeddings=True),
    "sliding window, as Mistral": dict(sliding_window=24),
    "biases": dict(attention_bias=True, mlp_bias=True),
    "biases of attention alone": dict(attention_bias=True),
    "capped logits, as Gemma 2's": dict(final_logit_softcapping=2.0),
    "capped scores, as Gemma 2's": dict(attn_logit_softcapping=0.5),
    "biases of queries, keys and values, as Qwen2": dict(family="Qwen2"),
    "norms of heads, as Qwen3": dict(family="Qwen3", head_dim=20, attention_bias=True),
    "layer norm and GELU, as Starcoder2": dict(family="Starcoder2", use_bias=True, norm_epsilon=1e-5,
                                               hidden_act="gelu_pytorch_tanh", embedding_dropout=0.0,
                                               residual_dropout=0.0, attention_dropout=0.0),
    "joint matrices on disk, as Phi-3": dict(family="Phi3", pad_token_id=None),
    "Phi-3 with a window": dict(family="Phi3", pad_token_id=None, sliding_window=24),
    "learned positions, GPT-2": dict(family="GPT2"),
    "GPT-2 with a head of its own and the usual width of the MLP": dict(family="GPT2", tie_word_embeddings=False,
                                                                        n_inner=None),
}

# Names and ways of storing of a GPT-2 block, which are Orthant's Llama names elsewhere.
GPT2_MODULES = {"wte": "model.embed_tokens", "wpe": "model.embed_positions", "ln_f": "model.norm",
                "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj",
                "mlp.c_fc": "mlp.c_fc", "mlp.c_proj": "mlp.c_proj", "lm_head": "lm_head"}


def cap_scores(config):
    """Selects the attention of Gemma2ForCausalLM. Other classes ignore the key attn_logit_softcapping."""
    from transformers.masking_utils import eager_mask
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    def attend(module, *tensors, **options):
        options.pop("softcap", None)
        return eager_attention_forward(module, *tensors, softcap=module.config.attn_logit_softcapping, **options)

    transformers.AttentionInterface.register("capped_scores", attend)
    transformers.AttentionMaskInterface.register("capped_scores", eager_mask)
    config._attn_implementation = "capped_scores"


def hugging_face_model(options, seed):
    torch.manual_seed(seed)
    sizes = dict(vocab_size=131, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=96, rms_norm_eps=1e-5, initializer_range=0.1,
                 tie_word_embeddings=False, rope_theta=10000.0)
    sizes.update(options)
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = sizes.pop("rope_scaling", dict(rope_type="default"))
        sizes["rope_parameters"] = dict(rope, rope_theta=sizes.pop("rope_theta"))
    family = sizes.pop("family", "Mistral" if "sliding_window" in sizes else "Llama")
    class_name = family + "ForCausalLM"
    if family == "GPT2":
        # Smaller weights than 0.2 leave all keys near their bias, and the gradients of queries are then mostly roundings.
        sizes = dict(vocab_size=131, n_embd=48, n_layer=3, n_head=4, n_inner=88, n_positions=96, initializer_range=0.2,
                     **{key: options[key] for key in ("tie_word_embeddings",) if key in options})
        sizes.update({key: value for key, value in options.items() if key.startswith("n_")})
        class_name = "GPT2LMHeadModel"
    config = getattr(transformers, family + "Config")(**sizes)
    if "attn_logit_softcapping" in sizes:
        cap_scores(config)
    model = getattr(transformers, class_name)(config)
    # Norm weights of 1 and biases of 0, the initial values, would not show where they are used.
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "layernorm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        if name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return model.eval()


def save(model, directory):
    """Saves the model. Orthant reads caps only from its own type, because the class in the file ignores them."""
    model.save_pretrained(directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        config.update(model_type="orthant", positions="rotary", norm="rms_norm", mlp="swiglu", qk_norm=False,
                      qkv_bias=False)
        path.write_text(json.dumps(config))


def random_batch(config, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab_size, (3, 80), generator=generator)
    labels = torch.roll(tokens, -1, dims=1)  # our labels are shifted already; Hugging Face's own loss would shift them
    labels[:, -1] = -100
    labels[1, 30:41] = -100
    return tokens, labels


def capped(logits, config):
    """Caps the logits as Gemma2ForCausalLM does. LlamaForCausalLM ignores the key final_logit_softcapping."""
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def theirs(model, tokens, labels):
    model.zero_grad()
    logits = capped(model(tokens).logits, model.config)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    out = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        for own, gradient in in_our_names(name, parameter.grad, model.config).items():
            out["gradient." + own] = gradient
    return out


def in_our_names(name, tensor, config):
    """The parameters of ours that a tensor of GPT-2 or Phi-3 stands for; other families have our names."""
    if name.endswith("qkv_proj.weight"):
        width = config.hidden_size // config.num_attention_heads
        rows = [heads * width for heads in [config.num_attention_heads] + 2 * [config.num_key_value_heads]]
        return {name.replace("qkv", part): own for part, own in zip("qkv", tensor.split(rows))}
    if name.endswith("gate_up_proj.weight"):
        return {name.replace("gate_up", part): own for part, own in zip(("gate", "up"), tensor.chunk(2))}
    if not name.startswith("transformer."):
        return {name: tensor}
    module, kind = name.removeprefix("transformer.").rsplit(".", 1)
    prefix = ""
    if module.startswith("h."):
        _, layer, module = module.split(".", 2)
        prefix = f"model.layers.{layer}."
        tensor = tensor.t().contiguous() if tensor.dim() == 2 else tensor
    if module == "attn.c_attn":
        return {f"{prefix}self_attn.{part}_proj.{kind}": rows.contiguous() for part, rows in zip("qkv", tensor.chunk(3))}
    return {f"{prefix}{GPT2_MODULES[module]}.{kind}": tensor}


def ours(build, directory, tokens, labels, primitives, scratch, dtype="float32"):
    save_file({"tokens": tokens, "labels": labels}, scratch / "batch.safetensors")
    result = scratch / "ours.safetensors"
    subprocess.run([build / "tests/llama_gradients", directory, scratch / "batch.safetensors", result, primitives, dtype],
                   check=True, timeout=120)
    return load_file(result)


def gradient_bound(config):
    """Bound of |ours - theirs| / |theirs|, the Frobenius norms of one gradient, in float32.

    From the use of a weight to the loss and back there are at most 2 (9 L + 3) operators in a row, for L layers. A
    block has a norm, product, rotation, attention with two products and softmax, product, norm, product, gate, product.
    Each operator sums at most n numbers, where n is the largest size of the model or the number of tokens. Rounding
    errors are independent and add up like a random walk: sqrt(operators) sqrt(n) epsilon. Both sides make such errors,
    so the bound is twice that.
    """
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    longest = max(config.vocab_size, inner, config.hidden_size, 3 * 80)
    return 2 * math.sqrt(2 * (9 * config.num_hidden_layers + 3)) * math.sqrt(longest) * EPSILON


def differences(mine, other, config):
    """Returns a text for each tensor that exceeds its bound, and the largest relative error of the loss and the
    gradients."""
    problems, worst = [], 0.0
    if set(mine) != set(other):
        return [f"other tensors: {sorted(set(mine) ^ set(other))}"], math.inf
    logits = (mine["logits"] - other["logits"]).abs().max().item()
    if not logits <= LOGITS_BOUND:
        problems.append(f"logits differ by {logits:.3g}, bound {LOGITS_BOUND}")
    for name in sorted(other):
        if name == "logits":
            continue
        a, b = mine[name].double(), other[name].double()
        scale = b.norm()
        # Without rotary positions, a key's bias adds the same to all scores of a query. So its gradient is 0, and both
        # sides compute roundings; they are compared with a column of the matrix's gradient, as `verify` does.
        if config.model_type == "gpt2" and name.endswith("k_proj.bias"):
            matrix = other[name.removesuffix("bias") + "weight"].double()
            scale = matrix.norm() / math.sqrt(matrix.shape[1])
        error = ((a - b).norm() / scale).item()
        worst = max(worst, error)
        if not error <= gradient_bound(config):
            problems.append(f"{name} differs by {error:.3g} of its norm, bound {gradient_bound(config):.3g}")
    return problems, worst


def compare_random_models(build, scratch):
    for number, (name, options) in enumerate(CASES.items()):
        model = hugging_face_model(options, seed=number)
        directory = scratch / f"model-{number}"
        save(model, directory)
        tokens, labels = random_batch(model.config, seed=100 + number)
        want = theirs(model, tokens, labels)
        for primitives in ("plain", "fused"):
            problems, worst = differences(ours(build, directory, tokens, labels, primitives, scratch), want, model.config)
            print(f"{name}, {primitives}: worst relative error {worst:.2g}, bound {gradient_bound(model.config):.2g}")
            assert not problems, f"{name}, {primitives}: " + "; ".join(problems)


def compare_older_gpt2_files(build, scratch):
    """Files of the hub name tensors without `transformer.`, and store masks beside the weights."""
    model = hugging_face_model(dict(family="GPT2"), seed=60)
    directory = scratch / "older"
    model.save_pretrained(directory)
    tensors = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(directory / "model.safetensors").items()}
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 96, 96).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokens, labels = random_batch(model.config, seed=61)
    problems, _ = differences(ours(build, directory, tokens, labels, "fused", scratch), theirs(model, tokens, labels),
                              model.config)
    assert not problems, "older files of GPT-2: " + "; ".join(problems)


def converted_models_over_there(build, scratch):
    """`orthant convert` keeps every number of shards in bfloat16, and transformers loads the result without a report."""
    for number, options in enumerate((dict(tie_word_embeddings=True), dict(family="GPT2"),
                                      dict(family="Phi3", pad_token_id=None))):
        model = hugging_face_model(options, seed=70 + number).to(torch.bfloat16)
        source, target = scratch / f"source-{number}", scratch / f"target-{number}"
        model.save_pretrained(source, max_shard_size="60KB")
        assert (source / "model.safetensors.index.json").exists()
        subprocess.run([build / "orthant", "convert", source, target, "--dtype", "float32", "--max-shard-gb", "0.0001"],
                       check=True, timeout=120, stdout=subprocess.DEVNULL)
        back, report = type(model).from_pretrained(target, output_loading_info=True)
        assert not any(report.values()), report
        assert back.dtype == torch.float32 and back.config.torch_dtype == torch.float32
        own = back.state_dict()
        assert all(torch.equal(tensor.float(), own[name]) for name, tensor in model.state_dict().items())


def planted(directory, scratch, change):
    """Returns a copy of the directory in which `change` has made one mistake."""
    copy = scratch / "planted"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    tensors = load_file(copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def swap_queries_and_keys(tensors, config):
    q, k = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
    tensors[q], tensors[k] = tensors[k].clone(), tensors[q].clone()


def swap_gate_and_up_biases(tensors, config):
    gate, up = "model.layers.1.mlp.gate_proj.bias", "model.layers.1.mlp.up_proj.bias"
    tensors[gate], tensors[up] = tensors[up].clone(), tensors[gate].clone()


def swap_queries_and_keys_of_gpt2(tensors, config):
    joint = tensors["transformer.h.1.attn.c_attn.weight"]  # [in, out]: the columns of queries, keys and values
    width = joint.shape[0]
    joint[:, :2 * width] = torch.cat((joint[:, width:2 * width], joint[:, :width]), dim=1)


def exchange_input_and_output_of_gpt2(tensors, config):
    square = "transformer.h.1.attn.c_proj.weight"
    tensors[square] = tensors[square].t().contiguous()


def swap_gate_and_up_of_phi3(tensors, config):
    joint = tensors["model.layers.1.mlp.gate_up_proj.weight"]
    tensors["model.layers.1.mlp.gate_up_proj.weight"] = torch.cat(joint.chunk(2)[::-1])


def shift_positions_of_gpt2(tensors, config):
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].roll(1, 0)


def other_rope_base(tensors, config):
    for place in (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        if "rope_theta" in place:
            place["rope_theta"] = 9000.0


def no_cap(tensors, config):
    del config["final_logit_softcapping"]


def no_cap_of_scores(tensors, config):
    del config["attn_logit_softcapping"]


def interleaved_rotation(tensors, config):
    """Permutes the query weight for rotary pairs (0, 1), (2, 3), ... instead of the two halves, the other convention in
    use."""
    q = "model.layers.0.self_attn.q_proj.weight"
    head = tensors[q].shape[0] // config["num_attention_heads"]
    tensors[q] = tensors[q].view(-1, head // 2, 2, tensors[q].shape[1]).transpose(1, 2).reshape(tensors[q].shape).clone()


def fail_when_planted(build, scratch):
    """The negative controls: each planted mistake must exceed the bound of the logits and of a gradient."""
    llama = dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True, final_logit_softcapping=2.0)
    of_llama = (swap_queries_and_keys, other_rope_base, interleaved_rotation, swap_gate_and_up_biases, no_cap)
    of_gpt2 = (swap_queries_and_keys_of_gpt2, exchange_input_and_output_of_gpt2, shift_positions_of_gpt2)
    phi3 = dict(family="Phi3", pad_token_id=None)
    gemma2 = dict(attn_logit_softcapping=0.5)
    for options, changes in ((llama, of_llama), (dict(family="GPT2"), of_gpt2), (phi3, (swap_gate_and_up_of_phi3,)),
                             (gemma2, (no_cap_of_scores,))):
        model = hugging_face_model(options, seed=50)
        directory = scratch / "control"
        shutil.rmtree(directory, ignore_errors=True)
        save(model, directory)
        tokens, labels = random_batch(model.config, seed=51)
        want = theirs(model, tokens, labels)
        for change in changes:
            wrong = planted(directory, scratch, change)
            problems, worst = differences(ours(build, wrong, tokens, labels, "fused", scratch), want, model.config)
            seen = {problem.split()[0].split(".")[0] for problem in problems}
            assert {"logits", "gradient"} <= seen, f"{change.__name__} was not noticed: {problems}"
            print(f"negative control {change.__name__}: seen, worst relative error {worst:.2g}")


def our_checkpoint_over_there(build, scratch):
    for name, dtype, extra in (
            ("Llama", "float32", []),
            ("Llama", "float64", ["--model.tie_word_embeddings", "model.rope_scaling_type=llama3",
                                  "model.rope_scaling_original_max_position_embeddings=32", "model.head_dim=16",
                                  "--model.attention_bias", "--model.mlp_bias"]),
            ("Qwen2", "float32", ["--model.qkv_bias"]),
            ("Qwen3", "float32", ["--model.qk_norm"]),
            ("Starcoder2", "float32", ["model.norm=layer_norm", "model.mlp=gelu_tanh", "--model.attention_bias",
                                       "--model.mlp_bias"]),
            ("Phi3", "float32", ["model.architecture=phi3"]),
            ("GPT2", "float32", ["model.architecture=gpt2", "model.num_key_value_heads=4",
                                 "model.num_attention_heads=4"])):
        folder = over_there.train_a_little(build, scratch, f"{name}-{dtype}", [f"training.dtype={dtype}", *extra])
        directory = folder / "checkpoints/latest"
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        assert type(model).__name__ == ("GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
        tokens, labels = random_batch(model.config, seed=7)
        problems, worst = differences(ours(build, directory, tokens, labels, "fused", scratch),
                                      theirs(model, tokens, labels), model.config)
        assert not problems, f"our {name} in {dtype} there: " + "; ".join(problems)
        over_there.same_text(build, folder, model)
        over_there.same_tokens(directory)
        print(f"our {name} in {dtype} there: worst relative error {worst:.2g}, the same text and tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--packages")
    arguments = parser.parse_args()
    use_the_tests_python()
    if arguments.packages:
        sys.path.insert(0, arguments.packages)  # before the packages of .venv
    import_or_skip(arguments.packages)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory(prefix="orthant-oracle-") as folder:
        scratch = pathlib.Path(folder)
        compare_random_models(arguments.build, scratch)
        compare_older_gpt2_files(arguments.build, scratch)
        converted_models_over_there(arguments.build, scratch)
        fail_when_planted(arguments.build, scratch)
        our_checkpoint_over_there(arguments.build, scratch)
        over_there.our_trained_tokenizer(arguments.build, scratch)


if __name__ == "__main__":
    main()
