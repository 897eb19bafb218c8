// The plot writer: well-formed, nothing of the data lost or leaked as markup, odd data survives.
#include "runtime/base/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

Plot sample() {
  Plot plot;
  plot.title = "rounds & tokens";
  plot.panels.push_back({.title = "first",
                         .x_label = "draft length",
                         .y_label = "tokens <per> \"round\"",
                         .series = {{.name = "formula", .points = {{1, 1.5}, {2, 2.1}, {3, 2.4}}},
                                    {.name = "measured",
                                     .mark = PlotMark::kDots,
                                     .color = 1,
                                     .points = {{1, 1.52, 0.01}, {2, 2.08, 0.02}}},
                                    {.mark = PlotMark::kSquares, .color = 9, .points = {{1, 1}}}}});
  plot.panels.push_back({.title = "second", .x_label = "x", .y_label = "y"});
  return plot;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Enough of XML for what the writer makes: tags balance, attributes are quoted, no stray '<' or
// '&'.
std::string fault(const std::string& text) {
  std::vector<std::string> open;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '&') {
      const size_t end = text.find(';', i);
      const std::string name = text.substr(i, end - i + 1);
      if (name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&quot;") return name;
    }
    if (text[i] != '<') continue;
    const size_t end = text.find('>', i);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = text.substr(i + 1, end - i - 1);
    if (tag.find('<') != std::string::npos || count(tag, "\"") % 2 != 0) return tag;
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != tag.substr(1)) return tag;
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  return open.empty() ? "" : open.back() + " is never closed";
}

TEST(SvgPlot, WellFormedWithEverythingInIt) {
  const std::string text = svg_text(sample());
  EXPECT_EQ(fault(text), "");
  EXPECT_TRUE(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(count(text, "<polyline"), 1u);
  EXPECT_EQ(count(text, "<circle"), 3u);                   // two points and the legend
  EXPECT_EQ(count(text, "width=\"6\" height=\"6\""), 1u);  // a square without a legend
  EXPECT_NE(text.find("rounds &amp; tokens"), std::string::npos);
  EXPECT_NE(text.find("tokens &lt;per&gt; &quot;round&quot;"), std::string::npos);
  EXPECT_EQ(count(text, ">formula<"), 1u);
  EXPECT_EQ(count(text, ">measured<"), 1u);
  EXPECT_EQ(text, svg_text(sample()));
}

TEST(SvgPlot, TheFaultFinderFinds) {
  EXPECT_NE(fault("<svg><a></svg></a>"), "");
  EXPECT_NE(fault("<svg>a & b</svg>"), "");
  EXPECT_NE(fault("<svg x=\"1></svg>"), "");
  EXPECT_NE(fault("<svg>"), "");
}

TEST(SvgPlot, ControlCharactersAndMarkupInNamesDoNoHarm) {
  Plot plot = sample();
  plot.panels[0].series[0].name = std::string("a\x01\n</text><script>") + "&\"";
  const std::string text = svg_text(plot);
  EXPECT_EQ(fault(text), "");
  EXPECT_EQ(text.find("<script"), std::string::npos);
}

TEST(SvgPlot, PointsThatAreNotFiniteAreLeftOut) {
  Plot plot = sample();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  plot.panels[0].series = {{.name = "p",
                            .mark = PlotMark::kRings,
                            .points = {{1, nan}, {infinity, 1}, {2, 3, nan}, {1, 2}}}};
  const std::string text = svg_text(plot);
  EXPECT_EQ(fault(text), "");
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  EXPECT_EQ(count(text, "<circle"), 2u);
}

TEST(SvgPlot, EmptySmallLargeAndNegativeRanges) {
  for (double scale : {0.0, 1e-9, 1.0, 1e12, -3.0}) {
    Plot plot;
    plot.panels.push_back({.title = "t", .series = {{.points = {{0, 0}, {scale, scale}}}}});
    const std::string text = svg_text(plot);
    EXPECT_EQ(fault(text), "");
    EXPECT_EQ(text.find("nan"), std::string::npos) << scale;
    EXPECT_LT(count(text, "<text"), 30u) << scale;
  }
  EXPECT_EQ(fault(svg_text({})), "");
}

TEST(SvgPlot, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_NE(error_of([] { write_svg("/no/such/folder/plot.svg", sample()); }).find("plot.svg"),
            std::string::npos);
  const std::string path = ::testing::TempDir() + "svg_plot_test.svg";
  write_svg(path, sample());
  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  EXPECT_EQ(read.str(), svg_text(sample()));
}

}  // namespace
}  // namespace outrider
