# Read by cpack once it knows what it makes: `cpack -G DEB` takes other parts of the tree than the archive, which has all.
if(CPACK_GENERATOR STREQUAL "DEB")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
  set(CPACK_INSTALL_CMAKE_PROJECTS ${build} Pipewright shell / ${build} Pipewright debian /)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
endif()
