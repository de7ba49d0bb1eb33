// What the real cuDNN finds where it looks for the driver and for cuBLASLt: the names, and nothing behind them.
//
// It looks them up before it knows whether it will use them, and ends the process if one is missing. Every call fails,
// which it takes as "this engine cannot be used here" (no plan for a convolution was seen to depend on it).
#include <cstddef>

namespace {
enum { kNoDevice = 100, kNotInitialized = 1 };
}

extern "C" {

int cuGetErrorString() { return kNoDevice; }
int cuModuleGetFunction() { return kNoDevice; }
int cuModuleLoadData() { return kNoDevice; }
int cuModuleUnload() { return kNoDevice; }
int cuTensorMapEncodeIm2col() { return kNoDevice; }
int cuTensorMapEncodeTiled() { return kNoDevice; }

size_t cublasLtGetVersion() { return MEMGATE_CUBLAS_VERSION; }
int cublasLtGetProperty() { return kNotInitialized; }
int cublasLtCreate() { return kNotInitialized; }
int cublasLtDestroy() { return kNotInitialized; }
int cublasLtGroupedMatrixLayoutCreate() { return kNotInitialized; }
int cublasLtMatmul() { return kNotInitialized; }
int cublasLtMatmulAlgoGetHeuristic() { return kNotInitialized; }
int cublasLtMatmulDescCreate() { return kNotInitialized; }
int cublasLtMatmulDescDestroy() { return kNotInitialized; }
int cublasLtMatmulDescGetAttribute() { return kNotInitialized; }
int cublasLtMatmulDescInit_internal() { return kNotInitialized; }
int cublasLtMatmulDescSetAttribute() { return kNotInitialized; }
int cublasLtMatmulPreferenceCreate() { return kNotInitialized; }
int cublasLtMatmulPreferenceDestroy() { return kNotInitialized; }
int cublasLtMatmulPreferenceInit_internal() { return kNotInitialized; }
int cublasLtMatmulPreferenceSetAttribute() { return kNotInitialized; }
int cublasLtMatrixLayoutCreate() { return kNotInitialized; }
int cublasLtMatrixLayoutDestroy() { return kNotInitialized; }
int cublasLtMatrixLayoutGetAttribute() { return kNotInitialized; }
int cublasLtMatrixLayoutInit_internal() { return kNotInitialized; }
int cublasLtMatrixLayoutSetAttribute() { return kNotInitialized; }
int cublasLtMatrixTransform() { return kNotInitialized; }
int cublasLtMatrixTransformDescCreate() { return kNotInitialized; }
int cublasLtMatrixTransformDescDestroy() { return kNotInitialized; }
int cublasLtMatrixTransformDescGetAttribute() { return kNotInitialized; }
int cublasLtMatrixTransformDescInit_internal() { return kNotInitialized; }
int cublasLtMatrixTransformDescSetAttribute() { return kNotInitialized; }

}
