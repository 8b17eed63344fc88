#include "data/sentencepiece_model.h"

#include <cstring>

#include "base/errors.h"

namespace orthant {

namespace {

/// One protobuf message as a sequence of fields.
class Message {
 public:
  Message(std::string_view bytes, int64_t offset, const std::string& source)
      : bytes_(bytes), offset_(offset), source_(source) {}

  /// Moves to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    field = static_cast<int64_t>(tag >> 3);
    wire_ = static_cast<int>(tag & 7);
    if (field == 0 || field > 536870911) damaged("invalid field number");
    switch (wire_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        skip(8);
        break;
      case 2:
        skip(varint());
        break;
      case 5:
        skip(4);
        break;
      default:
        damaged("unknown wire type");
    }
    return true;
  }

  int32_t number() const {
    if (wire_ != 0) damaged("expected a number");
    return static_cast<int32_t>(number_);
  }
  bool flag() const { return number() != 0; }
  float real() const {
    if (wire_ != 5) damaged("expected a 32-bit float");
    float value;
    std::memcpy(&value, content_.data(), sizeof value);
    return value;
  }
  std::string_view bytes() const {
    if (wire_ != 2) damaged("expected bytes");
    return content_;
  }
  Message message() const { return Message(bytes(), offset_ + (content_.data() - bytes_.data()), source_); }
  [[noreturn]] void damaged(const char* what) const {
    throw DataError(fmt::format("{}: offset {}: {}; not a sentencepiece model, or damaged", source_,
                                offset_ + static_cast<int64_t>(at_), what));
  }

  int64_t field = 0;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == bytes_.size()) damaged("the file ends within a number");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    damaged("number of more than ten bytes");
  }
  void skip(uint64_t count) {
    if (count > bytes_.size() - at_) damaged("a field extends past the end");
    content_ = bytes_.substr(at_, count);
    at_ += count;
  }

  std::string_view bytes_, content_;
  int64_t offset_;
  const std::string& source_;
  size_t at_ = 0;
  int wire_ = 0;
  uint64_t number_ = 0;
};

SentencePieceModel::Piece parse_piece(Message message) {
  SentencePieceModel::Piece piece;
  while (message.next()) {
    if (message.field == 1) piece.text = message.bytes();
    if (message.field == 2) piece.score = message.real();
    if (message.field == 3) piece.type = message.number();
  }
  if (piece.type < SentencePieceModel::kNormal || piece.type > SentencePieceModel::kByte)
    message.damaged("unknown type of piece");
  return piece;
}

void parse_trainer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field) {
      case 3:
        model.kind = message.number();
        break;
      case 24:
        model.whitespace_as_suffix = message.flag();
        break;
      case 35:
        model.byte_fallback = message.flag();
        break;
      case 40:
        model.unk_id = message.number();
        break;
      case 41:
        model.bos_id = message.number();
        break;
      case 42:
        model.eos_id = message.number();
        break;
      case 43:
        model.pad_id = message.number();
        break;
      case 44:
        model.unk_surface = message.bytes();
        break;
      default:
        break;
    }
  }
}

void parse_normalizer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field) {
      case 2:
        model.has_normalization = !message.bytes().empty();
        break;
      case 3:
        model.add_dummy_prefix = message.flag();
        break;
      case 4:
        model.remove_extra_whitespaces = message.flag();
        break;
      case 5:
        model.escape_whitespaces = message.flag();
        break;
      default:
        break;
    }
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  Message message(bytes, 0, source);
  bool has_unknown = false;
  while (message.next()) {
    if (message.field == 1) {
      model.pieces.push_back(parse_piece(message.message()));
      const bool is_unknown = model.pieces.back().type == SentencePieceModel::kUnknown;
      if (is_unknown && has_unknown) message.damaged("a second unknown piece, of which a model must have at most one");
      has_unknown |= is_unknown;
    }
    if (message.field == 2) parse_trainer(message.message(), model);
    if (message.field == 3) parse_normalizer(message.message(), model);
  }
  if (model.pieces.empty()) message.damaged("no pieces");
  return model;
}

}  // namespace orthant
