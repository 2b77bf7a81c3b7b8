# Read by cpack once it knows what it makes: `cpack -G DEB` takes other parts of the tree than the archive, which has all.
if(CPACK_GENERATOR STREQUAL "DEB")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
  set(CPACK_INSTALL_CMAKE_PROJECTS ${build} Pipewright shell / ${build} Pipewright debian /)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  # Its maintainer is who makes it, as Debian's own tools know him.
  if(NOT "$ENV{DEBEMAIL}" STREQUAL "")
    set(name "$ENV{DEBFULLNAME}")
    if("${name}" STREQUAL "")
      set(name "Pipewright developers")
    endif()
    set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${name} <$ENV{DEBEMAIL}>")
  endif()
endif()
