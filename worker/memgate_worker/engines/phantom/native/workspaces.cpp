// The list of workspaces; see workspaces.h.
#include "workspaces.h"

#include <mutex>
#include <vector>

namespace memgate::phantom {
namespace {
std::mutex mutex;  // backward runs on a thread of its own
std::vector<WorkspaceMark> marks;
std::vector<PossibleWorkspace> possible;
int64_t (*position_now)() = nullptr;
}  // namespace

void watch_workspaces(int64_t (*position)()) {
  const std::lock_guard<std::mutex> lock(mutex);
  position_now = position;
}

void note_workspace(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (position_now != nullptr && address != 0) marks.push_back({position_now(), static_cast<int64_t>(address)});
}

int64_t num_workspaces() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(marks.size());
}

const WorkspaceMark* workspaces() {
  const std::lock_guard<std::mutex> lock(mutex);
  return marks.data();
}

void note_possible_workspace(int64_t bytes, bool is_forward) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (position_now != nullptr && bytes > 0) possible.push_back({position_now(), bytes, is_forward ? 1 : 0});
}

int64_t num_possible_workspaces() {
  const std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(possible.size());
}

const PossibleWorkspace* possible_workspaces() {
  const std::lock_guard<std::mutex> lock(mutex);
  return possible.data();
}

}  // namespace memgate::phantom
