// Calls of the driver by name; see driver_calls.h.
#include "driver_calls.h"

#include <string>

#include "old_glibc.h"

namespace memgate::phantom {

void* find_driver_call(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return nullptr;
  // A caller names cuMemAlloc and means what its header makes of that.
  void* const second = dlsym(driver, (std::string(name) + "_v2").c_str());
  return second != nullptr ? second : dlsym(driver, name);
}

}  // namespace memgate::phantom
