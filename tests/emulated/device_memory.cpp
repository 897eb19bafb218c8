// See device_memory.h.
#include "tests/emulated/device_memory.h"

#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "runtime/base/error.h"

namespace outrider::gpu::emulated {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 256;  // that kernels may count on

struct Block {
  size_t num_bytes = 0;
  int file = -1;  // that it lies in, once shared
};

// Of this process.
struct Ledger {
  std::mutex mutex;
  std::map<void*, Block> taken;
  std::map<void*, size_t> opened;
};
Ledger& ledger() {
  static Ledger ledger;
  return ledger;
}

// What a MemoryHandle holds.
struct Place {
  uint64_t process = 0;
  uint64_t file = 0;
  uint64_t num_bytes = 0;
};

bool write_all(int file, const void* from, size_t num_bytes) {
  for (size_t at = 0; at < num_bytes;) {
    const ssize_t written = pwrite(
        file, static_cast<const std::byte*>(from) + at, num_bytes - at, static_cast<off_t>(at));
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

// The block's pages, replaced by those of a file with the same contents.
int move_into_file(void* block, size_t num_bytes) {
  const int file = memfd_create("outrider-emulated-gpu", MFD_CLOEXEC);
  if (file >= 0 && write_all(file, block, num_bytes)) {
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    if (mmap(block, num_bytes, kAccess, MAP_SHARED | MAP_FIXED, file, 0) == block) return file;
  }
  if (file >= 0) close(file);
  throw Error("an emulated GPU cannot share memory with other processes");
}

}  // namespace

// What is behind the bytes that were asked for is nobody's: said to the address sanitizer, where
// this is built with it.
void* take_block(size_t num_bytes) {
  const size_t rounded =
      std::max<size_t>(1, (num_bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
  void* const block = std::aligned_alloc(kPageBytes, rounded);
  if (block == nullptr) return nullptr;
  std::memset(block, 0xff, rounded);
  const size_t used = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  ASAN_POISON_MEMORY_REGION(static_cast<std::byte*>(block) + used, rounded - used);
  const std::lock_guard lock(ledger().mutex);
  ledger().taken[block] = {.num_bytes = rounded};
  return block;
}

void give_back_block(void* block) noexcept {
  if (block == nullptr) return;
  const std::lock_guard lock(ledger().mutex);
  const auto at = ledger().taken.find(block);
  OUTRIDER_CHECK(at != ledger().taken.end());
  const auto [num_bytes, file] = at->second;
  ledger().taken.erase(at);
  ASAN_UNPOISON_MEMORY_REGION(block, num_bytes);
  if (file >= 0) {
    // The allocator's pages are its own again.
    mmap(block, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    close(file);
  }
  std::free(block);
}

MemoryHandle share_block(void* memory) {
  const std::lock_guard lock(ledger().mutex);
  const auto at = ledger().taken.find(memory);
  if (at == ledger().taken.end())
    throw Error("what is to be shared is no block of an emulated GPU");
  Block& block = at->second;
  ASAN_UNPOISON_MEMORY_REGION(memory, block.num_bytes);
  if (block.file < 0) block.file = move_into_file(memory, block.num_bytes);
  const Place place = {.process = static_cast<uint64_t>(getpid()),
                       .file = static_cast<uint64_t>(block.file),
                       .num_bytes = block.num_bytes};
  MemoryHandle handle{};
  static_assert(sizeof place <= sizeof handle);
  std::memcpy(handle.data(), &place, sizeof place);
  return handle;
}

void* open_block(const MemoryHandle& handle) {
  Place place;
  std::memcpy(&place, handle.data(), sizeof place);
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = MAP_FAILED;
  if (file >= 0) {
    if (lseek(file, 0, SEEK_END) == static_cast<off_t>(place.num_bytes)) {
      memory = mmap(nullptr, place.num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    close(file);
  }
  if (memory == MAP_FAILED) {
    throw Error("an emulated GPU cannot open the memory of process " +
                std::to_string(place.process));
  }
  const std::lock_guard lock(ledger().mutex);
  ledger().opened[memory] = place.num_bytes;
  return memory;
}

void close_block(void* opened) noexcept {
  const std::lock_guard lock(ledger().mutex);
  const auto at = ledger().opened.find(opened);
  if (at == ledger().opened.end()) return;
  munmap(opened, at->second);
  ledger().opened.erase(at);
}

}  // namespace outrider::gpu::emulated
