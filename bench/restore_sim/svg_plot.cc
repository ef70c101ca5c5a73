// See svg_plot.h.
#include "bench/restore_sim/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace larder::bench {
namespace {

constexpr double kWidth = 640, kHeight = 400, kLeft = 70, kRight = 20, kTop = 40, kBottom = 50;
constexpr const char* kColours[] = {"#0b6e99", "#d1495b", "#66a182",
                                    "#edae49", "#7d5ba6", "#444444"};

struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;
  void Take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  [[nodiscard]] double At(double v) const {  // 0 to 1
    const auto f = [this](double x) { return log ? std::log(x) : x; };
    return high > low ? (f(v) - f(low)) / (f(high) - f(low)) : 0.5;
  }
  [[nodiscard]] double Tick(double share) const {
    return log ? low * std::pow(high / low, share) : low + (high - low) * share;
  }
};

double X(const Axis& axis, double v) { return kLeft + axis.At(v) * (kWidth - kLeft - kRight); }
double Y(const Axis& axis, double v) {
  return kHeight - kBottom - axis.At(v) * (kHeight - kTop - kBottom);
}

std::string Text(double x, double y, const std::string& text, const char* anchor,
                 const char* more = "") {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"12\" %s>%s</text>\n", x, y,
      anchor, more, text);
}

std::string Frame(const Plot& plot, const Axis& x, const Axis& y) {
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double vx = x.Tick(share), vy = y.Tick(share);
    absl::StrAppendFormat(&out, "<path d=\"M%g %gV%g\" stroke=\"#ddd\"/>\n", X(x, vx), kTop,
                          kHeight - kBottom);
    absl::StrAppendFormat(&out, "<path d=\"M%g %gH%g\" stroke=\"#ddd\"/>\n", kLeft, Y(y, vy),
                          kWidth - kRight);
    absl::StrAppend(&out,
                    Text(X(x, vx), kHeight - kBottom + 18, absl::StrFormat("%.3g", vx), "middle"));
    absl::StrAppend(&out, Text(kLeft - 6, Y(y, vy) + 4, absl::StrFormat("%.3g", vy), "end"));
  }
  absl::StrAppend(&out, Text(kWidth / 2, 22, plot.title, "middle", "font-weight=\"bold\""));
  absl::StrAppend(&out, Text(kWidth / 2, kHeight - 10, plot.x_label, "middle"));
  absl::StrAppend(
      &out,
      Text(0, 0, plot.y_label, "middle",
           absl::StrFormat("transform=\"translate(16 %g) rotate(-90)\"", kHeight / 2).c_str()));
  return out;
}

std::string Curve(const Series& series, const Axis& x, const Axis& y, const char* colour) {
  std::string path, points;
  for (size_t i = 0; i < series.x.size(); ++i) {
    absl::StrAppendFormat(&path, "%s%.1f %.1f", i == 0 ? "M" : "L", X(x, series.x[i]),
                          Y(y, series.y[i]));
    absl::StrAppendFormat(
        &points, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\" fill-opacity=\"0.6\"/>\n",
        X(x, series.x[i]), Y(y, series.y[i]), colour);
  }
  if (series.points) return points;
  return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", path,
                         colour);
}

}  // namespace

std::string Draw(const Plot& plot) {
  Axis x{.log = plot.x_log}, y{.log = plot.y_log};
  for (const Series& series : plot.series) {
    for (const double v : series.x) x.Take(v);
    for (const double v : series.y) y.Take(v);
  }
  std::string out = Frame(plot, x, y);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    absl::StrAppend(&out, Curve(plot.series[i], x, y, colour));
    absl::StrAppend(&out,
                    Text(kLeft + 10, kTop + 16 + 16 * static_cast<double>(i), plot.series[i].name,
                         "start", absl::StrCat("fill=\"", colour, "\"").c_str()));
  }
  return out + "</svg>\n";
}

absl::Status Write(const Plot& plot, const std::string& folder, const std::string& name) {
  nlohmann::json numbers = {{"title", plot.title}, {"x", plot.x_label}, {"y", plot.y_label}};
  for (const Series& series : plot.series) {
    numbers["series"].push_back({{"name", series.name}, {"x", series.x}, {"y", series.y}});
  }
  std::ofstream picture(absl::StrCat(folder, "/", name, ".svg")),
      data(absl::StrCat(folder, "/", name, ".json"));
  picture << Draw(plot);
  data << numbers.dump(1) << '\n';
  if (picture.flush() && data.flush()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", folder, "/", name, ".svg; is the folder there?"));
}

Series Distribution(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Series series{name};
  const size_t stride = std::max<size_t>(values.size() / 400, 1);
  for (size_t i = 0; i < values.size(); i += stride) {
    series.x.push_back(values[i]);
    series.y.push_back(static_cast<double>(i + 1) / static_cast<double>(values.size()));
  }
  return series;
}

}  // namespace larder::bench
