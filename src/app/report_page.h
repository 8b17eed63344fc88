// The report as HTML text: sections in cards, charts inline, one style sheet for light and dark, no network.
#pragma once

#include "app/report_data.h"

#include <string>

namespace orthant {

/// The whole page.
std::string report_page(const ReportData& data);

/// The card of report_schedule.cc.
std::string schedule_section(const ReportData& data);

/// The page's style sheet, and the script that shows values under the pointer (the page is complete without it).
const char* report_style();
const char* report_script();

}  // namespace orthant
