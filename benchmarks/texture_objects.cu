// Ten layers of four channels as one layered, mip-mapped CUDA texture in half precision, sampled by the texture units.
// Built and called by texture_objects.py; every function returns a cudaError_t, 0 when all is well.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

struct Texture {
    cudaMipmappedArray_t levels;
    cudaTextureObject_t object;
    int layers;
};

// points [n, 2] in [0, 1] and levels [n] to out [n, layers * 4].
__global__ void read(cudaTextureObject_t texture, const float2* points, const float* levels, float4* out, int n, int layers) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * layers) return;
    int point = i / layers, layer = i % layers;
    float2 p = points[point];
    out[i] = tex2DLayeredLod<float4>(texture, p.x, p.y, layer, levels[point]);
}

extern "C" int make_texture(Texture** made, int height, int width, int layers, int levels) {
    Texture* texture = new Texture{nullptr, 0, layers};
    cudaChannelFormatDesc kind = cudaCreateChannelDescHalf4();
    cudaError_t error = cudaMallocMipmappedArray(
        &texture->levels, &kind, make_cudaExtent(width, height, layers), levels, cudaArrayLayered);
    if (error != cudaSuccess) { delete texture; return error; }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = texture->levels;
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    how.filterMode = cudaFilterModeLinear;
    how.mipmapFilterMode = cudaFilterModeLinear;
    how.readMode = cudaReadModeElementType;
    how.normalizedCoords = 1;
    how.maxMipmapLevelClamp = static_cast<float>(levels - 1);
    error = cudaCreateTextureObject(&texture->object, &resource, &how, nullptr);
    *made = texture;
    return error;
}

// One level from device memory [layers, height, width, 4] of halves.
extern "C" int fill_level(Texture* texture, int level, const void* source, int height, int width, void* stream) {
    cudaArray_t target;
    cudaError_t error = cudaGetMipmappedArrayLevel(&target, texture->levels, level);
    if (error != cudaSuccess) return error;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<void*>(source), width * 8, width, height);
    copy.dstArray = target;
    copy.extent = make_cudaExtent(width, height, texture->layers);
    copy.kind = cudaMemcpyDeviceToDevice;
    return cudaMemcpy3DAsync(&copy, static_cast<cudaStream_t>(stream));
}

extern "C" int sample(Texture* texture, const void* points, const void* levels, void* out, int n, void* stream) {
    int work = n * texture->layers;
    read<<<(work + 127) / 128, 128, 0, static_cast<cudaStream_t>(stream)>>>(
        texture->object, static_cast<const float2*>(points), static_cast<const float*>(levels), static_cast<float4*>(out), n,
        texture->layers);
    return cudaGetLastError();
}

extern "C" int drop_texture(Texture* texture) {
    cudaError_t error = cudaDestroyTextureObject(texture->object);
    if (error == cudaSuccess) error = cudaFreeMipmappedArray(texture->levels);
    delete texture;
    return error;
}
