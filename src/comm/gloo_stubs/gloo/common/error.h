// See gloo/algorithm.h: named by c10d's header, nothing of it is needed.
#pragma once
