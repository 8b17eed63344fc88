# Defines text::pcre2 and text::utf8proc, the libraries that tokenizers need.
function(orthant_text_library name header library package)
  find_path(ORTHANT_${name}_INCLUDE ${header})
  find_library(ORTHANT_${name}_LIBRARY ${library})
  if(NOT ORTHANT_${name}_INCLUDE OR NOT ORTHANT_${name}_LIBRARY)
    message(FATAL_ERROR "${header} or lib${library} not found. Install ${name} (Debian: ${package}).")
  endif()
  add_library(text::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(text::${name} PROPERTIES IMPORTED_LOCATION ${ORTHANT_${name}_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ORTHANT_${name}_INCLUDE})
endfunction()

orthant_text_library(pcre2 pcre2.h pcre2-8 libpcre2-dev)
orthant_text_library(utf8proc utf8proc.h utf8proc libutf8proc-dev)
