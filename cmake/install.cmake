# The tree that is carried to another machine: docs/gpu.md. It runs from any folder, beside that machine's PyTorch.
#   bin/      what is started: scripts that look for LibTorch, then start the program of that name in libexec/
#   lib/      the plug-in, and the shared libraries of this machine that the programs need
#   scripts/  those that need no sources; python/ has the package that they use
# The wheel (scripts/build_wheel) is the components `programs` and `bundled` of it: what is started, without what checks a GPU.
# The C and C++ runtimes are the other machine's: they only have to be as new as these here.
if(CMAKE_INSTALL_PREFIX_INITIALIZED_TO_DEFAULT)
  set(CMAKE_INSTALL_PREFIX ${CMAKE_BINARY_DIR}/installed CACHE PATH "Where cmake --install puts the tree" FORCE)
endif()

set(started pipewright-optimizer)
set(with_torch "")
set(checks "")
if(PIPEWRIGHT_TORCH)
  list(APPEND with_torch pipewright-profiler pipewright-runtime)
  list(APPEND checks benchmark_device)
  if(PIPEWRIGHT_TESTS)
    list(APPEND checks test_cuda profile_cuda_test)
  endif()
endif()
# DT_RPATH, not DT_RUNPATH: it is for the libraries of the libraries, too.
set_target_properties(${started} ${with_torch} ${checks} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
foreach(target ${started} ${with_torch} ${checks})
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()

# Symbols are a third of the programs.
install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" ALL_COMPONENTS)
install(TARGETS ${started} DESTINATION bin COMPONENT programs)
set(packaged ${started} ${with_torch})
if(with_torch)
  install(TARGETS ${with_torch} DESTINATION libexec COMPONENT programs)
  install(TARGETS ${checks} DESTINATION libexec)
  string(REGEX MATCH "^[0-9]+[.][0-9]+" PIPEWRIGHT_TORCH_SERIES "${pipewright_torch_version}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/start.in ${CMAKE_BINARY_DIR}/start @ONLY)
  foreach(program ${with_torch})
    install(PROGRAMS ${CMAKE_BINARY_DIR}/start DESTINATION bin RENAME ${program} COMPONENT programs)
  endforeach()
  foreach(program ${checks})
    install(PROGRAMS ${CMAKE_BINARY_DIR}/start DESTINATION bin RENAME ${program})
  endforeach()
  if(TARGET pipewright_cuda)
    install(TARGETS pipewright_cuda DESTINATION lib COMPONENT programs)
    list(APPEND packaged pipewright_cuda)
  endif()
  install(PROGRAMS scripts/check_gpu scripts/gpu_peer.py scripts/export_model.py DESTINATION scripts)
  install(DIRECTORY python/pipewright DESTINATION python FILES_MATCHING PATTERN "*.py")
endif()
install(FILES LICENSE DESTINATION . COMPONENT programs)

# For shells and man, where they look below a prefix: share/. A page is made of what its program says, when it is installed.
foreach(program ${started} ${with_torch})
  install(FILES scripts/completion/pipewright.bash DESTINATION share/bash-completion/completions RENAME ${program} COMPONENT shell)
  install(FILES scripts/completion/pipewright.fish DESTINATION share/fish/vendor_completions.d RENAME ${program}.fish COMPONENT shell)
  set(page ${CMAKE_BINARY_DIR}/${program})
  install(CODE "
    if(${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} IS_NEWER_THAN ${page}.md OR ${PROJECT_SOURCE_DIR}/scripts/make_man IS_NEWER_THAN ${page}.md)
      execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/make_man ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} ${page}.1 ${page}.md COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT shell)
  install(FILES ${page}.1 DESTINATION share/man/man1 COMPONENT shell)
  install(FILES ${page}.md DESTINATION share/doc/pipewright COMPONENT shell)
endforeach()
install(FILES scripts/completion/_pipewright DESTINATION share/zsh/site-functions COMPONENT shell)

# Under the one name that a program asks for; without following LibTorch, whose libraries stay where they are.
# (Not named as the component is: cmake's script would take the component's name for it.)
set(executables ${started} ${with_torch})
list(TRANSFORM executables PREPEND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/)
install(CODE "set(executables \"${executables}\")" COMPONENT bundled)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${executables} RESOLVED_DEPENDENCIES_VAR libraries
       PRE_EXCLUDE_REGEXES "^lib(torch|c10|gomp)" "^lib(c|m|dl|rt|util|anl|resolv|pthread|gcc_s|stdc[+][+])[.]so" "^ld-linux")
  foreach(library ${libraries})
    get_filename_component(name ${library} NAME)
    file(REAL_PATH ${library} file)
    file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/lib TYPE FILE RENAME ${name} FILES ${file})
  endforeach()
]] COMPONENT bundled)

# The .deb: what the wheel has, in /usr/lib/pipewright, without Debian's libraries, whose packages it depends on; and links from /usr/bin.
install(CODE "
  set(top \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX})
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=DESTDIR
                          ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --component programs --prefix \${top}/lib/pipewright
                  COMMAND_ERROR_IS_FATAL ANY)
  file(MAKE_DIRECTORY \${top}/bin)
  foreach(program IN ITEMS ${started} ${with_torch})
    file(CREATE_LINK ../lib/pipewright/bin/\${program} \${top}/bin/\${program} SYMBOLIC)
  endforeach()" COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION share/doc/pipewright RENAME copyright COMPONENT debian EXCLUDE_FROM_ALL)

# find_package(pipewright): the libraries without LibTorch, for programs of others (docs/examples/find_package).
#   cmake --install build/release --component development --prefix P
set(libraries_for_others pipewright_graph pipewright_pages pipewright_schedule pipewright_optimizer)
foreach(library ${libraries_for_others})
  string(REPLACE "pipewright_" "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name} INTERFACE_COMPILE_FEATURES cxx_std_20)
endforeach()
install(TARGETS ${libraries_for_others} EXPORT pipewright DESTINATION lib COMPONENT development EXCLUDE_FROM_ALL INCLUDES DESTINATION include/pipewright)
install(DIRECTORY graph pages optimizer DESTINATION include/pipewright COMPONENT development EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.h" PATTERN command_line.h EXCLUDE PATTERN commands EXCLUDE)
install(DIRECTORY runtime/schedule DESTINATION include/pipewright/runtime COMPONENT development EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.h")
install(EXPORT pipewright NAMESPACE pipewright:: FILE targets.cmake DESTINATION lib/cmake/pipewright COMPONENT development EXCLUDE_FROM_ALL)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/pipewright-config-version.cmake COMPATIBILITY ExactVersion)
install(FILES cmake/pipewright-config.cmake ${CMAKE_BINARY_DIR}/pipewright-config-version.cmake
        DESTINATION lib/cmake/pipewright COMPONENT development EXCLUDE_FROM_ALL)

# What the tree needs, and no more, before cmake --install or cpack; and what the wheel needs.
add_custom_target(carried DEPENDS ${packaged} ${checks})
add_custom_target(packaged DEPENDS ${packaged})
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME pipewright-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
# No mailbox is promised: who makes a package for others says who keeps it (cmake/package.cmake).
set(CPACK_PACKAGE_CONTACT "Pipewright developers <developers@pipewright.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Pipeline-parallel training of PyTorch models: profiler, optimizer and runtime")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TORCH_ROOT}/lib ${TORCH_ROOT}/../nvidia/cu13/lib)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package.cmake)
include(CPack)
