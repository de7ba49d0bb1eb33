// Libraries of NVIDIA's that are opened beside ours: they see each other and nothing of ours, not even our libc.
#pragma once

#include "old_glibc.h"

#include <string>

namespace memgate::phantom {

class LinkNamespace {
 public:
  LinkNamespace();
  void* open(const std::string& path);  // null: last_problem() says why

 private:
  Lmid_t id_ = LM_ID_NEWLM;
};

// What went wrong in the last call of the loader.
std::string last_problem();

// Where libmemgate_phantom.so lies. What those libraries are to find instead of a driver lies below it.
std::string own_directory();

template <typename Function>
bool find_function(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace memgate::phantom
