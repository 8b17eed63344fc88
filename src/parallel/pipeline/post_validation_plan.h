// Post-validation of the optimizer's step: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241,
// section 4. Before the step all ranks have to know the norm of all gradients, and whether they are finite. An
// all-reduce would have every rank wait for the last, though they end one after the other, as they began. So what is
// known goes from rank to rank: each adds its own, tells the next, and makes its step at once if what it has seen so
// far permits that. The truth comes back while the next step's first forwards run; where it does not permit the step,
// it is undone and made anew, and those forwards are as well.
//
//   p ranks and n numbers of 8 bytes: every rank but the last sends 8 n bytes on, every rank but the first 8 n back
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// A Pass, after messages and reductions: STEP at the end of each row, and SETTLE in front, where the truth should have
/// come: rank r of p has done p-r forwards (the last rank has it when r has done p-1-r; one forward is for its way),
/// or as many fewer as make it valid (schedule/validate.h). A RECV goes to the side of it on which its SEND stands.
Schedule with_post_validation(Schedule schedule);

}  // namespace orthant
