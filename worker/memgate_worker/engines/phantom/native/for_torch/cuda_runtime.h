// PyTorch's headers include this one too; see cuda_runtime_api.h.
#include "cuda_runtime_api.h"
