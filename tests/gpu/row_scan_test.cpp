// Sampling on logits that stay on a device: every answer of the device's kernels, run on the
// emulated device, equals the host scanner's bit for bit, and so do whole decisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/ops/cuda/rows/noise_bound.h"
#include "runtime/ranks/target/device_row_scanner.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/verification/logprobs.h"
#include "scheduler/verification/verify.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A device with a scanner and memory for logits.
struct Bench {
  std::unique_ptr<gpu::Device> device = gpu::test_backend().open(0);
  std::unique_ptr<gpu::Stream> stream = device->make_stream(gpu::Priority::kNormal);
  DeviceRowScanner scanner{*device, *stream, gpu::test_backend().ops};
  std::vector<gpu::Buffer> memory;

  LogitsAddress there(const std::vector<float>& logits) {
    memory.emplace_back(*device, std::max<size_t>(1, logits.size()) * sizeof(float));
    device->upload_now(memory.back().data(), logits.data(), logits.size() * sizeof(float));
    return memory.back().as<float>();
  }
};

// ---- single questions

struct MadeRow {
  std::vector<float> logits;
  std::vector<int32_t> edit_index;
  std::vector<float> edit_value;
  std::vector<uint64_t> allowed;
  std::vector<int32_t> without;
  RowView view;
};

std::vector<int32_t> some_indices(int32_t size, int one_in, std::mt19937_64& generator) {
  std::vector<int32_t> list;
  for (int32_t i = 0; i < size; ++i) {
    if (generator() % static_cast<uint64_t>(one_in) == 0) list.push_back(i);
  }
  return list;
}

void make_row(MadeRow& row, std::mt19937_64& generator) {
  const int32_t sizes[] = {0, 1, 5, 64, 700, 4095, 4096, 4097, 9001};
  const int32_t size = sizes[generator() % 9];
  const bool ties = generator() % 3 == 0;
  if (size > 0) row.logits = random_logits(size, ties, generator);
  switch (generator() % 8) {
    case 0:
      std::fill(row.logits.begin(), row.logits.end(), -3.25f);
      break;
    case 1:  // zeros of both signs tie
      for (float& logit : row.logits) logit = logit > 0 ? -0.0f : (logit > -1 ? 0.0f : logit);
      break;
    case 2:
      for (float& logit : row.logits) logit *= 20.0f;
      break;
    default:
      break;
  }
  if (generator() % 2 == 0) {
    row.edit_index = some_indices(size, 40, generator);
    for (size_t i = 0; i < row.edit_index.size(); ++i) {
      row.edit_value.push_back(i % 5 == 0 ? kMasked : static_cast<float>(i % 7));
    }
  }
  if (generator() % 2 == 0) {
    row.allowed.assign((static_cast<size_t>(size) + 63) / 64, ~uint64_t{0});
    const int one_in = generator() % 4 == 0 ? 1 : 3;  // 1: nothing is allowed
    for (int32_t i : some_indices(size, one_in, generator)) {
      row.allowed[static_cast<size_t>(i) / 64] &= ~(uint64_t{1} << (i % 64));
    }
  }
  row.without = some_indices(size, 30, generator);
  const float temperatures[] = {1.0f, 0.3f, 0.8f, 1.7f};
  row.view = {.logits = row.logits.data(),
              .size = size,
              .first_token = static_cast<int32_t>(generator() % 5000),
              .edit_index = row.edit_index,
              .edit_value = row.edit_value,
              .allowed = row.allowed,
              .inverse_temperature = 1.0f / temperatures[generator() % 4]};
}

struct Asked {
  RowQuestions questions;
  std::vector<std::vector<int32_t>> indices;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<uint64_t>> keys;
  std::vector<std::vector<uint64_t>> bands;
};

NoiseKey some_noise(std::mt19937_64& generator) {
  return {generator(), static_cast<uint32_t>(generator()), Stream::kResidual, 7};
}

// What the tests ask of every row, about its best value as a whole model would.
void ask(Asked& asked, const std::vector<MadeRow>& rows, uint64_t seed) {
  std::mt19937_64 generator(seed);
  RowQuestions& questions = asked.questions;
  asked.indices.reserve(rows.size());
  asked.values.reserve(rows.size());
  asked.keys.reserve(4 * rows.size());
  asked.bands.reserve(8 * rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const MadeRow& made = rows[r];
    const auto row = static_cast<int32_t>(r);
    RowPeaks peaks;
    const float max = key_score(scan_row(made.view, peaks).key);
    const float top = made.view.size > 0 ? max : 1.0f;
    const float cuts[] = {kMasked, top - 2.0f, top - 0.01f};
    const float ceilings[] = {kNoCeiling, top, top - 0.5f};
    const auto cut = [&] { return cuts[generator() % 3]; };
    const auto ceiling = [&] { return ceilings[generator() % 3]; };
    asked.indices.push_back(some_indices(made.view.size, 20, generator));
    asked.values.emplace_back(asked.indices.back().size());
    questions.reads.push_back(
        {.logits = made.view.logits, .index = asked.indices.back(), .values = asked.values.back()});
    questions.scans.push_back({.row = row});
    questions.scans.push_back({.row = row, .draws = true, .noise = some_noise(generator)});
    for (const bool wants_moment : {false, true}) {
      questions.sums.push_back({.row = row,
                                .max = top,
                                .cut = cut(),
                                .ceiling = ceiling(),
                                .wants_moment = wants_moment});
    }
    for (int i = 0; i < 4; ++i) {
      questions.draws.push_back(
          {.row = row, .cut = cut(), .ceiling = ceiling(), .noise = some_noise(generator)});
      if (i % 2 == 0) questions.draws.back().without = made.without;
      if (i == 3) questions.draws.back().key_to_beat = pack_key(top + 2.0f, 1 << 18);
    }
    for (const size_t n : {1, 4, 64, generator() % 4 == 0 ? 5000 : 300}) {
      questions.tops.push_back({.row = row,
                                .ceiling = ceiling(),
                                .counts_last = generator() % 2 == 0,
                                .keys = asked.keys.emplace_back(n)});
    }
    for (int digit = 0; digit < kNumDigits; ++digit) {
      for (const bool by_mass : {false, true}) {
        const double center = by_mass ? 0.7 : 0.0;
        asked.bands.emplace_back(kNumBands);
        questions.bands.push_back({.row = row,
                                   .cut = cut(),
                                   .order = {top, center},
                                   .by_mass = by_mass,
                                   .bands = asked.bands.back()});
      }
    }
    const auto token = static_cast<int32_t>(generator() % 9000);
    questions.ranks.push_back({.row = row, .value = top - 1.0f, .token = token});
    const bool has_logits = !made.logits.empty();
    const float tie = has_logits ? made.logits[made.logits.size() / 2] : 0.0f;
    questions.ranks.push_back({.row = row, .value = tie, .token = token});
  }
}

// The digits are asked for one after the other, each with what the host's answer says so far.
void answer_bands(RowScanner& scanner, RowQuestions& bands) {
  for (int digit = 0; digit < kNumDigits; ++digit) {
    for (BandQuestion& band : bands.bands) {
      band.digit = digit;
      if (digit == 0) continue;
      const auto last = std::find_if(
          band.bands.rbegin(), band.bands.rend(), [](uint64_t amount) { return amount != 0; });
      const auto chosen = static_cast<uint32_t>(band.bands.rend() - last);
      band.farthest |= (chosen == 0 ? 0 : chosen - 1) << (8 * (kNumDigits - digit));
    }
    scanner.answer(bands);
  }
}

void expect_same(const RowQuestions& here, const RowQuestions& there) {
  for (size_t i = 0; i < here.reads.size(); ++i) {
    ASSERT_TRUE(std::ranges::equal(
        here.reads[i].values,
        there.reads[i].values,
        {},
        [](float v) { return bits_of(v); },
        [](float v) { return bits_of(v); }))
        << i;
  }
  for (size_t i = 0; i < here.scans.size(); ++i) {
    ASSERT_EQ(here.scans[i].bad, there.scans[i].bad);
    ASSERT_EQ(here.scans[i].key, there.scans[i].key) << i;
  }
  for (size_t i = 0; i < here.sums.size(); ++i) {
    ASSERT_EQ(here.sums[i].mass, there.sums[i].mass) << i;
    ASSERT_EQ(here.sums[i].moment, there.sums[i].moment) << i;
  }
  for (size_t i = 0; i < here.draws.size(); ++i) {
    ASSERT_EQ(here.draws[i].key, there.draws[i].key) << i;
  }
  for (size_t i = 0; i < here.tops.size(); ++i) {
    ASSERT_EQ(here.tops[i].bad, there.tops[i].bad) << i;
    ASSERT_NE(here.tops[i].keys.data(), there.tops[i].keys.data());
    ASSERT_TRUE(std::ranges::equal(here.tops[i].keys, there.tops[i].keys)) << i;
    ASSERT_EQ(here.tops[i].num_last, there.tops[i].num_last) << i;
  }
  for (size_t i = 0; i < here.bands.size(); ++i) {
    ASSERT_TRUE(std::ranges::equal(here.bands[i].bands, there.bands[i].bands)) << i;
  }
  for (size_t i = 0; i < here.ranks.size(); ++i) {
    ASSERT_EQ(here.ranks[i].num_before, there.ranks[i].num_before) << i;
  }
}

TEST(DeviceRowScanner, EveryAnswerIsTheHostsBitForBit) {
  std::mt19937_64 generator(61);
  Bench bench;
  uint64_t num_inside = 0;
  for (int trial = 0; trial < 12; ++trial) {
    gpu::choose_thread_order(static_cast<unsigned>(trial));
    std::vector<MadeRow> rows(1 + generator() % 6);
    for (MadeRow& row : rows) make_row(row, generator);
    std::vector<RowView> here;
    std::vector<RowView> there;
    for (const MadeRow& row : rows) {
      here.push_back(row.view);
      there.push_back(row.view);
      there.back().logits = bench.there(row.logits);
    }
    Asked of_host;
    Asked of_device;
    ask(of_host, rows, static_cast<uint64_t>(trial));
    ask(of_device, rows, static_cast<uint64_t>(trial));
    for (size_t r = 0; r < rows.size(); ++r) of_device.questions.reads[r].logits = there[r].logits;
    HostRowScanner host;
    host.hold(here);
    bench.scanner.hold(there);
    RowQuestions host_bands{.bands = std::exchange(of_host.questions.bands, {})};
    RowQuestions device_bands{.bands = std::exchange(of_device.questions.bands, {})};
    host.answer(of_host.questions);
    bench.scanner.answer(of_device.questions);
    expect_same(of_host.questions, of_device.questions);
    answer_bands(host, host_bands);
    answer_bands(bench.scanner, device_bands);
    expect_same(host_bands, device_bands);
    for (const BandQuestion& band : host_bands.bands) {
      for (const uint64_t amount : band.bands) num_inside += amount > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_inside, 20u);  // the last digits still tell tokens apart
}

// Draws pass over tokens whose noise cannot lift them far enough; never over a winner.
TEST(NoiseBound, LiesAboveEveryScoreAndNotFarAboveHighOnes) {
  std::mt19937_64 generator(64);
  for (int i = 0; i < 400000; ++i) {
    const auto noise = static_cast<uint32_t>(generator());
    const auto few_bits = static_cast<uint32_t>(generator() % 33);  // near 1, where scores are high
    const uint32_t bits = few_bits == 32 ? noise : ~(noise >> few_bits);
    const float value = std::uniform_real_distribution<float>(-90.0f, 90.0f)(generator);
    const double noisy = static_cast<double>(value) + gumbel_from_bits(bits);
    const auto score = static_cast<float>(noisy);
    const float bound = gpu::highest_score(value, bits, score);
    ASSERT_GE(bound, score) << value << " " << bits;
    if (~bits < (1u << 24)) {
      ASSERT_LT(bound, score + 0.72f) << value << " " << bits;
    }
  }
  for (const uint32_t bits : {0u, 1u, 0xffffffffu, 0xfffffffeu, 0x80000000u, 0x7fffffffu}) {
    const auto score = static_cast<float>(gumbel_from_bits(bits));
    EXPECT_GE(gpu::highest_score(0.0f, bits, score), score) << bits;
  }
}

TEST(DeviceRowScanner, ARowWithNanOrInfinityIsBadEvenBehindEditsAndMasks) {
  Bench bench;
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 2e30f, 1e30f}) {
    for (const size_t at : {size_t{0}, size_t{5000}, size_t{8999}}) {
      std::vector<float> logits(9000, 1.0f);
      logits[at] = wrong;
      const std::vector<int32_t> index = {static_cast<int32_t>(at)};
      const std::vector<float> value = {kMasked};
      std::vector<uint64_t> allowed(141, ~uint64_t{0});
      allowed[at / 64] = 0;
      RowView view{.logits = bench.there(logits), .size = 9000};
      std::vector<RowView> views(3, view);
      views[1].edit_index = index;
      views[1].edit_value = value;
      views[2].allowed = allowed;
      bench.scanner.hold(views);
      RowQuestions questions;
      std::array<uint64_t, 9> keys{};
      for (int32_t row = 0; row < 3; ++row) {
        questions.scans.push_back({.row = row});
        questions.scans.push_back({.row = row, .draws = true});
        questions.tops.push_back(
            {.row = row,
             .counts_last = true,
             .keys = std::span(keys).subspan(3 * static_cast<size_t>(row), 3)});
      }
      bench.scanner.answer(questions);
      for (const ScanQuestion& scan : questions.scans) EXPECT_EQ(scan.bad, wrong != 1e30f);
      for (const TopQuestion& top : questions.tops) EXPECT_EQ(top.bad, wrong != 1e30f);
    }
  }
}

// ---- whole decisions

TestRound some_round(int32_t vocab_size, int num_sequences, std::mt19937_64& generator) {
  TestRound round{.vocab_size = vocab_size, .sequences = {}};
  for (int n = 0; n < num_sequences; ++n) {
    TestSequence sequence = random_sequence(vocab_size, generator);
    if (generator() % 3 == 0) sequence.bonus_draft = random_draft(sequence.rows[0], generator);
    if (generator() % 9 == 0) sequence.rows[0][3] = kInfinity;
    round.sequences.push_back(sequence);
  }
  return round;
}

std::vector<SequenceDecision> verify_there(const TestRound& round,
                                           const VocabShard& shard,
                                           ShardExchange& exchange) {
  Bench bench;
  std::vector<VerifyInput> inputs;
  for (const TestSequence& sequence : round.sequences) {
    std::vector<float> rows;
    for (const std::vector<float>& row : sequence.rows) {
      rows.insert(rows.end(), row.begin() + shard.begin, row.begin() + shard.end);
    }
    inputs.push_back({.sequence_id = inputs.size() + 1,
                      .params = &sequence.params,
                      .tokens = sequence.tokens,
                      .num_prompt_tokens = sequence.num_prompt_tokens,
                      .round = sequence.round,
                      .draft = sequence.draft,
                      .bonus_draft = sequence.bonus_draft ? &*sequence.bonus_draft : nullptr,
                      .logits = bench.there(rows)});
  }
  return verify(inputs, shard, bench.scanner, exchange);
}

// The questions are queued behind the work that writes the row, and waited for with it.
TEST(DeviceRowScanner, AsksBehindTheStepThatWritesTheRow) {
  const gpu::LateWork late;
  std::mt19937_64 generator(64);
  const std::vector<float> logits = random_logits(5000, true, generator);
  Bench bench;
  const gpu::PinnedBuffer here(*bench.device, logits.size() * sizeof(float));
  std::copy(logits.begin(), logits.end(), here.as<float>());
  const gpu::Buffer there(*bench.device, logits.size() * sizeof(float));
  const auto row_at = [](LogitsAddress address) {
    return RowView{.logits = address, .size = 5000, .inverse_temperature = 1.25f};
  };
  int num_waits = 0;
  DeviceRowScanner scanner{*bench.device, *bench.stream, gpu::test_backend().ops, [&] {
                             ++num_waits;
                             bench.stream->wait();
                           }};
  const auto answer_of = [](RowScanner& asked, const RowView& row) {
    asked.hold({&row, 1});
    RowQuestions questions;
    std::vector<uint64_t> keys(9);
    questions.scans.push_back({.row = 0, .draws = true, .noise = {7, 3, Stream::kCoupled, 1}});
    questions.tops.push_back({.row = 0, .keys = keys});
    asked.answer(questions);
    keys.resize(questions.tops[0].keys.size());
    return std::pair{questions.scans[0].key, keys};
  };
  HostRowScanner host;
  const auto expected = answer_of(host, row_at(logits.data()));
  bench.stream->fill(there.data(), 0, logits.size() * sizeof(float));
  answer_of(scanner, row_at(there.as<float>()));  // its memory is as large as it must be
  const int before = num_waits;
  bench.stream->upload(there.data(), here.as<float>(), logits.size() * sizeof(float));
  EXPECT_EQ(answer_of(scanner, row_at(there.as<float>())), expected);
  EXPECT_EQ(num_waits, before + 1);
}

TEST(DeviceRowScanner, DecisionsAreTheHostsOnAnyNumberOfShards) {
  std::mt19937_64 generator(62);
  int num_accepted = 0;
  int num_failed = 0;
  for (int trial = 0; trial < 8; ++trial) {
    const auto vocab_size = static_cast<int32_t>(50 + generator() % (trial == 0 ? 9000 : 900));
    const TestRound round = some_round(vocab_size, 6, generator);
    const std::vector<SequenceDecision> expected = verify_alone(round);
    const std::vector<int32_t> cuts = random_cuts(vocab_size, 1 + trial % 3, generator);
    const auto decided = run_on_shards<std::vector<SequenceDecision>>(
        static_cast<int>(cuts.size()), [&](int rank, ShardExchange& exchange) {
          const int32_t begin = rank == 0 ? 0 : cuts[static_cast<size_t>(rank) - 1];
          const VocabShard shard{begin, cuts[static_cast<size_t>(rank)], vocab_size};
          return verify_there(round, shard, exchange);
        });
    for (const std::vector<SequenceDecision>& of_rank : decided) {
      ASSERT_EQ(of_rank.size(), expected.size());
      for (size_t n = 0; n < expected.size(); ++n) {
        ASSERT_TRUE(same(of_rank[n], expected[n])) << trial << " " << n;
        num_accepted += expected[n].num_accepted;
        num_failed += expected[n].failed ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_accepted, 10);
  EXPECT_GT(num_failed, 2);
}

TEST(DeviceRowScanner, ProposalsAreTheHosts) {
  std::mt19937_64 generator(63);
  int num_drawn = 0;
  for (int trial = 0; trial < 10; ++trial) {
    Bench bench;
    const auto vocab_size = static_cast<int32_t>(40 + generator() % 2000);
    std::vector<TestSequence> sequences;
    for (int n = 0; n < 6; ++n) sequences.push_back(random_sequence(vocab_size, generator));
    std::vector<DraftInput> here;
    std::vector<DraftInput> there;
    for (const TestSequence& sequence : sequences) {
      here.push_back({.params = &sequence.params,
                      .tokens = sequence.tokens,
                      .num_prompt_tokens = sequence.num_prompt_tokens,
                      .round = sequence.round,
                      .logits = sequence.rows[0].data(),
                      .vocab_size = vocab_size,
                      .target_vocab_size = vocab_size,
                      .num_guesses = 4});
      there.push_back(here.back());
      there.back().logits = bench.there(sequence.rows[0]);
    }
    HostRowScanner host;
    const auto expected = propose_ranked(here, host);
    const auto proposed = propose_ranked(there, bench.scanner);
    for (size_t n = 0; n < expected.size(); ++n) {
      ASSERT_EQ(proposed[n].drawn, expected[n].drawn) << trial << " " << n;
      ASSERT_EQ(proposed[n].others, expected[n].others) << trial << " " << n;
      num_drawn += expected[n].drawn.token >= 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_drawn, 40);
}

}  // namespace
}  // namespace outrider
