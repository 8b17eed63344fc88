// See gloo/algorithm.h. c10d's header includes this file but uses none of its names.
#pragma once
