# Finds the libraries deltune stands on. Each is an imported target dt_dep_<name>.
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)

# Programs and libdeltune.a take static archives (target dt_deps) when DELTUNE_STATIC_DEPS is on and they are
# installed; libdeltune.so takes the shared libraries (target dt_deps_shared): distributions build archives without PIC.
add_library(dt_deps INTERFACE)
add_library(dt_deps_shared INTERFACE)

function(dt_dependency name includes shared archive)
    target_include_directories(dt_deps SYSTEM INTERFACE ${includes})
    target_link_libraries(dt_deps_shared INTERFACE ${shared})
    if(DELTUNE_STATIC_DEPS AND archive)
        target_link_libraries(dt_deps INTERFACE ${archive})
    else()
        target_link_libraries(dt_deps INTERFACE ${shared})
    endif()
endfunction()

foreach(package jansson libpcre2-8 libutf8proc libxxhash)
    pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
    string(REGEX REPLACE "^lib" "" archive_stem ${package})
    find_library(dt_archive_${package} NAMES lib${archive_stem}.a HINTS ${${package}_LIBDIR} ${${package}_LIBRARY_DIRS})
    dt_dependency(${package} "${${package}_INCLUDE_DIRS}" PkgConfig::${package} "${dt_archive_${package}}")
endforeach()

# OpenBLAS is no dependency: the benchmarks take its speed as the yardstick of our own matrix products when it is here.
find_path(dt_openblas_include cblas.h PATH_SUFFIXES openblas-openmp openblas x86_64-linux-gnu/openblas-openmp
          PATHS /usr/include/x86_64-linux-gnu /usr/include)
find_library(dt_openblas_library NAMES libopenblas.a openblas PATH_SUFFIXES openblas-openmp PATHS /usr/lib/x86_64-linux-gnu)
if(dt_openblas_include AND dt_openblas_library)
    add_library(dt_openblas INTERFACE)
    target_include_directories(dt_openblas SYSTEM INTERFACE ${dt_openblas_include})
    target_link_libraries(dt_openblas INTERFACE ${dt_openblas_library})
endif()

# OpenMP's run-time library: compiling needs the flag alone, linking takes GCC's archive where static is wanted.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libgomp.a
                    OUTPUT_VARIABLE dt_gomp_archive OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT IS_ABSOLUTE "${dt_gomp_archive}")
    set(dt_gomp_archive "")
endif()
dt_dependency(openmp "${OpenMP_C_INCLUDE_DIRS}" "${OpenMP_C_LIBRARIES}" "${dt_gomp_archive}")

add_library(dt_flags INTERFACE)
target_compile_options(dt_flags INTERFACE -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wwrite-strings -Wno-missing-field-initializers
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes> -ffp-contract=off -fno-math-errno)
target_compile_definitions(dt_flags INTERFACE _GNU_SOURCE)
target_include_directories(dt_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
target_compile_options(dt_flags INTERFACE ${OpenMP_C_FLAGS})
target_link_libraries(dt_flags INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
if(DELTUNE_SANITIZE)
    target_compile_options(dt_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    target_link_options(dt_flags INTERFACE -fsanitize=address,undefined)
endif()
if(DELTUNE_TSAN)
    target_compile_options(dt_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(dt_flags INTERFACE -fsanitize=thread)
endif()
if(DELTUNE_FUZZ)
    target_compile_options(dt_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
