# What all of our own targets are compiled with.
add_library(pipewright_options INTERFACE)
target_compile_options(pipewright_options INTERFACE -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns wrongly about "x" + std::string (GCC bug 105651).
  target_compile_options(pipewright_options INTERFACE -Wno-restrict)
endif()
target_include_directories(pipewright_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(pipewright_options INTERFACE PIPEWRIGHT_VERSION="${PROJECT_VERSION}")
if(PIPEWRIGHT_SANITIZE)
  target_compile_options(pipewright_options INTERFACE -fsanitize=${PIPEWRIGHT_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(pipewright_options INTERFACE -fsanitize=${PIPEWRIGHT_SANITIZE})
  # Instrumented, a std::regex looks uninitialized to GCC 12.
  target_compile_options(pipewright_options INTERFACE -Wno-maybe-uninitialized)
endif()

# What a source costs is the headers it reads: the sources of one folder are compiled as one, which takes a seventh of the time.
# Names in unnamed namespaces must therefore differ within a folder. Off: one by one (as in the debug preset), for who changes
# one file again and again, and to see that each file includes what it uses.
option(PIPEWRIGHT_UNITY "Compile the sources of a folder as one" ON)
# GCC takes a type in an unnamed namespace of an #included source for one of a header.
add_library(pipewright_unity_options INTERFACE)
if(PIPEWRIGHT_UNITY)
  target_compile_options(pipewright_unity_options INTERFACE -Wno-subobject-linkage)
endif()

# pipewright_unity(RESULT TARGET AT_MOST SOURCE ...): what to compile instead of the sources: one file for each folder of them, or for
# each AT_MOST of them where that is not 0. Sources with SKIP_UNITY_BUILD_INCLUSION stay as they are. Unlike CMake's
# own, these files name the sources from the project's root, so that a compiler cache serves every checkout.
function(pipewright_unity result target at_most)
  if(NOT PIPEWRIGHT_UNITY)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(files "")
  set(groups "")
  set(count 0)
  foreach(source ${ARGN})
    get_source_file_property(apart ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(apart)
      list(APPEND files ${source})
      continue()
    endif()
    if(at_most)
      math(EXPR folder "${count} / ${at_most}")
      math(EXPR count "${count} + 1")
    else()
      get_filename_component(folder ${source} DIRECTORY)
    endif()
    string(MAKE_C_IDENTIFIER "${target}_${folder}" group)
    list(APPEND groups ${group})
    list(APPEND sources_of_${group} ${source})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    list(LENGTH sources_of_${group} many)
    if(many EQUAL 1)
      list(APPEND files ${sources_of_${group}})
      continue()
    endif()
    set(text "")
    foreach(source ${sources_of_${group}})
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}/${group}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND files ${file})
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# pipewright_library(NAME SOURCES ... LINK ...): a static library of ours.
function(pipewright_library name)
  cmake_parse_arguments(PARSE_ARGV 1 lib "" "" "SOURCES;LINK")
  pipewright_unity(sources ${name} 0 ${lib_SOURCES})
  add_library(${name} STATIC ${sources})
  # How we compile is nothing to who finds an installed library.
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:pipewright_options> ${lib_LINK} PRIVATE $<BUILD_INTERFACE:pipewright_unity_options>)
endfunction()

# pipewright_program(NAME SOURCES ... LINK ...): one of the three programs.
function(pipewright_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;LINK")
  pipewright_unity(sources ${name} 0 ${program_SOURCES})
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE pipewright_options pipewright_unity_options ${program_LINK})
endfunction()
