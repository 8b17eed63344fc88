// The table of keys: legal values, units and help texts.
#include "config/table.h"

#include <algorithm>

#include "base/text.h"
#include "config/hf_family.h"
#include "config/legal.h"
#include "model/recompute_plan.h"
#include "parallel/data/zero_plan.h"

namespace orthant {
namespace {

#define KEY(section, name, ...)                                                                             \
  Key {                                                                                                     \
#section, #name, [](Config & config) -> Field { return &config.section.name; }, {}, false, __VA_ARGS__ \
  }
// A key of the model: its spelling in config.json, and whether a resumed run must keep it.
#define MODEL(name, hugging_face, resume, ...)                                                                 \
  Key {                                                                                                        \
"model", #name, [](Config & config) -> Field { return &config.model.name; }, hugging_face, resume, __VA_ARGS__ \
  }
constexpr bool kMustMatch = true, kMayChange = false;
constexpr HuggingFaceKey json(std::string_view spelling) { return {.spelling = spelling}; }
constexpr HuggingFaceKey json_if_set(std::string_view spelling) { return {.spelling = spelling, .only_if_set = true}; }
constexpr HuggingFaceKey family() { return {.by_family = true}; }
constexpr HuggingFaceKey not_in_json() { return {}; }

// clang-format off
const Key kTable[] = {
  KEY(job, dump_folder, path(), "", "folder of everything that the run writes; NAME is the name of the run file",
      "folder of everything the run writes", "\"runs/NAME\""),
  KEY(job, description, any(), "", "free text, kept with the run"),

  KEY(run, ranks, between(1, 65536), "", "local ranks, when no launcher (torchrun, mpirun, srun) started the program",
      "local ranks, without a launcher"),
  KEY(run, device, one_of({"cpu", "cuda"}), "", "device of all tensors", "cpu or cuda"),
  KEY(run, transport, one_of({"auto", "ucx", "gloo", "nccl"}), "",
      "transport of messages between ranks; on GPUs, ucx and gloo copy tensors through host memory, others use NCCL"),
  KEY(run, threads_per_rank, between(0, 1024), "", "threads of a rank; 0 = cores / ranks, at least 1"),
  KEY(run, memory_gib_per_rank, at_least(0), "GiB",
      "limit on the planned tensors of each rank, also for tensor_parallel_kind = \"auto\"; 0 = no limit"),
  KEY(run, hardware, path(), "",
      "profile or hardware file of the machine whose step times orthant plan, layout = \"auto\" and "
      "tensor_parallel_kind = \"auto\" compute; empty = h100-8x for device = \"cuda\", none for \"cpu\" (this-cpu for "
      "layout = \"auto\"); mfu on a GPU is relative to its peak"),
  KEY(run, timeout_s, between(0.1, 1e6), "s", "longest wait for another rank before the run stops"),

  KEY(model, from, path(), "",
      "a directory with config.json: the model's shape, and its weights if training.seed_weights = false"),
  MODEL(architecture, family(), kMayChange, one_of(family_names()), "",
      "family of models in whose form files are written, if it has such blocks; if set, the keys of blocks, key heads "
      "and tied embeddings that are not set have the family's values"),
  MODEL(objective, json_if_set("is_causal"), kMustMatch,
      one_of({"causal", "masked"}), "", "predict the next token, or masked ones"),
  KEY(model, masked_share, above_to(0, 1), "",
      "fraction of the tokens that objective = \"masked\" hides or replaces, and predicts"),
  MODEL(hidden_size, json("hidden_size"), kMustMatch,
      between(1, 1048576), "", "width of the residual stream", "width of the residual stream"),
  MODEL(intermediate_size, json("intermediate_size"), kMustMatch,
      between(1, 4194304), "", "width inside the feed-forward block"),
  MODEL(num_hidden_layers, json("num_hidden_layers"), kMustMatch,
      between(1, 10000), "", "number of transformer blocks", "number of transformer blocks"),
  MODEL(num_attention_heads, json("num_attention_heads"), kMustMatch,
      between(1, 65536), "", "number of query heads"),
  MODEL(num_key_value_heads, json("num_key_value_heads"), kMustMatch,
      between(1, 65536), "",
      "number of key and value heads; fewer than query heads is grouped-query attention"),
  MODEL(head_dim, json("head_dim"), kMustMatch,
      between(0, 65536), "", "width of a head; 0 = hidden_size / num_attention_heads"),
  MODEL(vocab_size, json("vocab_size"), kMustMatch,
      between(0, 268435456), "tokens", "rows of the embedding; 0 = the tokenizer's"),
  MODEL(max_position_embeddings, json("max_position_embeddings"), kMayChange,
      between(1, 134217728), "tokens", "longest sequence the model accepts"),
  MODEL(norm, family(), kMustMatch,
      one_of({"rms_norm", "layer_norm"}), "",
      "norms of the residual stream; layer_norm subtracts the mean and has biases"),
  MODEL(rms_norm_eps, json("rms_norm_eps"), kMustMatch,
      above(0), "", "epsilon that the norms add to the mean square, and layer norms to the variance"),
  MODEL(qk_norm, family(), kMustMatch,
      any(), "", "RMS norms of each query head and each key head before rotary positions, as Qwen3's"),
  MODEL(mlp, family(), kMustMatch,
      one_of({"swiglu", "gelu", "gelu_tanh"}), "",
      "swiglu: gated, with three matrices; gelu, gelu_tanh: two matrices and GELU, exact or approximated by a tanh"),
  MODEL(positions, family(), kMustMatch,
      one_of({"rotary", "learned"}), "",
      "rotary: queries and keys are turned by their positions; learned: a vector of each position is added to the "
      "embedding, as in GPT-2"),
  MODEL(rope_theta, json("rope_theta"), kMustMatch,
      above(0), "", "base of the rotary frequencies"),
  MODEL(rope_scaling_type, json("rope_scaling.rope_type"), kMustMatch,
      one_of({"none", "llama3", "linear", "yarn"}), "",
      "method that scales the rotary frequencies for longer contexts"),
  MODEL(rope_scaling_factor, json("rope_scaling.factor"), kMustMatch,
      at_least(1), "", "factor by which rotary wavelengths grow (linear, llama3, yarn)"),
  MODEL(rope_scaling_low_freq_factor, json("rope_scaling.low_freq_factor"), kMustMatch,
      above(0), "", "wavelengths above the original context divided by this grow by the full factor (llama3)"),
  MODEL(rope_scaling_high_freq_factor, json("rope_scaling.high_freq_factor"), kMustMatch,
      above(0), "", "wavelengths below the original context divided by this do not change (llama3)"),
  MODEL(rope_scaling_original_max_position_embeddings, json("rope_scaling.original_max_position_embeddings"),
      kMustMatch, at_least(1), "tokens", "original context length (llama3, yarn)"),
  MODEL(rope_scaling_beta_fast, json("rope_scaling.beta_fast"), kMustMatch,
      above(0), "", "frequencies that turn more often in the original context do not change (yarn)"),
  MODEL(rope_scaling_beta_slow, json("rope_scaling.beta_slow"), kMustMatch,
      above(0), "", "frequencies that turn less often in the original context change by the full factor (yarn)"),
  MODEL(rope_scaling_attention_factor, json("rope_scaling.attention_factor"), kMustMatch,
      at_least(0), "", "factor of rotated queries and keys (yarn); 0 = 0.1 ln(rope_scaling_factor) + 1"),
  MODEL(tie_word_embeddings, json("tie_word_embeddings"), kMustMatch,
      any(), "", "the output layer uses the embedding's weights"),
  MODEL(attention_bias, json("attention_bias"), kMustMatch,
      any(), "", "biases of the query, key, value and output projections, as Llama's"),
  MODEL(qkv_bias, family(), kMustMatch,
      any(), "", "biases of the query, key and value projections only, as Qwen2's"),
  MODEL(mlp_bias, json("mlp_bias"), kMustMatch,
      any(), "", "biases of the projections of the MLP"),
  MODEL(attn_logit_softcapping, json_if_set("attn_logit_softcapping"), kMustMatch,
      at_least(0), "",
      "cap c: scores s of attention become c tanh(s / c), as in Gemma 2; 0 = no cap"),
  MODEL(final_logit_softcapping, json_if_set("final_logit_softcapping"), kMustMatch,
      at_least(0), "",
      "cap c: logits y become c tanh(y / c), as in Gemma 2; 0 = no cap"),
  MODEL(initializer_range, json("initializer_range"), kMayChange,
      above(0), "", "standard deviation of the initial weights"),
  MODEL(dropout, not_in_json(), kMayChange,
      from_to_below(0, 1), "",
      "fraction of the embedding and of each block's outputs that training sets to zero; none of the attention "
      "probabilities"),
  MODEL(sliding_window, json_if_set("sliding_window"), kMustMatch,
      between(0, 134217728), "tokens", "number of tokens a token attends to, itself included; 0 = unlimited"),
  MODEL(linformer_length, json_if_set("linformer_length"), kMustMatch,
      between(0, 1048576), "tokens",
      "Linformer: number of learned summaries of keys and values that a token attends to; 0 = attention to all tokens"),

  KEY(data, path, path(), "",
      "text files and globs, or one Megatron PREFIX (in a blend, several); relative to the working directory",
      "text files and globs ('*.txt', quoted)"),
  KEY(data, weights, above(0), "",
      "of a blend: a weight for each entry of path; each entry is then a dataset of its own"),
  KEY(data, format, one_of({"text", "jsonl", "chat", "megatron"}), "",
      "text; JSON objects (JSONL) with a text each, or with a conversation each; or a Megatron PREFIX, which \"text\" "
      "accepts too"),
  KEY(data, text_key, any(), "", "with format = \"jsonl\", the key of the text of a document"),
  KEY(data, chat_template, path(), "",
      "with format = \"chat\", the Jinja file that writes conversations as text; empty = the one of the tokenizer's "
      "folder"),
  KEY(data, validation, fraction_or_paths(), "",
      "data held out for validation: a fraction of the documents, a list of files, or a table of lists with names"),
  KEY(data, tokenizer, one_of_or({"byte"}, is_tokenizer, {"FILE.json", "FILE.model", "train:N"}), "",
      "bytes, a tokenizer.json, a SentencePiece model, or one trained here", "byte, FILE.json, .model or train:N"),
  KEY(data, mask_documents, any(), "",
      "true: attention and positions do not cross documents; false: a sample is one text, or one conversation"),
  KEY(data, long_documents, one_of({"refuse", "cut"}), "",
      "with mask_documents or format = \"chat\", documents longer than training.seq_len are an error, or are cut"),

  KEY(training, steps, at_least(1), "", "optimizer steps of the whole run", "optimizer steps of the whole run"),
  KEY(training, seq_len, between(1, 134217728), "tokens", "length of a training sequence",
      "tokens of a training sequence"),
  KEY(training, global_batch_size, between(1, 16777216), "sequences", "sequences per optimizer step, over all ranks",
      "sequences per step, over all ranks"),
  KEY(training, local_batch_size, between(1, 16777216), "sequences",
      "largest microbatch; if it does not divide a rank's shard of the batch, microbatches differ by one sequence"),
  KEY(training, dtype, one_of({"float32", "bfloat16", "float64"}), "",
      "dtype of the computation; bfloat16 keeps float32 master weights and gradients", "float32, bfloat16 or float64"),
  KEY(training, max_norm, at_least(0), "",
      "largest global norm of the gradients, which are clipped to it; 0 = no clipping"),
  KEY(training, clip_by, one_of({"norm", "previous_norm"}), "",
      "clip by the gradient norm of the same step, or of the step before it, which is known before backward; the first "
      "step is then not clipped"),
  KEY(training, on_nonfinite, one_of({"stop", "skip"}), "",
      "a step whose loss or gradient norm is not finite ends the run, or is skipped: its update is left out"),
  KEY(training, max_skipped_steps, at_least(1), "steps",
      "with on_nonfinite = \"skip\", the most consecutive steps that are skipped; the next such step ends the run"),
  KEY(training, skip_above_norm, at_least(0), "",
      "with on_nonfinite = \"skip\", a step with a larger gradient norm, before clipping, is skipped too; 0 = none"),
  KEY(training, label_smoothing, between(0, 1), "",
      "fraction of each label that training spreads evenly over the vocabulary, as cross_entropy of PyTorch does"),
  KEY(training, z_loss, at_least(0), "",
      "weight of the squared log-sum-exp of the logits in the training loss of a token; 0 = none"),
  KEY(training, seed, at_least(0), "", "random seed for initial weights, data order and dropout"),
  KEY(training, seed_weights, any(), "",
      "true: draw initial weights from the seed; false: read the weights of model.from"),

  KEY(activation_checkpoint, mode, one_of({"none", "selective", "full"}), "",
      "full: keep only the input of each block, and recompute the rest in backward; selective: recompute "
      "the parts in operations"),
  KEY(activation_checkpoint, operations, one_of({std::begin(kRecomputedParts), std::end(kRecomputedParts)}), "",
      "with mode = \"selective\", the operations of a block that backward recomputes; swiglu: only the activation of "
      "the MLP, also GELU"),
  KEY(activation_checkpoint, layers, between(1, 10000), "blocks",
      "n: every n-th block recomputes (blocks n, 2 n, ..., counted from 1), and the others keep all activations"),
  KEY(activation_checkpoint, offload, any(), "",
      "keep saved activations in host memory, on the device those of two blocks; only planned: device = \"cuda\""),

  KEY(optimizer, name, one_of(optimizer_names()), "",
      "update rule, as in torch.optim; muon updates the projections of attention and MLP, scaled by "
      "\"match_rms_adamw\", and all other parameters by AdamW"),
  KEY(optimizer, lr, above(0), "", "highest learning rate", "highest learning rate"),
  KEY(optimizer, beta1, from_to_below(0, 1), "", "decay of the first moment (adamw, muon)"),
  KEY(optimizer, beta2, from_to_below(0, 1), "", "decay of the second moment (adamw, muon)"),
  KEY(optimizer, eps, above(0), "", "added to the root of the second moment (adamw, muon)"),
  KEY(optimizer, momentum, from_to_below(0, 1), "", "decay of the momentum buffer (sgd, muon); 0 = no buffer for sgd"),
  KEY(optimizer, weight_decay, at_least(0), "",
      "decoupled with adamw and muon; added to the gradient with sgd"),
  KEY(optimizer, weight_decay_on, one_of({"matrices", "all"}), "",
      "parameters that decay: matrices, without norm gains and biases; or all parameters"),
  KEY(optimizer, in_backward, any(), "",
      "update the parameters of a block as soon as backward has their gradients, and frees these; requires one "
      "microbatch in a step, one pipeline rank, and max_norm = 0 or clip_by = \"previous_norm\""),
  KEY(optimizer, offload, any(), "",
      "keep the moments of the optimizer in host memory, master weights on the device; an update holds those of two "
      "parameters on the device; only planned: device = \"cuda\""),

  KEY(lr_scheduler, decay_type, one_of({"cosine", "linear", "sqrt", "wsd", "constant"}), "",
      "shape of the decay after warm-up"),
  KEY(lr_scheduler, warmup_steps, at_least(0), "steps",
      "length of the linear warm-up; at most training.steps, to which fewer steps on the command line shorten it"),
  KEY(lr_scheduler, decay_ratio, between(0, 1), "",
      "fraction of the steps in which the learning rate decays, at the end of the run"),
  KEY(lr_scheduler, min_lr_factor, between(0, 1), "", "final learning rate divided by the highest"),

  KEY(validation, freq, at_least(0), "steps", "steps between validations; 0 = never"),
  KEY(validation, steps, at_least(1), "batches", "global batches per validation"),

  KEY(metrics, log_freq, at_least(1), "steps", "steps between progress lines"),
  KEY(metrics, enable_tensorboard, any(), "", "write event files to DUMP/tb"),
  KEY(metrics, enable_prometheus, any(), "", "write the newest metrics to DUMP/metrics.prom, as text for Prometheus"),
  KEY(metrics, port, between(0, 65535), "",
      "port on which rank 0 serves the same text, at http://127.0.0.1:PORT/metrics; 0 = no server"),
  KEY(metrics, sample_tokens, at_least(0), "tokens", "most tokens of text that train generates at the end; 0 = none"),

  KEY(checkpoint, interval, at_least(0), "steps", "steps between checkpoints; 0 = only at the end",
      "steps between checkpoints"),
  KEY(checkpoint, async_mode, one_of({"disabled", "async"}), "",
      "async: each rank copies its files' tensors to host memory, and training goes on while a thread writes them"),
  KEY(checkpoint, keep_latest_k, between(0, 1000000), "", "number of checkpoints kept; 0 = all"),

  KEY(parallelism, layout, one_of({"given", "auto"}), "",
      "given: as the keys below; auto: the fastest that fits, which the start searches for; keys that are set stay"),
  KEY(parallelism, data_parallel_degree, degree_or_rest(), "ranks",
      "replicas of the model, each with its shard of the batch, all copies of sharded states included; -1 = the "
      "remaining ranks",
      "replicas of the model; -1 = the rest"),
  KEY(parallelism, zero_stage, between(0, 3), "",
      "state sharded over the ranks that sum a parameter's gradient: 1 optimizer state, 2 also gradients, 3 also "
      "weights",
      "ZeRO stage, 0 to 3; 0 shards nothing"),
  KEY(parallelism, zero_reshard, one_of({std::begin(kReshardNames), std::end(kReshardNames)}), "",
      "when zero_stage 3 frees gathered weights. step: after their last use in the step, so that all are held at the "
      "peak; never: also after a backward, if no microbatch of the stage is between its forward and its backward; "
      "microbatch: after every forward and backward, as FSDP2 by default; holds the least memory"),
  KEY(parallelism, data_parallel_shard_degree, at_least(0), "ranks",
      "data ranks that share one copy of sharded states (HSDP); 0 = the data ranks / data_parallel_replicate_degree"),
  KEY(parallelism, data_parallel_replicate_degree, at_least(0), "ranks",
      "copies of sharded states among the data ranks (HSDP); 0 = the data ranks / data_parallel_shard_degree, or 1"),
  KEY(parallelism, bucket_mib, above(0), "MiB", "size of the buckets in which gradients are reduced"),
  KEY(parallelism, tensor_parallel_kind, one_of({"1d", "2d", "2.5d", "auto"}), "",
      "1d Megatron, 2d Optimus (SUMMA), 2.5d Tesseract; auto: the fastest mesh, or the one that sends least"),
  KEY(parallelism, tensor_parallel_degree, degree_or_rest(), "ranks",
      "ranks over which each matrix is sharded (kinds 1d and auto)",
      "ranks that hold parts of each matrix"),
  KEY(parallelism, tensor_parallel_mesh, at_least(1), "ranks", "rows, columns, depth (kinds 2d and 2.5d)"),
  KEY(parallelism, tensor_parallel_sequence, any(), "", "Megatron's sequence parallelism between matrices (kind 1d)"),
  KEY(parallelism, tensor_parallel_product, one_of({"stationary", "summa"}), "",
      "stationary: the largest operand stays and the others move once; summa: the papers' panels (2d, 2.5d)"),
  KEY(parallelism, context_parallel_ulysses, degree_or_rest(), "ranks",
      "ranks that exchange sequence shards for head shards in attention"),
  KEY(parallelism, context_parallel_ring, degree_or_rest(), "ranks", "ranks that pass keys and values around a ring"),
  KEY(parallelism, context_parallel_attention, one_of({"ring_attention", "ring_self_attention", "linformer"}), "",
      "attention algorithm of the ring"),
  KEY(parallelism, context_parallel_placement, one_of({"contiguous", "zigzag", "stripe"}), "",
      "positions of a sequence that a rank of the ring holds"),
  KEY(parallelism, context_parallel_window, at_least(0), "ranks",
      "double ring: ranks of an inner ring; other blocks travel between the inner rings; 0 = one ring"),
  KEY(parallelism, context_parallel_reduction, one_of({"reduce_scatter", "all_reduce"}), "",
      "collective that sums the key and value gradients of ring_self_attention; all_reduce is that of the paper"),
  KEY(parallelism, pipeline_parallel_degree, degree_or_rest(), "ranks", "ranks over which the layers are distributed",
      "ranks that each hold some layers"),
  KEY(parallelism, pipeline_parallel_schedule, one_of_or(schedule_names(), is_csv, {"FILE.csv"}), "",
      "order of the passes of all ranks; a CSV file, relative to the working directory, has one line for each rank, as "
      "PyTorch's pipelining writes it"),
  KEY(parallelism, pipeline_parallel_stages_per_rank, at_least(0), "",
      "stages on each pipeline rank; 0 = the default of the schedule"),
  KEY(parallelism, pipeline_parallel_layers, at_least(-1), "", "layers of each stage in order; empty = "
      "as equal as possible; -1 = fewer with the head, so that the costliest rank costs least"),
  KEY(parallelism, pipeline_parallel_post_validation, any(), "",
      "update weights before the gradient norm is known, and redo the update if the norm exceeds max_norm"),
  KEY(parallelism, vocabulary_parallel, one_of({"none", "naive", "algorithm_1", "algorithm_2", "redistribution",
                                                "interlaced"}), "",
      "placement of the vocabulary layers: naive, algorithm_1 and algorithm_2 shard their rows over all pipeline "
      "ranks, with 3, 2 and 1 barriers; interlaced does so in 1F1B order; redistribution: fewer layers with the head"),
  KEY(parallelism, outer_axis, one_of({"pipeline", "data"}), "",
      "the axis whose neighboring ranks are farthest apart; those along the other one are closer, so that they may "
      "share a host"),
  KEY(parallelism, expert_parallel_degree, degree_or_rest(), "ranks",
      "ranks over which experts are distributed; this version: 1 only"),
};
// clang-format on
#undef KEY
#undef MODEL

constexpr std::pair<std::string_view, std::string_view> kSections[] = {
    {"job", "output folder and description"},
    {"run", "processes and devices"},
    {"model", "architecture of the transformer; names as in Hugging Face's config.json"},
    {"data", "text files and tokenizer"},
    {"training", "steps, batch, precision and loss"},
    {"activation_checkpoint", "recomputation of activations"},
    {"optimizer", "update rule"},
    {"lr_scheduler", "learning rate over the run"},
    {"validation", "loss on held-out documents"},
    {"metrics",
     "progress and event files; mfu: model FLOPs / those of products on this CPU, timed for 30 ms at the start (other "
     "work on the CPU at that time makes mfu too high), or of the GPU's peak; exposed communication (exposed comm; "
     "communication_seconds in metrics.jsonl): time that rank 0 waits for messages"},
    {"checkpoint", "saved training state"},
    {"parallelism",
     "degrees of the mesh; at most one may be -1, which takes the remaining ranks; other keys of a degree that is 1 "
     "have no effect"},
};

}  // namespace

std::span<const Key> config_table() { return kTable; }

std::vector<const Key*> model_keys() {
  std::vector<const Key*> keys;
  for (const Key& key : config_table()) {
    if (key.section == "model") keys.push_back(&key);
  }
  return keys;
}

std::string_view section_help(std::string_view section) {
  for (const auto& [name, help] : kSections) {
    if (name == section) return help;
  }
  return {};
}

std::vector<std::string> config_sections() {
  std::vector<std::string> names;
  for (const auto& section : kSections) names.emplace_back(section.first);
  return names;
}

std::vector<std::string> config_keys() {
  std::vector<std::string> names;
  for (const Key& key : config_table()) names.push_back(key.full_name());
  return names;
}

}  // namespace orthant
