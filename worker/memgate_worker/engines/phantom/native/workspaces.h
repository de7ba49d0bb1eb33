// Which memory cuDNN was lent as a workspace. PyTorch can do without most of it: when there is none to be had it takes
// the next plan, which wants less. So it matters which blocks these were.
#pragma once

#include <cstdint>

namespace memgate::phantom {

// Read by worker/memgate_worker/hook/memgate_hook/phantom.py: keep the two alike.
struct WorkspaceMark {
  int64_t position;  // among the events of the allocator
  int64_t address;
};

// From now on workspaces are noted, each with what `position` says at that moment.
void watch_workspaces(int64_t (*position)());
void note_workspace(uint64_t address);  // nothing happens unless they are watched

int64_t num_workspaces();
const WorkspaceMark* workspaces();  // valid until the next is noted

// A workspace that the real cuDNN might have wanted, where it is not there to be asked: nothing is allocated for it.
// Read by worker/memgate_worker/hook/memgate_hook/phantom.py: keep the two alike.
struct PossibleWorkspace {
  int64_t position;
  int64_t bytes;
  int64_t is_forward;
};

void note_possible_workspace(int64_t bytes, bool is_forward);  // nothing happens unless they are watched

int64_t num_possible_workspaces();
const PossibleWorkspace* possible_workspaces();  // valid until the next is noted

}  // namespace memgate::phantom
