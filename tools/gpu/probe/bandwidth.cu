// How fast can the device's memory be read? Reading only, since decoding reads weights and writes
// next to nothing; a copy's figure would set the ceiling too low. Three ways of reading, each with
// a few shapes of the grid: plain 16-byte loads, cp.async, and one-dimensional bulk copies (sm_90).
// Every way folds the same xor over the data, and a way whose xor is wrong is a failure, not a
// figure.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/read_kernels.cuh"

namespace outrider::gpu_probe {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGrain = 128 * 1024;  // every kernel reads whole multiples of this

using Reader = void (*)(const uint4*, size_t, unsigned*);

struct Way {
  std::string name;
  Reader kernel = nullptr;
  LaunchShape shape;
};

int blocks_per_sm(const Way& way) {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, way.kernel, way.shape.threads, way.shape.shared_bytes),
        "asking for the occupancy");
  return blocks;
}

// One entry per grid: as many blocks as fit at once, and twice that.
void add_way(std::vector<Way>& ways,
             const std::string& name,
             Reader kernel,
             int threads,
             size_t shared,
             int num_sms) {
  if (shared > 0) {
    check(cudaFuncSetAttribute(
              kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "asking for shared memory");
  }
  Way way{name, kernel, {0, threads, shared, false}};
  const int fit = blocks_per_sm(way);
  for (const int waves : {1, 2}) {
    way.shape.blocks = fit * num_sms * waves;
    way.name = name + ", " + std::to_string(threads) + " threads, " + std::to_string(fit) +
               " blocks per SM x " + std::to_string(waves);
    if (fit > 0) {
      ways.push_back(way);
    }
  }
}

std::vector<Way> all_ways(const cudaDeviceProp& device) {
  std::vector<Way> ways;
  const int sms = device.multiProcessorCount;
  for (const int threads : {256, 512, 1024}) {
    add_way(ways, "plain loads, 4 per turn", read_plain<4, 1024>, threads, 0, sms);
    add_way(ways, "plain loads, 8 per turn", read_plain<8, 1024>, threads, 0, sms);
  }
  add_way(ways, "plain loads, 16 per turn", read_plain<16, 256>, 256, 0, sms);
  for (const int threads : {128, 256}) {
    const auto stage_bytes = static_cast<size_t>(threads) * 16;
    add_way(ways, "cp.async, 4 stages", read_cp_async<4>, threads, 4 * stage_bytes, sms);
    add_way(ways, "cp.async, 8 stages", read_cp_async<8>, threads, 8 * stage_bytes, sms);
  }
  if (device.major >= 9) {
    add_way(ways, "bulk, 6 x 8 KiB", read_bulk<8192, 6>, 128, bulk_shared_bytes<8192, 6>(), sms);
    add_way(ways, "bulk, 4 x 16 KiB", read_bulk<16384, 4>, 256, bulk_shared_bytes<16384, 4>(), sms);
    add_way(ways, "bulk, 6 x 16 KiB", read_bulk<16384, 6>, 256, bulk_shared_bytes<16384, 6>(), sms);
    add_way(ways, "bulk, 6 x 32 KiB", read_bulk<32768, 6>, 512, bulk_shared_bytes<32768, 6>(), sms);
  }
  return ways;
}

struct Pool {
  const uint4* data;
  size_t bytes;
  unsigned* sum;
  cudaStream_t stream;
};

void read_piece(
    const Pool& pool, const Way& way, size_t piece_bytes, int index, bool programmatic) {
  const size_t pieces = std::max<size_t>(1, pool.bytes / piece_bytes);
  const size_t offset = static_cast<size_t>(index) % pieces * piece_bytes;
  LaunchShape shape = way.shape;
  shape.programmatic = programmatic;
  launch(way.kernel, shape, pool.stream, pool.data + offset / 16, piece_bytes / 16, pool.sum);
}

// GB/s of reading pieces one after the other, a graph node each, all over the pool so that no piece
// is in the L2 when its turn comes.
double gb_per_s(const Pool& pool, const Way& way, size_t piece_bytes, bool programmatic) {
  const int nodes = static_cast<int>(std::clamp<size_t>(8192 * kMiB / piece_bytes, 2, 200));
  const double us = us_per_node(
      pool.stream, nodes, 5, [&](int i) { read_piece(pool, way, piece_bytes, i, programmatic); });
  return static_cast<double>(piece_bytes) / us / 1e3;
}

unsigned xor_of(const Pool& pool, const Way& way, size_t bytes) {
  unsigned sum = 0;
  check(cudaMemsetAsync(pool.sum, 0, sizeof(sum), pool.stream), "clearing the sum");
  read_piece(pool, way, bytes, 0, false);
  check(cudaMemcpyAsync(&sum, pool.sum, sizeof(sum), cudaMemcpyDefault, pool.stream),
        "reading the sum");
  check(cudaStreamSynchronize(pool.stream), way.name.c_str());
  return sum;
}

std::vector<Way> best_of_each(const Pool& pool, const cudaDeviceProp& device, Report& report) {
  const size_t check_bytes = 48 * kMiB + kGrain;
  std::vector<Way> best;
  std::vector<double> best_rate;
  Table& table = report.table("Ways of reading, 2 GiB pieces", {"way", "GB/s"});
  double highest = 0;
  const unsigned expected = xor_of(pool, all_ways(device).front(), check_bytes);
  for (const Way& way : all_ways(device)) {
    if (xor_of(pool, way, check_bytes) != expected || expected == 0) {
      table.rows.push_back({way.name, "read something else than plain loads"});
      continue;
    }
    const double rate = gb_per_s(pool, way, std::min(2048 * kMiB, pool.bytes), false);
    table.rows.push_back({way.name, number(rate, 0)});
    highest = std::max(highest, rate);
    report.value("read_ceiling_gb_s", highest);
    report.save("running");
    const std::string kind = way.name.substr(0, way.name.find(','));
    const auto same = std::find_if(best.begin(), best.end(), [&](const Way& other) {
      return other.name.substr(0, kind.size()) == kind;
    });
    if (same == best.end()) {
      best.push_back(way);
      best_rate.push_back(rate);
    } else if (rate > best_rate[static_cast<size_t>(same - best.begin())]) {
      best_rate[static_cast<size_t>(same - best.begin())] = rate;
      *same = way;
    }
  }
  return best;
}

double size_table(const Pool& pool,
                  const std::vector<Way>& best,
                  const std::string& title,
                  const std::vector<double>& sizes_mb,
                  bool with_programmatic,
                  Report& report) {
  std::vector<std::string> columns{"MB per piece"};
  for (const Way& way : best) {
    columns.push_back(way.name);
    if (with_programmatic) {
      columns.push_back("same, dependent launch");
    }
  }
  Table& table = report.table(title, columns);
  double highest = 0;
  for (const double megabytes : sizes_mb) {
    const size_t bytes = static_cast<size_t>(megabytes * 1e6) / kGrain * kGrain;
    if (bytes > pool.bytes) {
      continue;
    }
    table.rows.push_back({number(megabytes, 1)});
    for (const Way& way : best) {
      const double rate = gb_per_s(pool, way, bytes, false);
      highest = std::max(highest, rate);
      table.rows.back().push_back(number(rate, 0));
      if (with_programmatic) {
        table.rows.back().push_back(number(gb_per_s(pool, way, bytes, true), 0));
      }
    }
    report.save("running");
  }
  return highest;
}

}  // namespace

void probe_bandwidth(Report& report) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "asking for the device's properties");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the free memory");
  const size_t bytes = std::min(8192 * kMiB, free_bytes / 2 / kMiB * kMiB);
  const Stream stream;
  const DeviceBuffer data(bytes);
  const DeviceBuffer sum(sizeof(unsigned));
  fill_random_bf16(data.as<void>(), bytes / 2, 1.0f, 1, stream);
  const Pool pool{data.as<uint4>(), bytes, sum.as<unsigned>(), stream};

  const std::vector<Way> best = best_of_each(pool, device, report);
  const double ceiling = size_table(pool,
                                    best,
                                    "Read ceiling, GB/s: the best shape of each way, large pieces",
                                    {512, 1024, 2048, 4096, 8192},
                                    false,
                                    report);
  report.value("read_ceiling_gb_s", ceiling);
  size_table(pool,
             best,
             "GB/s reached by one kernel per piece (sizes of llama's matrices), with and without "
             "programmatic "
             "dependent launch",
             {8.4, 12.6, 16.8, 21.0, 33.6, 50.3, 58.7, 67.1, 117.4, 234.9, 525.3, 1050.7},
             true,
             report);
  report.note(
      "each piece is a kernel of its own in a graph, so the short ones show what starting and "
      "draining cost");
}

}  // namespace outrider::gpu_probe
