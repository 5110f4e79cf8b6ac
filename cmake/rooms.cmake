# A room is a folder of src/: an object library, and tests that stand beside the files they test.
#
#   dt_room(core SOURCES a.c b.c TESTS a_test.c b_test.c)
#
# Each test is a cmocka program linked with the static library, so that it sees library-private symbols.
set_property(GLOBAL PROPERTY dt_room_objects "")
set_property(GLOBAL PROPERTY dt_room_tests "")

function(dt_add_room folder)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt)
        add_subdirectory(${folder})
    endif()
endfunction()

function(dt_room name)
    cmake_parse_arguments(ARG "" "" "SOURCES;TESTS" ${ARGN})
    add_library(deltune_${name} OBJECT ${ARG_SOURCES})
    target_link_libraries(deltune_${name} PRIVATE dt_flags dt_deps)
    set_property(GLOBAL APPEND PROPERTY dt_room_objects $<TARGET_OBJECTS:deltune_${name}>)
    foreach(test ${ARG_TESTS})
        set_property(GLOBAL APPEND PROPERTY dt_room_tests ${name}=${CMAKE_CURRENT_SOURCE_DIR}/${test})
    endforeach()
endfunction()

# libdeltune.a and libdeltune.so from all rooms so far.
function(dt_libraries)
    get_property(objects GLOBAL PROPERTY dt_room_objects)
    add_library(deltune_static STATIC ${objects})
    set_target_properties(deltune_static PROPERTIES OUTPUT_NAME deltune)
    target_link_libraries(deltune_static PUBLIC dt_flags dt_deps)
    add_library(deltune_shared SHARED ${objects})
    set_target_properties(deltune_shared PROPERTIES OUTPUT_NAME deltune VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
    target_link_libraries(deltune_shared PRIVATE dt_flags dt_deps_shared)
    target_link_options(deltune_shared PRIVATE -Wl,--exclude-libs,ALL)
endfunction()

# cmake --install: libraries, headers, pkg-config file (the program adds itself in src/cli).
function(dt_install)
    install(TARGETS deltune_static deltune_shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/deltune DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    # What a program linked with libdeltune.a needs besides: the archives themselves, or -l flags of what was shared.
    set(dt_pc_private_libs "")
    get_target_property(dependencies dt_deps INTERFACE_LINK_LIBRARIES)
    foreach(dependency ${dependencies})
        if(TARGET ${dependency})
            get_target_property(dependency ${dependency} INTERFACE_LINK_LIBRARIES)
        endif()
        list(APPEND dt_pc_private_libs ${dependency})
    endforeach()
    list(JOIN dt_pc_private_libs " " dt_pc_private_libs)
    # Relative to the file itself, so that `cmake --install --prefix` needs no second configure.
    file(RELATIVE_PATH dt_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/deltune.pc.in ${PROJECT_BINARY_DIR}/deltune.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/deltune.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# One test program; `room` is its CTest label and the prefix of its name.
function(dt_test room source)
    get_filename_component(stem ${source} NAME_WE)
    set(target ${room}_${stem})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE deltune_static cmocka)
    target_compile_definitions(${target} PRIVATE
        DT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" DT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" DT_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
    add_test(NAME ${room}/${stem} COMMAND ${target})
    # Tests run side by side: waiting threads must not spin (cli/main.c has the same for the program).
    set_tests_properties(${room}/${stem} PROPERTIES LABELS ${room} TIMEOUT 300 SKIP_RETURN_CODE 77 ENVIRONMENT GOMP_SPINCOUNT=1000)
endfunction()

function(dt_build_tests)
    if(NOT DELTUNE_TESTS)
        return()
    endif()
    get_property(tests GLOBAL PROPERTY dt_room_tests)
    foreach(entry ${tests})
        string(REGEX MATCH "^([^=]+)=(.*)$" _ ${entry})
        dt_test(${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    endforeach()
endfunction()
