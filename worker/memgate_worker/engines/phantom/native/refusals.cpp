// The list of refused calls; see refusals.h.
#include "refusals.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace memgate::phantom {
namespace {
std::mutex mutex;
std::set<std::string> seen;
std::string list;
std::string latest = "memgate phantom: no call was refused";
}  // namespace

long refuse(const char* call, long status) {
  const std::lock_guard<std::mutex> lock(mutex);
  latest = std::string("memgate phantom: ") + call + " is not modelled";
  if (seen.insert(call).second) {
    list += (list.empty() ? "" : "\n") + std::string(call);
    std::fprintf(stderr, "%s\n", latest.c_str());
  }
  return status;
}

const char* refused_calls() {
  const std::lock_guard<std::mutex> lock(mutex);
  return list.c_str();
}

const char* last_refusal() {
  const std::lock_guard<std::mutex> lock(mutex);
  return latest.c_str();
}

}  // namespace memgate::phantom
