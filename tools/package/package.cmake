# cmake --install build --prefix P, and `cpack -G DEB --config build/CPackConfig.cmake` for a Debian package.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # tests need not be built
install(TARGETS outrider RUNTIME DESTINATION bin)
if(TARGET outrider_cuda)
  # Where the program looks for it: beside itself, or in ../lib (runtime/ops/gpu/backend.cpp).
  install(TARGETS outrider_cuda LIBRARY DESTINATION lib OPTIONAL)
endif()
install(DIRECTORY models/embedded DESTINATION share/outrider/models)
install(DIRECTORY configs/ DESTINATION share/outrider/configs)
install(FILES README.md DESTINATION share/doc/outrider)
install(FILES LICENSE DESTINATION share/doc/outrider RENAME copyright)
install(FILES tools/package/outrider.service DESTINATION lib/systemd/system)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME outrider)
set(CPACK_PACKAGE_CONTACT "The Outrider authors <outrider@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Language model server with speculative decoding over MPI")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
include(CPack)
