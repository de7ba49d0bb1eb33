// What the compiler and the templates of the C++ library expect to find at run time, as far as our stand-ins use it.
//
// A stand-in is loaded into a stranger's process, next to whatever libstdc++ is there, on any glibc from 2.28 on. So it
// brings these few functions along, hidden, and depends on the C library alone. Nothing here throws: our sources are
// compiled without exceptions, and what would throw (no memory left, a string beyond all bounds) ends the process.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

namespace {

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "memgate phantom: %s\n", what);
  std::abort();
}

// One lock for the first use of all static variables; recursive, because one may be initialised by way of another.
pthread_mutex_t guard_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

}  // namespace

// The members of std::string, which are otherwise taken from the shared library.
template class std::basic_string<char>;

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) give_up("out of memory of this machine");
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace std {
void __throw_length_error(const char* what) { give_up(what); }
void __throw_logic_error(const char* what) { give_up(what); }
void __throw_out_of_range_fmt(const char* what, ...) { give_up(what); }
void __throw_system_error(int) { give_up("a lock failed"); }
void __throw_bad_alloc() { give_up("out of memory of this machine"); }
void __throw_bad_array_new_length() { give_up("an array beyond all bounds"); }
}  // namespace std

extern "C" {

int __cxa_guard_acquire(char* guard) {
  pthread_mutex_lock(&guard_mutex);
  if (*guard == 0) return 1;
  pthread_mutex_unlock(&guard_mutex);
  return 0;
}

void __cxa_guard_release(char* guard) {
  __atomic_store_n(guard, 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&guard_mutex);
}

int __cxa_thread_atexit_impl(void (*destroy)(void*), void* object, void* library);
int __cxa_thread_atexit(void (*destroy)(void*), void* object, void* library) {
  return __cxa_thread_atexit_impl(destroy, object, library);
}

void __cxa_pure_virtual() { give_up("a function that does not exist"); }

// The C library has this from 2.32 on, to spare atomic operations. Never: there may be other threads.
char __libc_single_threaded = 0;
}
