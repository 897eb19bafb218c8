// Plots as SVG text: panels side by side with axes, lines, points with error bars, and a legend.
// For the benchmarks' --svg; pure.
#pragma once

#include <string>
#include <vector>

namespace outrider {

struct PlotPoint {
  double x = 0;
  double y = 0;
  double error = 0;  // half the length of its error bar; 0 = none
};

enum class PlotMark { kLine, kDashedLine, kDots, kRings, kSquares };

struct PlotSeries {
  std::string name;  // in the legend; empty = not there
  PlotMark mark = PlotMark::kLine;
  int color = 0;  // of a palette of 8, repeated
  std::vector<PlotPoint> points;
};

struct PlotPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
};

struct Plot {
  std::string title;
  std::vector<PlotPanel> panels;
};

// A whole SVG file. Both axes start at 0 unless something lies below it; points that are not finite
// are left out. The same plot gives the same bytes.
std::string svg_text(const Plot& plot);

// Writes it; throws Error naming the file.
void write_svg(const std::string& path, const Plot& plot);

}  // namespace outrider
