// See svg_plot.h.
#include "runtime/base/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr double kPanelWidth = 480;
constexpr double kPanelHeight = 420;
constexpr double kTitleHeight = 34;
constexpr double kLeft = 58;  // of the plotted area in its panel
constexpr double kRight = 14;
constexpr double kTop = 30;
constexpr double kBottom = 48;
constexpr double kLegendLine = 16;
// Told apart also by those who see few colours (Okabe and Ito).
constexpr const char* kPalette[] = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"};

std::string escaped(const std::string& text) {
  std::string safe;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '"') {
      safe += "&quot;";
    } else if (byte >= 0x20) {  // XML has no way to write most control characters
      safe += c;
    }
  }
  return safe;
}

bool drawable(const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && std::isfinite(point.error);
}

// 1, 2 or 5 times a power of ten, so that about five of them make the range.
double tick_step(double range) {
  const double raw = range / 5;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double digit = raw / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

struct Axis {
  double least = 0;
  double most = 1;
  double step = 1;
};

Axis axis_over(double least, double most) {
  least = std::min(0.0, least);
  if (!(most > least)) most = least + 1;
  Axis axis;
  axis.step = tick_step(most - least);
  axis.least = axis.step * std::floor(least / axis.step + 1e-9);
  axis.most = axis.step * std::ceil(most / axis.step - 1e-9);
  return axis;
}

class PanelWriter {
 public:
  PanelWriter(const PlotPanel& panel, double left, double top) : panel_(panel) {
    double x_least = 0, x_most = 0, y_least = 0, y_most = 0;
    for (const PlotSeries& series : panel.series) {
      for (const PlotPoint& point : series.points) {
        if (!drawable(point)) continue;
        x_least = std::min(x_least, point.x);
        x_most = std::max(x_most, point.x);
        y_least = std::min(y_least, point.y - point.error);
        y_most = std::max(y_most, point.y + point.error);
      }
    }
    x_ = axis_over(x_least, x_most);
    y_ = axis_over(y_least, y_most);
    left_ = left + kLeft;
    right_ = left + kPanelWidth - kRight;
    top_ = top + kTop;
    bottom_ = top + kPanelHeight - kBottom;
  }

  std::string text() {
    add_axes();
    for (const PlotSeries& series : panel_.series) add_series(series);
    add_legend();
    return std::move(out_);
  }

 private:
  double x_of(double value) const {
    return left_ + (value - x_.least) / (x_.most - x_.least) * (right_ - left_);
  }
  double y_of(double value) const {
    return bottom_ - (value - y_.least) / (y_.most - y_.least) * (bottom_ - top_);
  }

  void add_line(double x1, double y1, double x2, double y2, const char* color, double width) {
    out_ += fmt::format(
        "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" "
        "stroke-width=\"{}\"/>\n",
        x1,
        y1,
        x2,
        y2,
        color,
        width);
  }

  void add_text(double x, double y, const char* anchor, const std::string& text, int size) {
    out_ += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n",
        x,
        y,
        anchor,
        size,
        escaped(text));
  }

  static int num_ticks(const Axis& axis) {
    return static_cast<int>(std::lround((axis.most - axis.least) / axis.step));
  }

  void add_axes() {
    for (int i = 0; i <= num_ticks(x_); ++i) {
      const double value = x_.least + i * x_.step;
      add_line(x_of(value), top_, x_of(value), bottom_, "#e4e4e4", 1);
      add_text(x_of(value), bottom_ + 16, "middle", fmt::format("{:.6g}", value), 12);
    }
    for (int i = 0; i <= num_ticks(y_); ++i) {
      const double value = y_.least + i * y_.step;
      add_line(left_, y_of(value), right_, y_of(value), "#e4e4e4", 1);
      add_text(left_ - 7, y_of(value) + 4, "end", fmt::format("{:.6g}", value), 12);
    }
    add_line(left_, bottom_, right_, bottom_, "#333333", 1.2);
    add_line(left_, top_, left_, bottom_, "#333333", 1.2);
    const double middle_x = (left_ + right_) / 2;
    const double middle_y = (top_ + bottom_) / 2;
    add_text(middle_x, top_ - 12, "middle", panel_.title, 14);
    add_text(middle_x, bottom_ + 36, "middle", panel_.x_label, 13);
    out_ += fmt::format(
        "<text transform=\"translate({:.2f} {:.2f}) rotate(-90)\" text-anchor=\"middle\" "
        "font-size=\"13\">{}</text>\n",
        left_ - 40,
        middle_y,
        escaped(panel_.y_label));
  }

  void add_mark(PlotMark mark, double x, double y, const char* color) {
    if (mark == PlotMark::kSquares) {
      out_ +=
          fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"6\" height=\"6\" fill=\"{}\"/>\n",
                      x - 3,
                      y - 3,
                      color);
      return;
    }
    const bool ring = mark == PlotMark::kRings;
    out_ += fmt::format(
        "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3.4\" fill=\"{}\" stroke=\"{}\" "
        "stroke-width=\"1.4\"/>\n",
        x,
        y,
        ring ? "#ffffff" : color,
        color);
  }

  static bool is_line(PlotMark mark) {
    return mark == PlotMark::kLine || mark == PlotMark::kDashedLine;
  }

  static const char* dashes(PlotMark mark) {
    return mark == PlotMark::kDashedLine ? " stroke-dasharray=\"6 4\"" : "";
  }

  void add_series(const PlotSeries& series) {
    const char* color = kPalette[static_cast<size_t>(series.color) % std::size(kPalette)];
    std::string path;
    for (const PlotPoint& point : series.points) {
      if (!drawable(point)) continue;
      const double x = x_of(point.x);
      const double y = y_of(point.y);
      if (is_line(series.mark)) {
        path += fmt::format("{}{:.2f},{:.2f}", path.empty() ? "" : " ", x, y);
        continue;
      }
      if (point.error > 0) {
        add_line(x, y_of(point.y - point.error), x, y_of(point.y + point.error), color, 1.2);
      }
      add_mark(series.mark, x, y, color);
    }
    if (path.empty()) return;
    out_ += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}/>\n",
        path,
        color,
        dashes(series.mark));
  }

  struct Corner {
    double left, top;
  };

  // Where the fewest points (and halves of lines between them) lie under the box.
  Corner legend_place(double width, double height) const {
    const double right = right_ - width - 8;
    const double bottom = bottom_ - height - 8;
    const double middle = (top_ + bottom_ - height) / 2;
    const Corner places[] = {{left_ + 8, top_ + 4},
                             {right, bottom},
                             {right, top_ + 4},
                             {right, middle},
                             {left_ + 8, bottom},
                             {left_ + 8, middle}};
    const Corner* best = places;
    for (const Corner& place : places) {
      if (num_under(place, width, height) < num_under(*best, width, height)) best = &place;
    }
    return *best;
  }

  int num_under(const Corner& place, double width, double height) const {
    int count = 0;
    const auto look = [&](double x, double y) {
      const bool inside = x > place.left - 4 && x < place.left + width && y > place.top - 4 &&
                          y < place.top + height + 4;
      count += inside ? 1 : 0;
    };
    for (const PlotSeries& series : panel_.series) {
      const PlotPoint* last = nullptr;
      for (const PlotPoint& point : series.points) {
        if (!drawable(point)) continue;
        look(x_of(point.x), y_of(point.y));
        if (last != nullptr && is_line(series.mark))
          look(x_of((point.x + last->x) / 2), y_of((point.y + last->y) / 2));
        last = &point;
      }
    }
    return count;
  }

  void add_legend() {
    size_t longest = 0;
    int num_lines = 0;
    for (const PlotSeries& series : panel_.series) {
      if (series.name.empty()) continue;
      longest = std::max(longest, series.name.size());
      ++num_lines;
    }
    if (num_lines == 0) return;
    const double width = 32 + 6.6 * static_cast<double>(longest);
    const double height = kLegendLine * num_lines + 2;
    const Corner place = legend_place(width, height);
    out_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"#ffffff\" "
        "fill-opacity=\"0.8\"/>\n",
        place.left,
        place.top,
        width,
        height);
    double y = place.top + 13;
    for (const PlotSeries& series : panel_.series) {
      if (series.name.empty()) continue;
      add_legend_line(series, place.left + 2, y);
      y += kLegendLine;
    }
  }

  void add_legend_line(const PlotSeries& series, double x, double y) {
    const char* color = kPalette[static_cast<size_t>(series.color) % std::size(kPalette)];
    if (is_line(series.mark)) {
      out_ += fmt::format(
          "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" "
          "stroke-width=\"1.6\"{}/>\n",
          x,
          y - 4,
          x + 20,
          y - 4,
          color,
          dashes(series.mark));
    } else {
      add_mark(series.mark, x + 10, y - 4, color);
    }
    add_text(x + 26, y, "start", series.name, 12);
  }

  const PlotPanel& panel_;
  Axis x_, y_;
  double left_, right_, top_, bottom_;
  std::string out_;
};

}  // namespace

std::string svg_text(const Plot& plot) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(plot.panels.size(), 1));
  const double height = kTitleHeight + kPanelHeight;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" fill=\"#222222\">\n"
      "<title>{2}</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"22\" text-anchor=\"middle\" font-size=\"16\">{2}</text>\n",
      width,
      height,
      escaped(plot.title),
      width / 2);
  double left = 0;
  for (const PlotPanel& panel : plot.panels) {
    out += PanelWriter(panel, left, kTitleHeight).text();
    left += kPanelWidth;
  }
  return out + "</svg>\n";
}

void write_svg(const std::string& path, const Plot& plot) {
  std::ofstream file(path, std::ios::binary);
  file << svg_text(plot);
  file.close();
  if (!file) throw Error(fmt::format("cannot write {}", path));
}

}  // namespace outrider
