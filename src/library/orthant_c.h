// The C interface of planning, which the Python package calls. It exchanges text only, in UTF-8: requests are JSON, and
// answers are JSON, TOML, CSV, SVG or text for people. Every function may be called from several threads at once, also
// for one answer.
//
// A function that fails returns NULL and sets *error to {"type": ..., "message": ...}, where the type is "ConfigError",
// "DataError" or "Error". The caller frees each text with orthant_free_text(), errors included, and each answer with
// orthant_free_answer().
//
//   char* error = NULL;
//   orthant_answer* plan = orthant_plan("{\"path\": \"run.toml\", \"settings\": [\"run.ranks=8\"]}", &error);
//   char* json = orthant_text(plan, "{\"form\": \"json\"}", &error);
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/// A plan, the result of a search, or a pipeline schedule. It never changes.
typedef struct orthant_answer orthant_answer;

/// Plans a run, as `orthant plan` does. The request has one of "path" (of a run file), "text" (of a run file) and "hf"
/// (of a config.json or its directory). "settings" lists settings in the form of the command line: "run.ranks=8".
/// Forms: "json" and "page", both with "show": names of sections; "run_file"; "svg"; "warnings" (a JSON array).
orthant_answer* orthant_plan(const char* request, char** error);

/// Searches the layouts of a run, as `orthant plan --search` does. The request is that of orthant_plan().
/// Forms: "json"; "page"; "run_file" with "index", a position in search[] of the JSON.
orthant_answer* orthant_search(const char* request, char** error);

/// Makes a pipeline schedule from "name", "ranks", "microbatches" and "stages_per_rank" (0: as the schedule needs), or
/// reads it from "csv". "durations" are those of F, I and W in any unit; B takes the sum of I and W.
/// Forms: "json", "pytorch_csv", "csv" (with messages), "grid", "svg".
orthant_answer* orthant_schedule(const char* request, char** error);

/// Returns the answer in a form: {"form": NAME, ...}.
char* orthant_text(const orthant_answer* answer, const char* request, char** error);

void orthant_free_answer(orthant_answer* answer);
void orthant_free_text(char* text);

/// The version of Orthant, such as "0.1.0". The caller does not free it.
const char* orthant_version(void);

#ifdef __cplusplus
}
#endif
