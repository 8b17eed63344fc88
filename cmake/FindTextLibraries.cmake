# Defines text::pcre2 and text::utf8proc, the libraries that tokenizers need. Installed programs of Orthant's library
# find them with this file too.
include(FindPackageHandleStandardArgs)

function(orthant_text_library name header library)
  find_path(ORTHANT_${name}_INCLUDE ${header})
  find_library(ORTHANT_${name}_LIBRARY ${library})
  if(ORTHANT_${name}_INCLUDE AND ORTHANT_${name}_LIBRARY AND NOT TARGET text::${name})
    add_library(text::${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(text::${name} PROPERTIES IMPORTED_LOCATION ${ORTHANT_${name}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${ORTHANT_${name}_INCLUDE})
  endif()
endfunction()

orthant_text_library(pcre2 pcre2.h pcre2-8)
orthant_text_library(utf8proc utf8proc.h utf8proc)
set(TextLibraries_REASON "Install PCRE2 and utf8proc (Debian: libpcre2-dev, libutf8proc-dev).")
find_package_handle_standard_args(TextLibraries
  REQUIRED_VARS ORTHANT_pcre2_LIBRARY ORTHANT_pcre2_INCLUDE ORTHANT_utf8proc_LIBRARY ORTHANT_utf8proc_INCLUDE
  REASON_FAILURE_MESSAGE "${TextLibraries_REASON}")
