# ORTHANT_SANITIZE=address,undefined or ORTHANT_SANITIZE=thread compiles our code with sanitizers. Libtorch remains the
# wheel's, without them.
set(ORTHANT_SANITIZE "" CACHE STRING "sanitizers of the whole tree, as -fsanitize= takes them")
if(ORTHANT_FUZZ)
  set(ORTHANT_SANITIZE address,undefined,fuzzer-no-link)
endif()
if(ORTHANT_SANITIZE)
  # The check `vptr` needs type information that libtorch does not export.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ORTHANT_SANITIZE};-fno-omit-frame-pointer>")
  if(ORTHANT_SANITIZE MATCHES "undefined")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr;-fno-sanitize-recover=undefined>")
  endif()
  add_link_options(-fsanitize=${ORTHANT_SANITIZE})
endif()
