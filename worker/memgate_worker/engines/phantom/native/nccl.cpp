// libnccl: its version, which is asked for when torch prints its configuration. Everything else is refused by name.
extern "C" int ncclGetVersion(int* version) {
  *version = MEMGATE_NCCL_VERSION;
  return 0;
}
