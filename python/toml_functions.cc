// Defines the functions of toml++ that the libraries of src/ call, for a shared library that must not need
// libtomlplusplus.so. Debian has no static one, but its headers contain the implementation.
#define TOML_HEADER_ONLY 0
#define TOML_SHARED_LIB 0
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
