// What there is to draw of a benchmark, as data: its JSON carries it, tools/plot.py draws it.
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

}  // namespace outrider
