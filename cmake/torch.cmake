# LibTorch as imported targets of our own: find_package(Torch) of a CUDA wheel wants nvcc, a CUDA toolkit and cuDNN even
# for code that runs on the CPU, and links libtorch_cuda.
if(NOT TORCH_ROOT)
  if(DEFINED ENV{TORCH_ROOT})
    set(pipewright_torch $ENV{TORCH_ROOT})
  else()
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup --print-torch-root
                    OUTPUT_VARIABLE pipewright_torch OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(TORCH_ROOT ${pipewright_torch} CACHE PATH "The torch folder of an unpacked PyPI wheel" FORCE)
endif()
if(NOT EXISTS ${TORCH_ROOT}/include/ATen/ATen.h OR NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found: no include/ATen/ATen.h and lib/libtorch_cpu.so under TORCH_ROOT='${TORCH_ROOT}'.\n"
                      "${PIPEWRIGHT_CURE}\nOr point TORCH_ROOT (variable of cmake or environment) to the torch folder of a "
                      "wheel >= 2.11, and remove CMakeCache.txt.")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TORCH_ROOT}/version.py)
set(pipewright_torch_version "unknown")
if(EXISTS ${TORCH_ROOT}/version.py)
  file(STRINGS ${TORCH_ROOT}/version.py pipewright_version_line REGEX "^__version__ *=")
  string(REGEX REPLACE "^[^']*'([^']*)'.*" "\\1" pipewright_torch_version "${pipewright_version_line}")
  string(REGEX REPLACE "[+].*" "" pipewright_torch_number "${pipewright_torch_version}")
  if(pipewright_torch_number VERSION_LESS 2.11)
    message(FATAL_ERROR "LibTorch ${pipewright_torch_version} in ${TORCH_ROOT} is too old: 2.11 or newer is needed.\n${PIPEWRIGHT_CURE}")
  endif()
endif()

foreach(lib c10 torch_cpu)
  add_library(torch::${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION ${TORCH_ROOT}/lib/lib${lib}.so)
endforeach()
target_include_directories(torch::c10 SYSTEM INTERFACE ${TORCH_ROOT}/include
                                                       ${TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
target_compile_definitions(torch::torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO
                                                      PIPEWRIGHT_TORCH_VERSION="${pipewright_torch_version}")
# libtorch_cpu needs cupti and cudart, which our link line does not name; its own RPATH finds them.
target_link_options(torch::torch_cpu INTERFACE -Wl,--allow-shlib-undefined)

# An old-ABI or broken wheel fails here with a reason instead of at the end of the build.
if(NOT PIPEWRIGHT_TORCH_LINKS)
  file(WRITE ${CMAKE_BINARY_DIR}/torch_links.cc
       "#include <c10/util/Exception.h>\n#include <string>\nint main() { try { TORCH_CHECK(false, std::string(\"x\")); } catch (const c10::Error& e) { return std::string(e.what()).empty(); } }\n")
  try_compile(PIPEWRIGHT_TORCH_LINKS ${CMAKE_BINARY_DIR}/torch_links ${CMAKE_BINARY_DIR}/torch_links.cc
              LINK_LIBRARIES torch::c10 CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON OUTPUT_VARIABLE pipewright_output)
  if(NOT PIPEWRIGHT_TORCH_LINKS)
    message(FATAL_ERROR "A small program against LibTorch ${pipewright_torch_version} in ${TORCH_ROOT} does not link.\n"
                        "Likely cause: a wheel with the old C++ ABI, or one for another processor.\n"
                        "${PIPEWRIGHT_CURE}\n${pipewright_output}")
  endif()
endif()

# One precompiled header for all sources that use tensors (21 s and 460 MB once; then 3 s instead of 13 s a source).
# pipewright_tensor_library(NAME SOURCES ... LINK ...): a static library of ours that uses it.
file(WRITE ${CMAKE_BINARY_DIR}/pch_owner.cc "// Only here to own the precompiled header.\n")
add_library(pipewright_tensor_pch STATIC ${CMAKE_BINARY_DIR}/pch_owner.cc)
target_link_libraries(pipewright_tensor_pch PUBLIC pipewright_options torch::torch_cpu)
target_precompile_headers(pipewright_tensor_pch PRIVATE ${CMAKE_CURRENT_LIST_DIR}/tensor_pch.h)
function(pipewright_use_tensors target)
  target_link_libraries(${target} PUBLIC torch::torch_cpu)
  target_precompile_headers(${target} REUSE_FROM pipewright_tensor_pch)
endfunction()
