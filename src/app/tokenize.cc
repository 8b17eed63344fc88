// orthant tokenize: text files to one PREFIX.bin and PREFIX.idx that data.path can name.
#include <filesystem>

#include "app/commands.h"
#include "app/progress_bar.h"
#include "base/errors.h"
#include "base/text.h"
#include "data/corpus.h"

namespace orthant {

int tokenize(const TokenizeArguments& arguments) {
  std::string prefix = arguments.output;
  for (const std::string_view ending : {".bin", ".idx"}) {
    if (prefix.ends_with(ending)) prefix.erase(prefix.rfind('.'));
  }
  if (prefix.empty() || prefix.ends_with('/')) {
    throw ConfigError("--output " + arguments.output + " names no file; name a PREFIX, such as data/books");
  }
  const std::vector<std::string> files = expand_paths(arguments.inputs, "INPUT");
  const std::filesystem::path parent = std::filesystem::path(prefix).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const auto tokenizer = load_tokenizer(arguments.tokenizer, folder, files);

  IndexedDatasetWriter writer(prefix, tokenizer->vocab_size());
  ProgressBar bar("tokenizing");
  tokenize_files(files, *tokenizer, writer,
                 [&](int64_t done, int64_t total) { bar.update(done, total, writer.num_tokens()); });
  bar.finish();
  if (writer.num_tokens() == 0) {
    throw ConfigError(fmt::format("INPUT = \"{}\" holds no text, only blank lines; nothing was written",
                                  join(arguments.inputs, " ")));
  }
  writer.finish();

  std::string spec = arguments.tokenizer;
  if (spec.starts_with("train:")) {
    // The cached model has a name made of hashes; a run file wants one that a person can write.
    const std::string model_folder = prefix + "-tokenizer";
    std::filesystem::create_directories(model_folder);
    tokenizer->save(model_folder);
    spec = model_folder + "/tokenizer.model";
  }
  if (!tokenizer->caveat().empty()) fmt::print(stderr, "note: {}\n", tokenizer->caveat());
  fmt::print(
      "{}.bin, {}.idx: {} in {}\nin the run file:\n  [data]\n  path = [\"{}\"]\n"
      "  tokenizer = \"{}\"\n",
      prefix, prefix, counted(writer.num_tokens(), "token"), counted(writer.num_documents(), "document"), prefix, spec);
  return kDone;
}

}  // namespace orthant
