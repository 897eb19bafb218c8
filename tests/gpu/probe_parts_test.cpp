// The host side of gpu_probe: reports that parse whatever is written into them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/gpu/probe/report.h"

namespace outrider::gpu_probe {
namespace {

std::string fresh_folder(const char* name) {
  const std::string folder = testing::TempDir() + name + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(GpuProbeReport, IsJsonWhateverIsWrittenIntoIt) {
  const std::string folder = fresh_folder("report");
  Report report("name", "A question?", folder);
  const std::string odd = "quotes \" and \\ and\nlines\tand \x01";
  report.note(odd);
  report.value("rate", 4321.5);
  report.value("nothing", 0.0 / 0.0);
  Table& table = report.table("A table", {"what", "us"});
  for (const char* cell :
       {"12.5", "-3", "1e5", "4.", "+1", "", "1.2.3", "12 (34)", "nan", "0x10", "e", "-"}) {
    table.rows.push_back({"cell", cell});
  }
  ASSERT_TRUE(report.save("a \"problem\""));
  const auto json = nlohmann::json::parse(std::ifstream(folder + "/name.json"));
  EXPECT_EQ(json["status"], "a \"problem\"");
  EXPECT_EQ(json["notes"][0], odd);
  EXPECT_EQ(json["values"]["rate"], 4321.5);
  EXPECT_TRUE(json["values"]["nothing"].is_null());
  const auto& rows = json["tables"][0]["rows"];
  ASSERT_EQ(rows.size(), 12u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][1].is_number(), i < 3) << rows[i][1];
  }
  EXPECT_EQ(rows[0][1], 12.5);
  std::ifstream markdown(folder + "/name.md");
  const std::string text(std::istreambuf_iterator<char>(markdown), {});
  EXPECT_NE(text.find("## A question?"), std::string::npos);
  EXPECT_NE(text.find("| cell | 12.5 |"), std::string::npos);
  EXPECT_NE(text.find("**name: a \"problem\"**"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(GpuProbeReport, SaysSoWhenItCannotBeWritten) {
  EXPECT_FALSE(Report("name", "A question?", "no/such/folder").save("ok"));
}

}  // namespace
}  // namespace outrider::gpu_probe
