// Looking up calls of the driver by name, as the runtime and the driver offer it.
#pragma once

namespace memgate::phantom {

// The newest form of a call that our libcuda exports, modelled or not; null if it has no such call.
void* find_driver_call(const char* name);

}  // namespace memgate::phantom
