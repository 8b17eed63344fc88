// Encodes in the order of Hugging Face's tokenizers: added tokens, normalizer, added tokens of normalized text,
// pre-tokenizer, model.
#include "data/huggingface_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/cores.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "data/added_tokens.h"
#include "data/byte_characters.h"
#include "data/decoder.h"
#include "data/huggingface.h"
#include "data/json_fields.h"
#include "data/normalizer.h"
#include "data/pre_tokenizer.h"
#include "data/token_model.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Files that transformers reads together with tokenizer.json. A copy of the tokenizer includes them.
constexpr std::array kCompanions = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                    "chat_template.jinja"};

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes << std::flush;
  if (!file) throw DataError(path.string() + ": cannot be written; is the disk full?");
}

// The ids of pieces that a thread has encoded before. Text repeats its words.
class PieceCache {
 public:
  void encode(const TokenModel& model, std::string_view piece, std::vector<int32_t>& ids) {
    constexpr size_t kMostPieces = 1 << 16, kLongest = 128;
    if (piece.size() > kLongest) return model.encode(piece, ids);
    const auto found = known_.find(piece);
    if (found != known_.end()) {
      ids.insert(ids.end(), found->second.begin(), found->second.end());
      return;
    }
    const size_t before = ids.size();
    model.encode(piece, ids);
    if (known_.size() >= kMostPieces) return;
    known_.emplace(piece, std::vector<int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end()));
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return xxh3(text); }
  };
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> known_;
};

struct Components {
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
};

// Throws DataError unless each added token has the id that `tokenizers` gives it: that of the same text in the model's
// vocabulary, or else the next number.
void require_ids_of_tokenizers(const std::vector<AddedToken>& added, const Json& model, const std::string& source) {
  const Json& vocabulary = member(model, "vocab", source);
  std::unordered_map<std::string, int32_t> known;
  if (vocabulary.is_array()) {
    int32_t next = 0;  // of two pieces with the same text, the last one gives its id
    for (const Json& piece : vocabulary) known.insert_or_assign(piece[0].get<std::string>(), next++);
  }
  const auto size = static_cast<int32_t>(vocabulary.size());
  int32_t most = -1;  // of the added tokens so far
  for (const AddedToken& token : added) {
    int32_t id = std::max(most + 1, size);
    if (vocabulary.is_object() && vocabulary.contains(token.text)) id = vocabulary.at(token.text).get<int32_t>();
    if (const auto found = known.find(token.text); found != known.end()) id = found->second;
    if (id != token.id) {
      throw DataError(
          fmt::format("{}: the added token \"{}\" must have the id {}, which `tokenizers` gives it, and has "
                      "{}; save the tokenizer again with transformers, or correct the id",
                      source, token.text, id, token.id));
    }
    most = std::max(most, id);
  }
}

Components read_components(const Json& json, const std::string& source) {
  Components parts{.added = read_added_tokens(member_or_null(json, "added_tokens"), source),
                   .normalizer = Normalizer(member_or_null(json, "normalizer"), source),
                   .pre_tokenizer = PreTokenizer(member_or_null(json, "pre_tokenizer"), source),
                   .model = nullptr};
  parts.model = make_token_model(member(json, "model", source), parts.pre_tokenizer.is_byte_level(), source);
  require_ids_of_tokenizers(parts.added, member(json, "model", source), source);
  return parts;
}

int32_t id_member(const Json& id, const std::string& source) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens) {
    throw DataError(fmt::format("{}: post_processor: an id must be a number from 0 to {}, and is {}", source,
                                kMostTokens - 1, id.dump()));
  }
  return id.get<int32_t>();
}

constexpr size_t kMostBeginTokens = 1024;

// Appends the ids of tokens that a "post_processor" puts before a text. A template may name the same list of ids often,
// so that their number is not bounded by the size of the file.
void append_begin_tokens(const Json& json, const std::string& source, std::vector<int32_t>& tokens) {
  if (json.is_null()) return;
  const std::string type = text_or(json, "type", "", source);
  if (type == "Sequence") {
    for (const Json& step : member(json, "processors", source)) append_begin_tokens(step, source, tokens);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const Json& first = member(json, "cls", source);  // ["<s>", 0]
    if (!first.is_array() || first.size() != 2) throw DataError(source + ": post_processor: cls must be [text, id]");
    tokens.push_back(id_member(first[1], source));
  } else if (type == "TemplateProcessing") {
    for (const Json& part : member(json, "single", source)) {
      const Json* token = optional_member(part, "SpecialToken");
      if (token == nullptr) return;  // the text
      const Json& known = member(json, "special_tokens", source);
      const Json& entry = member(known, text_or(*token, "id", "", source).c_str(), source);
      for (const Json& id : member(entry, "ids", source)) {
        if (tokens.size() >= kMostBeginTokens) {
          throw DataError(
              fmt::format("{}: post_processor must put at most {} tokens before a text; remove some of them", source,
                          kMostBeginTokens));
        }
        tokens.push_back(id_member(id, source));
      }
    }
  } else if (type != "ByteLevel") {
    throw DataError(
        fmt::format("{}: the post-processor \"{}\" is not supported; Orthant reads Sequence, "
                    "TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel",
                    source, type));
  }
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(const fs::path& path, const std::string& bytes, const Json& json, Components parts)
      : path_(path),
        bytes_(bytes),
        components_(std::move(parts)),
        decoder_(member_or_null(json, "decoder"), path.string()),
        raw_finder_(make_finder(components_, false)),
        normalized_finder_(make_finder(components_, true)) {
    surfaces_ = components_.model->texts();
    for (std::string& text : surfaces_) text = decoder_.surface(std::move(text));
    for (const AddedToken& token : components_.added) {
      const auto id = static_cast<size_t>(token.id);
      if (id >= surfaces_.size()) surfaces_.resize(id + 1);
      surfaces_[id] = token.special ? "" : decoder_.surface(token.text);
    }
    end_of_text_ = find_end_of_text();
    end_of_text_name_ = name_of(end_of_text_);
    surfaces_[static_cast<size_t>(end_of_text_)].clear();
    append_begin_tokens(member_or_null(json, "post_processor"), path.string(), begin_tokens_);
    for (const int32_t mark : begin_tokens_) surface(mark);  // refuses ids outside the vocabulary
    for (const char* name : kCompanions) {
      if (const fs::path companion = path.parent_path() / name; fs::is_regular_file(companion)) {
        companions_.emplace_back(name, read_file(companion.string()));
      }
    }
    const fs::path templates = path.parent_path() / "additional_chat_templates";
    std::error_code ignored;  // the folder is optional
    for (fs::directory_iterator entry(templates, ignored), end; entry != end; entry.increment(ignored)) {
      const std::string name = templates.filename() / entry->path().filename();
      if (name.ends_with(".jinja")) companions_.emplace_back(name, read_file(entry->path().string()));
    }
  }

  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const override {
    std::vector<std::vector<int32_t>> tokens(texts.size());
    const std::lock_guard lock(caches_mutex_);
    caches_.resize(static_cast<size_t>(available_cores()));
    for_each_on_all_cores(texts.size(),
                          [&](size_t text, size_t core) { encode_text(texts[text], caches_[core], tokens[text]); });
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) text += surface(token);
    const bool drops = decoder_.drops_first_space() && text.starts_with(' ');
    return drops ? text.substr(1) : text;
  }

  int32_t token_bytes(int32_t token) const override { return static_cast<int32_t>(surface(token).size()); }
  int32_t vocab_size() const override { return static_cast<int32_t>(surfaces_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::vector<int32_t> begin_tokens() const override { return begin_tokens_; }
  std::string name() const override {
    return fmt::format("Hugging Face {}, {}", components_.model->name(), path_.filename().string());
  }
  uint64_t fingerprint() const override {
    Hasher hasher;
    hasher.add_field(bytes_);
    hasher.add_field(static_cast<uint64_t>(end_of_text_));
    return hasher.digest();
  }
  std::string caveat() const override;

  void save(const std::string& directory) const override {
    save_tokenizer_json(directory, bytes_, end_of_text_name_);
    for (const auto& [name, bytes] : companions_) {
      // A folder whose config.json names the end-of-text token may have none in tokenizer_config.json.
      Json config = name == "tokenizer_config.json" ? parse_sorted_json(bytes, name, LargeIntegers::kToFloat) : Json();
      const bool lacks_end = config.is_object() && optional_member(config, "eos_token") == nullptr;
      if (lacks_end) config["eos_token"] = end_of_text_name_;
      fs::create_directories((fs::path(directory) / name).parent_path());
      write_file(fs::path(directory) / name, lacks_end ? config.dump(2) + "\n" : bytes);
    }
  }

 private:
  // The added tokens to find in text as it is, or in normalized text, where they are normalized too.
  static AddedTokenFinder make_finder(const Components& parts, bool normalized) {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : parts.added) {
      if (token.normalized != normalized) continue;
      tokens.push_back(token);
      if (normalized) tokens.back().text = parts.normalizer.apply(token.text);
      if (tokens.back().text.empty()) tokens.pop_back();
    }
    return AddedTokenFinder(std::move(tokens));
  }

  const std::string& surface(int32_t token) const {
    if (token < 0 || token >= vocab_size()) {
      throw DataError(fmt::format("{}: token {} is outside the vocabulary of {}", path_.string(), token, vocab_size()));
    }
    return surfaces_[static_cast<size_t>(token)];
  }

  void encode_text(std::string_view text, PieceCache& cache, std::vector<int32_t>& ids) const {
    for (const TextSection& section : raw_finder_.find(text)) {
      if (section.token >= 0) {
        ids.push_back(section.token);
        continue;
      }
      const bool at_start = section.text.data() == text.data();
      std::string changed;
      if (components_.normalizer.changes_text()) changed = components_.normalizer.apply(section.text);
      const std::string_view normalized =
          components_.normalizer.changes_text() ? std::string_view(changed) : section.text;
      for (const TextSection& part : normalized_finder_.find(normalized)) {
        if (part.token >= 0) {
          ids.push_back(part.token);
          continue;
        }
        const TextPieces pieces =
            components_.pre_tokenizer.split(part.text, at_start && part.text.data() == normalized.data());
        for (const std::string_view piece : pieces.pieces) cache.encode(*components_.model, piece, ids);
      }
    }
  }

  std::string name_of(int32_t token) const {
    for (const AddedToken& added : components_.added) {
      if (added.id == token) return added.text;
    }
    return components_.model->texts()[static_cast<size_t>(token)];
  }
  std::optional<int32_t> id_of(const std::string& text) const;
  int32_t find_end_of_text() const;

  const fs::path path_;
  const std::string bytes_;
  const Components components_;
  const Decoder decoder_;
  const AddedTokenFinder raw_finder_, normalized_finder_;
  std::vector<std::string> surfaces_;
  std::vector<std::pair<std::string, std::string>> companions_;  // name and bytes
  int32_t end_of_text_ = 0;
  std::string end_of_text_name_;
  std::vector<int32_t> begin_tokens_;
  mutable std::mutex caches_mutex_;
  mutable std::vector<PieceCache> caches_;  // by core
};

std::string HuggingFaceTokenizer::caveat() const {
  const bool changes = components_.normalizer.changes_text() || components_.pre_tokenizer.changes_text();
  const bool loses = components_.model->loses_unknown_text();
  if (!changes && !loses) return "";
  return fmt::format("tokens may not reproduce the text exactly: the tokenizer {}{}{}",
                     changes ? "changes text before it is encoded" : "", changes && loses ? " and " : "",
                     loses ? "does not have a token for every byte" : "");
}

std::optional<int32_t> HuggingFaceTokenizer::id_of(const std::string& text) const {
  for (const AddedToken& added : components_.added) {
    if (added.text == text) return added.id;
  }
  const std::string spelled =
      components_.pre_tokenizer.is_byte_level() ? bytes_of_characters(text).value_or(text) : text;
  const auto found = std::ranges::find(components_.model->texts(), spelled);
  if (found == components_.model->texts().end() || spelled.empty()) return {};
  return static_cast<int32_t>(found - components_.model->texts().begin());
}

int32_t HuggingFaceTokenizer::find_end_of_text() const {
  const fs::path folder = path_.parent_path();
  const auto read = [&](const char* name) {
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file)) return Json(Json::object());
    return parse_sorted_json(read_file(file.string()), file.string(), LargeIntegers::kToFloat);
  };
  const auto checked = [&](int64_t id, const char* file) {
    if (id >= 0 && id < vocab_size()) return static_cast<int32_t>(id);
    throw DataError(fmt::format("{}: the end-of-text token has id {}, but {} has {} tokens", (folder / file).string(),
                                id, path_.string(), vocab_size()));
  };
  const Json tokenizer_config = read("tokenizer_config.json");
  if (const Json* name = optional_member(tokenizer_config, "eos_token")) {
    const std::string source = (folder / "tokenizer_config.json").string();
    const std::string text =
        name->is_object() ? text_or(*name, "content", "", source) : text_or(tokenizer_config, "eos_token", "", source);
    if (const std::optional<int32_t> id = id_of(text)) return *id;
    throw DataError(fmt::format("{}: eos_token \"{}\" is not a token of {}",
                                (folder / "tokenizer_config.json").string(), text, path_.string()));
  }
  for (const char* file : {"config.json", "generation_config.json"}) {
    const Json config = read(file);
    const Json* id = optional_member(config, "eos_token_id");
    if (id != nullptr && id->is_array() && !id->empty()) id = &id->front();
    if (id != nullptr && id->is_number_integer()) return checked(id->get<int64_t>(), file);
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (const std::optional<int32_t> id = id_of(name)) return *id;
  }
  throw ConfigError(
      fmt::format("{}: a tokenizer must have an end-of-text token, which ends documents; add a tokenizer_config.json "
                  "with \"eos_token\" to its folder",
                  path_.string()));
}

}  // namespace

std::unique_ptr<Tokenizer> load_huggingface_tokenizer(const std::string& path) {
  if (!fs::is_regular_file(path)) throw ConfigError(path + ": there is no such tokenizer.json");
  const std::string bytes = read_file(path);
  if (bytes.starts_with("\xef\xbb\xbf")) {
    throw DataError(path + ": must not begin with a byte order mark (U+FEFF), which `tokenizers` refuses; remove it");
  }
  const Json json = parse_sorted_json(bytes, path);
  if (!json.is_object()) throw DataError(path + ": expected an object, as in a tokenizer.json");
  return std::make_unique<HuggingFaceTokenizer>(path, bytes, json, read_components(json, path));
}

}  // namespace orthant
