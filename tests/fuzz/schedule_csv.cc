// A schedule in the CSV form of PyTorch's pipelining, from the text to its timeline.
#include "parallel/pipeline/csv_plan.h"
#include "schedule/simulate.h"
#include "tests/fuzz/hostile.h"

using namespace orthant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::read_hostile(size, {.base_bytes = 2 << 20, .per_byte = 192}, [&] {
    const Schedule given = parse_csv(text);
    const Schedule schedule = schedule_from_csv(text, static_cast<int>(given.rows.size()), microbatch_count(given));
    fuzz::require(parse_csv(to_csv(schedule)) == schedule, "a printed schedule reads as equal");
    simulate(schedule, Durations::of(1, 1, 1));  // LogicError if a schedule that was accepted deadlocks
  });
  return 0;
}
