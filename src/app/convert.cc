// orthant convert: writes a model as a Hugging Face directory in another dtype or other shards, one tensor at a time.
#include <ATen/ATen.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands.h"
#include "app/run_setup.h"
#include "app/scratch_folder.h"
#include "base/errors.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "config/hf_family.h"
#include "report/progress_bar.h"
#include "runtime/hf_files.h"
#include "runtime/stop.h"
#include "runtime/tensor_files.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

at::ScalarType type_named(const std::string& dtype) {
  return dtype == "float16" ? at::kHalf : dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

// Thrown after a signal, so that the unfinished directory is removed before the process ends.
struct Stopped {};

// Converts one tensor after the other, each when the writer asks for it.
class Converter {
 public:
  Converter(const TensorSet& set, const std::string& directory, const std::string& dtype,
            std::function<void(int64_t done, int64_t total)> progress)
      : set_(set), directory_(directory), dtype_(dtype), progress_(std::move(progress)) {}

  // `stored`: the name in the files of `set`.
  void add(const std::string& name, const std::string& stored) {
    const TensorBytes source = set_.tensor(stored);
    TensorBytes target{.name = name, .dtype = source.dtype, .shape = source.shape};
    if (!dtype_.empty()) target.dtype = dtype_of(type_named(dtype_));
    const int64_t bytes = size_bytes(target);
    target.make = [this, source, bytes] {
      if (stop_signal() != 0) throw Stopped{};
      converted_.reset();  // before the next one exists
      converted_ = converted(source);
      forget(source.bytes);
      progress_(done_ += bytes, total_);
      return bytes_of(converted_);
    };
    total_ += bytes;
    tensors_.push_back(std::move(target));
  }

  const std::vector<TensorBytes>& tensors() const { return tensors_; }
  int64_t total_bytes() const { return total_; }

 private:
  at::Tensor converted(const TensorBytes& source) const {
    const at::Tensor stored = tensor_of_file(source, directory_);
    if (dtype_.empty()) return stored.clone();
    at::Tensor result = stored.to(type_named(dtype_), /*non_blocking=*/false, /*copy=*/true);
    if (result.isinf().ne(stored.isinf()).any().item<bool>()) {
      const bool half = result.scalar_type() == at::kHalf;
      throw DataError(fmt::format("{}: {} has values beyond {}, the largest of {}; use --dtype {}", directory_,
                                  source.name, half ? "65504" : "3.4e38", dtype_,
                                  half                                 ? "bfloat16"
                                  : stored.scalar_type() == at::kFloat ? "float32"
                                                                       : "as_stored"));
    }
    return result;
  }

  const TensorSet& set_;
  const std::string& directory_;
  const std::string& dtype_;
  std::function<void(int64_t done, int64_t total)> progress_;
  std::vector<TensorBytes> tensors_;
  at::Tensor converted_;
  int64_t done_ = 0, total_ = 0;
};

// The dtype of the tensors if it is one and the same, else `otherwise`.
std::string stored_dtype(const TensorSet& set, const std::string& otherwise) {
  std::set<Dtype> dtypes;
  for (const std::string& name : set.names()) dtypes.insert(set.entry(name).dtype);
  if (dtypes == std::set{Dtype::f32}) return "float32";
  if (dtypes == std::set{Dtype::f16}) return "float16";
  if (dtypes == std::set{Dtype::bf16}) return "bfloat16";
  if (dtypes == std::set{Dtype::f64}) return "float64";
  return otherwise;
}

// Copies the small files that belong to a model: those of its tokenizer, its chat template, generation_config.json.
void copy_companions(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename(), ending = entry.path().extension();
    const bool is_companion = ending == ".json" || ending == ".jinja" || ending == ".model" || ending == ".txt";
    if (!is_companion || name == "config.json" || name.ends_with(".index.json")) continue;
    if (!entry.is_regular_file()) {
      throw DataError(
          fmt::format("{} must be a file or a link to one, because it belongs to the model; restore it, or "
                      "remove it",
                      entry.path().string()));
    }
    fs::copy_file(entry.path(), to / name, fs::copy_options::overwrite_existing);
    sync_file(to / name);
  }
  if (const fs::path templates = from / "additional_chat_templates"; fs::is_directory(templates)) {
    copy_companions(templates, to / templates.filename());
  }
}

// Throws ConfigError if the class that config.json must name stores other tensors than the files have.
void check_family(const std::string& from, const Architecture& model, const std::vector<HfTensor>& stored,
                  const std::vector<HfTensor>& written) {
  const auto name = [](const HfTensor& tensor) { return tensor.name; };
  if (std::ranges::equal(stored, written, {}, name, name)) return;
  throw ConfigError(fmt::format(
      "{}: no class of transformers computes this {} with its caps or masked objective, and \"{}\" stores other "
      "tensors, so that this model cannot be converted tensor by tensor; train reads and saves it",
      from, model.architecture, family_of(model).model_type));
}

// Writes the finished directory, or nothing.
void write_model(const fs::path& to, const std::function<void(const std::string& directory)>& write) {
  const ScratchFolder unfinished(to.parent_path() / ".orthant-convert");
  write(unfinished.path());
  sync_directory(unfinished.path());
  std::error_code error;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  fs::permissions(unfinished.path(), static_cast<fs::perms>(0777 & ~mask), fs::perm_options::add);
  fs::rename(unfinished.path(), to, error);
  if (!error) sync_directory(to.has_parent_path() ? to.parent_path().string() : ".");
  if (error && fs::exists(fs::symlink_status(to))) {
    throw DataError(
        fmt::format("TO = {} exists now: another process wrote it meanwhile; remove one of the two, or name "
                    "another directory",
                    to.string()));
  }
  if (error) throw DataError(fmt::format("TO = {} cannot be written: {}", to.string(), error.message()));
}

}  // namespace

int convert(const ConvertArguments& arguments) {
  const std::string from = model_directory(arguments.from);
  fs::path to = fs::path(arguments.to).lexically_normal();
  if (!to.has_filename()) to = to.parent_path();  // TO ends in a slash
  if (fs::exists(fs::symlink_status(to))) {
    throw ConfigError(fmt::format("TO = {} exists; name a new directory, or remove this one first", to.string()));
  }
  if (fs::absolute(to).parent_path().filename() == "checkpoints" && to.filename().string().starts_with("step-")) {
    throw ConfigError(
        fmt::format("TO = {} must not have the name of a checkpoint, because a run with --resume may "
                    "continue from it or remove it; name another directory",
                    to.string()));
  }
  const std::string dtype = arguments.dtype == "as_stored" ? "" : arguments.dtype;
  HfConfig config = read_hf_config(from);
  const HfFamily& family = *find_family(config.model.architecture);
  const HfFamily& written = family_of(config.model);
  const std::vector<ParameterInfo> parameters = parameter_table(config.model);
  const TensorSet set = open_hf_weights(from);
  const HfFiles files(set, from, family, parameters);
  files.check_model();
  const std::vector<HfTensor> wanted = hf_tensors(family, parameters);
  check_family(from, config.model, wanted, hf_tensors(written, parameters));
  print_unknown_keys(from);

  config.torch_dtype = dtype.empty() ? stored_dtype(set, config.torch_dtype) : dtype;
  ProgressBar bar("converting");
  Converter converter(set, from, dtype, [&](int64_t done, int64_t total) { bar.update(done, total); });
  for (size_t i = 0; i < wanted.size(); ++i) converter.add(wanted[i].name, files.tensors()[i].name);
  record_stop_signals(false);
  try {
    write_model(to, [&](const std::string& directory) {
      write_hf_directory(directory, config, converter.tensors(), static_cast<int64_t>(arguments.max_shard_gb * 1e9));
      copy_companions(from, directory);
    });
  } catch (const Stopped&) {
    exit_on_signal(stop_signal());
  }
  bar.finish();
  fmt::print(
      "{}: {} in {}, {}\nto continue this model, in the run file:\n  [model]\n  from = {}\n  "
      "[training]\n  seed_weights = false\n",
      to.string(), counted(num_parameters(config.model), "parameter"), config.torch_dtype,
      format_bytes(static_cast<double>(converter.total_bytes())),
      Json(to.string()).dump(-1, ' ', false, Json::error_handler_t::replace));
  if (written.model_type != family.model_type) {
    fmt::print(stderr,
               "warning: config.json of {} names the type \"{}\", which transformers does not read, because "
               "its {} does not compute this model\n",
               to.string(), written.model_type, family.model_type);
  }
  return kDone;
}

}  // namespace orthant
