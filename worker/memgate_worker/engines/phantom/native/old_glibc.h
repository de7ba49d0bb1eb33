// Binds functions that moved within glibc to the versions that every glibc from 2.28 on has.
//
// In 2.34 the functions of libdl went into libc, under a new version. Built there, a library would not load on anything
// older; the versions of before are still there, for programs of before. log has been faster since 2.29.
#pragma once

#include <dlfcn.h>

#include <cmath>

#if defined(__x86_64__)
#define MEMGATE_OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
MEMGATE_OLD(dladdr, "2.2.5");
MEMGATE_OLD(dlerror, "2.2.5");
MEMGATE_OLD(dlinfo, "2.3.3");
MEMGATE_OLD(dlmopen, "2.3.4");
MEMGATE_OLD(dlopen, "2.2.5");
MEMGATE_OLD(dlsym, "2.2.5");
MEMGATE_OLD(log, "2.2.5");
#undef MEMGATE_OLD
#endif
