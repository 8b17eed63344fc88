// The report as HTML text: sections as cards, inline charts, one style sheet for light and dark mode, no network
// access.
#pragma once

#include "report/data.h"

#include <string>

namespace orthant {

/// The complete page.
std::string report_page(const ReportData& data);

/// The card "Schedule", implemented in schedule.cc.
std::string schedule_section(const ReportData& data);

/// The style sheet, and the script that shows values under the pointer. The page is complete without the script.
const char* report_style();
const char* report_script();

}  // namespace orthant
