// The registry of kernels; see kernels.h.
#include "kernels.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace memgate::phantom {
namespace {

// Layout of what nvcc embeds, as far as it is read here: a wrapper that points to a container of images.
constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kContainerMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;
constexpr uint16_t kMachineCode = 2;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const unsigned char* container;
};

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t images_bytes;
};

struct ImageHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t unused[3];
  uint32_t architecture;
};

struct Image {
  uint16_t kind;
  int architecture;
};

// All kernels of one translation unit.
struct Container {
  const unsigned char* data = nullptr;  // null: not in a form we know
  bool read = false;
  std::vector<Image> images = {};
};

std::mutex mutex;
std::unordered_map<const void*, Container*> kernels;

// Only when asked for: reading every container while torch is imported would page in half a gigabyte of file.
void read_images(Container& container) {
  if (container.read) return;
  container.read = true;
  if (container.data == nullptr) return;
  ContainerHeader header;
  std::memcpy(&header, container.data, sizeof header);
  if (header.magic != kContainerMagic) return;
  const unsigned char* position = container.data + header.header_bytes;
  const unsigned char* end = position + header.images_bytes;
  while (position + sizeof(ImageHeader) <= end) {
    ImageHeader image;
    std::memcpy(&image, position, sizeof image);
    if (image.header_bytes < sizeof image) return;
    container.images.push_back({image.kind, static_cast<int>(image.architecture)});
    position += image.header_bytes + image.bytes;
  }
}

int best_architecture(const std::vector<Image>& images, int capability) {
  int machine_code = 0;
  int ptx = 0;
  for (const Image& image : images) {
    if (image.architecture > capability) continue;
    if (image.kind == kMachineCode && image.architecture / 10 == capability / 10)
      machine_code = std::max(machine_code, image.architecture);
    if (image.kind == kPtx) ptx = std::max(ptx, image.architecture);
  }
  return machine_code != 0 ? machine_code : ptx;
}

}  // namespace

void* register_image(const void* wrapper) {
  Wrapper head;
  std::memcpy(&head, wrapper, sizeof head);
  auto* container = new Container;
  if (head.magic == kWrapperMagic) container->data = head.container;
  return container;
}

void register_kernel(void* image, const void* host_function) {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels[host_function] = static_cast<Container*>(image);
}

// At the end of the process libraries are torn down in no useful order: the containers are left to the system.
void unregister_image(void*) {}

int kernel_architecture(const void* host_function, int capability) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = kernels.find(host_function);
  if (found == kernels.end()) return capability;
  Container& container = *found->second;
  read_images(container);
  return container.images.empty() ? capability : best_architecture(container.images, capability);
}

}  // namespace memgate::phantom
