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
function(pipewright_unity target)
  if(NOT PIPEWRIGHT_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes a type in an unnamed namespace of an #included source for one of a header.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "${target}_${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# pipewright_library(NAME SOURCES ... LINK ...): a static library of ours.
function(pipewright_library name)
  cmake_parse_arguments(PARSE_ARGV 1 lib "" "" "SOURCES;LINK")
  add_library(${name} STATIC ${lib_SOURCES})
  target_link_libraries(${name} PUBLIC pipewright_options ${lib_LINK})
  pipewright_unity(${name})
endfunction()

# pipewright_program(NAME SOURCES ... LINK ...): one of the three programs.
function(pipewright_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;LINK")
  add_executable(${name} ${program_SOURCES})
  target_link_libraries(${name} PRIVATE pipewright_options ${program_LINK})
  pipewright_unity(${name})
endfunction()
