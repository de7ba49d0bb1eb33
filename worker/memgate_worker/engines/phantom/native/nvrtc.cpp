// libnvrtc: compiles nothing, successfully.
//
// PyTorch compiles some element-wise kernels (erfinv and other special functions) while it runs. Their buffers are
// allocated by PyTorch, so an empty program is as good as a real one here. driver.cpp loads and launches it.
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "refusals.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kNameExpressionNotValid = 10;

// PyTorch only passes the code on to the driver; it must not be empty.
constexpr char kCode[] = "phantom";

struct Program {
  std::map<std::string, std::string> names;  // expression -> mangled name
};

int copy_code(char* code) {
  std::memcpy(code, kCode, sizeof kCode);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = MEMGATE_CUDA_VERSION / 1000;
  *minor = MEMGATE_CUDA_VERSION % 1000 / 10;
  return kSuccess;
}

const char* nvrtcGetErrorString(int status) {
  return status == kSuccess ? "NVRTC_SUCCESS" : memgate::phantom::last_refusal();
}

int nvrtcCreateProgram(Program** program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = new Program;
  return kSuccess;
}

int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}

int nvrtcAddNameExpression(Program* program, const char* expression) {
  program->names[expression] = "phantom_kernel_" + std::to_string(program->names.size());
  return kSuccess;
}

int nvrtcCompileProgram(Program*, int, const char* const*) { return kSuccess; }

int nvrtcGetLoweredName(Program* program, const char* expression, const char** name) {
  const auto found = program->names.find(expression);
  if (found == program->names.end()) return kNameExpressionNotValid;
  *name = found->second.c_str();
  return kSuccess;
}

int nvrtcGetCUBINSize(Program*, size_t* bytes) {
  *bytes = sizeof kCode;
  return kSuccess;
}

int nvrtcGetCUBIN(Program*, char* code) { return copy_code(code); }

int nvrtcGetPTXSize(Program*, size_t* bytes) {
  *bytes = sizeof kCode;
  return kSuccess;
}

int nvrtcGetPTX(Program*, char* code) { return copy_code(code); }

int nvrtcGetProgramLogSize(Program*, size_t* bytes) {
  *bytes = 1;
  return kSuccess;
}

int nvrtcGetProgramLog(Program*, char* log) {
  *log = '\0';
  return kSuccess;
}

}
