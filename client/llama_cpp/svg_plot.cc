#include "client/llama_cpp/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace larder {
namespace {

constexpr double kWidth = 640, kLeft = 70, kRight = 20, kTitle = 34, kBottom = 50;
constexpr double kPlotHeight = 310, kLegendLine = 16;
constexpr const char* kColours[] = {"#0b6e99", "#d1495b", "#66a182", "#edae49",
                                    "#7d5ba6", "#444444", "#b5651d"};

struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;
  void Take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  [[nodiscard]] double At(double v) const {  // from 0 to 1, if v is in [low, high]
    const auto f = [this](double x) { return log ? std::log(x) : x; };
    return high > low ? (f(v) - f(low)) / (f(high) - f(low)) : 0.5;
  }
  [[nodiscard]] double Tick(double share) const {
    return log ? low * std::pow(high / low, share) : low + (high - low) * share;
  }
};

// Where the axes of a plot are on the page.
struct Frame {
  Axis x, y;
  double top = 0;  // below title and legend
  [[nodiscard]] double X(double v) const { return kLeft + x.At(v) * (kWidth - kLeft - kRight); }
  [[nodiscard]] double Y(double v) const { return top + (1 - y.At(v)) * kPlotHeight; }
  [[nodiscard]] double bottom() const { return top + kPlotHeight; }
  [[nodiscard]] double height() const { return bottom() + kBottom; }
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const std::string& text, const char* anchor,
                 const char* more = "") {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"12\" %s>%s</text>\n", x, y,
      anchor, more, Escaped(text));
}

Frame FrameOf(const Plot& plot) {
  Frame frame{.x = {.log = plot.x_log}, .y = {.log = plot.y_log}};
  for (const Series& series : plot.series) {
    for (const double v : series.x) frame.x.Take(v);
    for (const double v : series.y) frame.y.Take(v);
    // Readers compare boxes with zero, so a linear x axis includes zero.
    if (!series.boxes.empty() && !plot.x_log) frame.x.Take(0);
    for (const Box& box : series.boxes) {
      for (const double v : {box.x_begin, box.x_end}) frame.x.Take(v);
      for (const double v : {box.y_begin, box.y_end}) frame.y.Take(v);
    }
  }
  frame.top = kTitle + kLegendLine * static_cast<double>(plot.series.size());
  return frame;
}

std::string Page(const Plot& plot, const Frame& frame) {
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, frame.height());
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double vx = frame.x.Tick(share), vy = frame.y.Tick(share);
    absl::StrAppendFormat(&out, "<path d=\"M%g %gV%g\" stroke=\"#ddd\"/>\n", frame.X(vx), frame.top,
                          frame.bottom());
    absl::StrAppendFormat(&out, "<path d=\"M%g %gH%g\" stroke=\"#ddd\"/>\n", kLeft, frame.Y(vy),
                          kWidth - kRight);
    absl::StrAppend(&out,
                    Text(frame.X(vx), frame.bottom() + 18, absl::StrFormat("%.3g", vx), "middle"));
    absl::StrAppend(&out, Text(kLeft - 6, frame.Y(vy) + 4, absl::StrFormat("%.4g", vy), "end"));
  }
  absl::StrAppend(&out, Text(kWidth / 2, 22, plot.title, "middle", "font-weight=\"bold\""));
  absl::StrAppend(&out, Text(kWidth / 2, frame.height() - 10, plot.x_label, "middle"));
  absl::StrAppend(&out, Text(0, 0, plot.y_label, "middle",
                             absl::StrFormat("transform=\"translate(16 %g) rotate(-90)\"",
                                             frame.top + kPlotHeight / 2)
                                 .c_str()));
  return out;
}

std::string Curve(const Series& series, const Frame& frame, const char* colour) {
  std::string path, points;
  for (size_t i = 0; i < series.x.size(); ++i) {
    absl::StrAppendFormat(&path, "%s%.1f %.1f", i == 0 ? "M" : "L", frame.X(series.x[i]),
                          frame.Y(series.y[i]));
    absl::StrAppendFormat(
        &points, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" fill-opacity=\"0.6\"/>\n",
        frame.X(series.x[i]), frame.Y(series.y[i]), colour);
  }
  if (path.empty() || series.points) return points;
  return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", path,
                         colour);
}

std::string Boxes(const Series& series, const Frame& frame, const char* colour) {
  std::string out;
  for (const Box& box : series.boxes) {
    const double left = frame.X(box.x_begin), top = frame.Y(box.y_end);
    absl::StrAppendFormat(&out,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                          "fill=\"%s\" stroke=\"%s\" stroke-width=\"0.5\"/>\n",
                          left, top, frame.X(box.x_end) - left, frame.Y(box.y_begin) - top,
                          series.hollow ? "none" : colour, series.hollow ? colour : "white");
  }
  return out;
}

}  // namespace

std::string Draw(const Plot& plot) {
  const Frame frame = FrameOf(plot);
  std::string out = Page(plot, frame);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    const char* colour = kColours[i % std::size(kColours)];
    absl::StrAppend(&out, Curve(series, frame, colour), Boxes(series, frame, colour));
    absl::StrAppend(
        &out, Text(kLeft, kTitle + 4 + kLegendLine * static_cast<double>(i), series.name, "start",
                   absl::StrCat("fill=\"", colour, "\"").c_str()));
  }
  return out + "</svg>\n";
}

absl::Status WritePicture(const Plot& plot, const std::string& path) {
  std::ofstream file(path);
  file << Draw(plot);
  if (file.flush()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write the picture ", path,
                                             "; check that its folder exists and is writable"));
}

}  // namespace larder
