// The C interface: converts requests from JSON, and errors to JSON. No exception leaves it.
#include "library/orthant_c.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/json.h"
#include "library/answer.h"

// The only functions that the shared library exports.
#define ORTHANT_EXPORT __attribute__((visibility("default")))

struct orthant_answer {
  std::unique_ptr<orthant::Answer> answer;
};

namespace {

using orthant::Request;

// Returns a copy of the text that the caller frees with orthant_free_text(); null if there is no memory.
char* copy(const std::string& text) noexcept {
  char* bytes = static_cast<char*>(std::malloc(text.size() + 1));
  if (bytes != nullptr) std::memcpy(bytes, text.c_str(), text.size() + 1);
  return bytes;
}

char* error_json(const char* type, const char* message) {
  // Messages quote files, which may hold other bytes than UTF-8.
  return copy(Request({{"type", type}, {"message", message}}).dump(-1, ' ', false, Request::error_handler_t::replace));
}

// Calls the function, and returns its result, or null after an exception, which becomes *error.
template <typename Function>
auto catching(char** error, Function&& function) noexcept -> decltype(function()) {
  try {
    return orthant::explained(function);
  } catch (const orthant::ConfigError& refused) {
    *error = error_json("ConfigError", refused.what());
  } catch (const orthant::DataError& damaged) {
    *error = error_json("DataError", damaged.what());
  } catch (const std::bad_alloc&) {
    *error = copy(R"({"type": "Error", "message": "out of memory: use a machine with more memory, or a smaller run"})");
  } catch (const std::exception& other) {
    *error = error_json("Error", other.what());
  }
  return nullptr;
}

orthant_answer* answer_with(std::unique_ptr<orthant::Answer> (*make)(const Request&), const char* request,
                            char** error) {
  return catching(error, [&] { return new orthant_answer{make(orthant::parse_json(request, "request"))}; });
}

}  // namespace

ORTHANT_EXPORT orthant_answer* orthant_plan(const char* request, char** error) {
  return answer_with(orthant::answer_plan, request, error);
}

ORTHANT_EXPORT orthant_answer* orthant_search(const char* request, char** error) {
  return answer_with(orthant::answer_search, request, error);
}

ORTHANT_EXPORT orthant_answer* orthant_schedule(const char* request, char** error) {
  return answer_with(orthant::answer_schedule, request, error);
}

ORTHANT_EXPORT char* orthant_text(const orthant_answer* answer, const char* request, char** error) {
  return catching(error, [&] {
    char* text = copy(answer->answer->text(orthant::parse_json(request, "request")));
    if (text == nullptr) throw std::bad_alloc();
    return text;
  });
}

ORTHANT_EXPORT void orthant_free_answer(orthant_answer* answer) { delete answer; }

ORTHANT_EXPORT void orthant_free_text(char* text) { std::free(text); }

ORTHANT_EXPORT const char* orthant_version(void) { return ORTHANT_VERSION; }
