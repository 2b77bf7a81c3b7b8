# Read by find_package(pipewright): gives pipewright::graph, pipewright::pages, pipewright::schedule, pipewright::optimizer.
include(CMakeFindDependencyMacro)
find_dependency(Boost 1.74)
find_dependency(nlohmann_json 3.11)
include(${CMAKE_CURRENT_LIST_DIR}/targets.cmake)
