// orthant tokenize: converts text files to one PREFIX.bin and PREFIX.idx, which data.path can name.

#include <filesystem>
#include <optional>

#include "app/commands.h"
#include "app/scratch_folder.h"
#include "base/errors.h"
#include "base/text.h"
#include "data/corpus.h"
#include "data/sentencepiece.h"
#include "data/tokenize_text.h"
#include "report/progress_bar.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::string dataset_prefix(const std::string& output) {
  std::string prefix = output;
  for (const std::string_view ending : {".bin", ".idx"}) {
    if (prefix.ends_with(ending)) prefix.erase(prefix.rfind('.'));
  }
  if (prefix.empty() || prefix.ends_with('/')) {
    throw ConfigError("--output " + output + " names no file; name a PREFIX, such as data/books");
  }
  return prefix;
}

// Describes what counts as a document in these files, and how documents are stored.
std::string describe_documents(const TokenizedText& text, size_t files, const TextFormat& format) {
  if (format.documents == DocumentFormat::kJsonl) return fmt::format("the text of \"{}\" of each line", format.key);
  const std::string separator = "a line that holds only <|endoftext|> ends a document, and so does the end of a file";
  if (text.files_with_separators == static_cast<int64_t>(files)) return separator;
  std::string description =
      text.files_with_separators == 0
          ? "each file is one document, because no line holds only <|endoftext|>"
          : fmt::format("{}; every file without such a line is one document ({})", separator,
                        counted(static_cast<int64_t>(files) - text.files_with_separators, "file"));
  if (text.pieces > text.documents) {
    description += fmt::format(
        "; long documents are stored in pieces of about {}, split at blank lines or else at line ends "
        "({} in all)",
        format_bytes(static_cast<double>(text.piece_bytes)), counted(text.pieces, "piece"));
  }
  return description;
}

}  // namespace

int tokenize(const TokenizeArguments& arguments) {
  const std::string prefix = dataset_prefix(arguments.output);
  const std::vector<std::string> files = expand_paths(arguments.inputs, "INPUT");
  const TextFormat format{.documents = arguments.format == "jsonl" ? DocumentFormat::kJsonl : DocumentFormat::kPlain,
                          .key = arguments.text_key};
  std::string spec = arguments.tokenizer;
  // A tokenizer that is trained here gets its final name only after the dataset is complete.
  std::optional<ScratchFolder> scratch;
  std::string trained;
  FileReadings readings;
  if (spec.starts_with("train:")) {
    scratch.emplace(std::filesystem::path(prefix).parent_path() / ".orthant-tokenizer");
    // A folder of its own, because training locks it.
    trained = train_sentencepiece(pieces_to_train(spec), scratch->path() + "/work", files, format, readings);
  }
  const auto tokenizer = load_tokenizer(trained.empty() ? spec : trained, "", files);

  IndexedDatasetWriter writer(prefix, tokenizer->vocab_size());
  ProgressBar bar("tokenizing");
  const TokenizedText text =
      tokenize_text(scan_texts(files, format, &readings), *tokenizer, writer,
                    [&](int64_t done, int64_t total) { bar.update(done, total, writer.num_tokens()); });
  bar.finish();
  if (writer.num_tokens() == 0) {
    throw ConfigError(fmt::format("INPUT = \"{}\" holds no text, only blank lines; nothing was written",
                                  join(arguments.inputs, " ")));
  }
  writer.finish();
  if (!trained.empty()) {
    spec = prefix + ".model";
    fs::rename(trained, spec);
  }
  if (!tokenizer->caveat().empty()) fmt::print(stderr, "note: {}\n", tokenizer->caveat());
  fmt::print(
      "{}.bin, {}.idx: {} in {}\ndocuments: {}\nin the run file:\n  [data]\n  path = [\"{}\"]\n"
      "  tokenizer = \"{}\"\n",
      prefix, prefix, counted(writer.num_tokens(), "token"), counted(text.documents, "document"),
      describe_documents(text, files.size(), format), prefix, spec);
  return kDone;
}

}  // namespace orthant
