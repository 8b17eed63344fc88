# Installs the program, its manual page and its completions for three shells. The program itself writes these texts.
install(TARGETS orthant RUNTIME DESTINATION bin)

# Installs the output of `orthant ARGUMENTS` as a file below the prefix.
function(orthant_install_output file)
  list(JOIN ARGN " " arguments)
  install(CODE "
    set(file \"\${CMAKE_INSTALL_PREFIX}/${file}\")
    message(STATUS \"Installing: \$ENV{DESTDIR}\${file}\")
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:orthant>\" ${arguments} OUTPUT_FILE \"\$ENV{DESTDIR}\${file}\"
      COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${file}\")")
endfunction()

orthant_install_output(share/man/man1/orthant.1 manual)
orthant_install_output(share/bash-completion/completions/orthant completion bash)
orthant_install_output(share/zsh/site-functions/_orthant completion zsh)
orthant_install_output(share/fish/vendor_completions.d/orthant.fish completion fish)
