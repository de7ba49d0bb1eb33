// Opening libraries in a link namespace of their own; see link_namespace.h.
#include "link_namespace.h"

namespace memgate::phantom {

// Its libc starts out with a pointer to the variables of ours, which moves them whenever one is added.
LinkNamespace::LinkNamespace() {
  static char* no_variables[] = {nullptr};
  void* libc = open("libc.so.6");
  if (libc == nullptr) return;
  dlinfo(libc, RTLD_DI_LMID, &id_);
  auto* environment = static_cast<char***>(dlsym(libc, "environ"));
  if (environment != nullptr) *environment = no_variables;
}

void* LinkNamespace::open(const std::string& path) { return dlmopen(id_, path.c_str(), RTLD_NOW | RTLD_LOCAL); }

std::string last_problem() {
  const char* told = dlerror();
  return told == nullptr ? "a library could not be opened" : told;
}

std::string own_directory() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&own_directory), &info);
  const std::string path = info.dli_fname == nullptr ? "" : info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

}  // namespace memgate::phantom
