// The geometry and the text of a picture, as a reader of SVG finds them.
#include "client/llama_cpp/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

Plot TwoBoxes() {
  return {.title = "a & b",
          .x_label = "seconds",
          .y_label = "tokens",
          .series = {{.name = "computed", .boxes = {{0, 1, 0, 100}}},
                     {.name = "loaded", .boxes = {{0, 2, 100, 200}}, .hollow = true}}};
}

TEST(SvgPlotTest, BoxesSpanTheAxes) {
  const std::string svg = Draw(TwoBoxes());
  // The first box is half as wide as the plot and fills its lower half; the second fills all of the
  // upper half.
  EXPECT_THAT(svg, HasSubstr("<rect x=\"70.0\" y=\"221.0\" width=\"275.0\" height=\"155.0\""));
  EXPECT_THAT(svg, HasSubstr("<rect x=\"70.0\" y=\"66.0\" width=\"550.0\" height=\"155.0\""));
  EXPECT_THAT(svg, HasSubstr("fill=\"none\" stroke=\"#d1495b\""));
}

TEST(SvgPlotTest, TimeBeginsAtZero) {
  const std::string svg = Draw({.series = {{.boxes = {{1, 2, 0, 1}}}}});
  EXPECT_THAT(svg, HasSubstr("<rect x=\"345.0\" y=\"50.0\" width=\"275.0\" height=\"310.0\""));
}

TEST(SvgPlotTest, TextIsEscaped) {
  const std::string svg = Draw(TwoBoxes());
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, Not(HasSubstr("a & b")));
}

TEST(SvgPlotTest, ALegendLineForEachSeries) {
  const std::string svg = Draw(TwoBoxes());
  EXPECT_EQ(Count(svg, ">computed<"), 1);
  EXPECT_EQ(Count(svg, ">loaded<"), 1);
}

TEST(SvgPlotTest, LinesPassAllPoints) {
  const std::string svg = Draw({
      .title = "t",
      .series = {{.name = "s", .x = {1, 10, 100}, .y = {0, 1, 0}}},
  });
  EXPECT_THAT(svg, HasSubstr("M70.0 360.0L"));
  EXPECT_EQ(Count(svg, "<circle"), 0);
}

TEST(SvgPlotTest, AnEmptyPictureIsValid) { EXPECT_THAT(Draw({}), HasSubstr("</svg>")); }

TEST(SvgPlotTest, AMissingFolderIsReported) {
  EXPECT_THAT(std::string(WritePicture(TwoBoxes(), "/nowhere/at/all.svg").message()),
              HasSubstr("check that its folder exists"));
}

}  // namespace
}  // namespace larder
