// Image files for tests.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <opencv2/imgcodecs.hpp>
#include <string>

namespace pipewright::testing {

/// A picture with a horizontal and a vertical ramp and an own shade, so that crops and flips can be told
/// apart.
inline cv::Mat picture(int width, int height, int shade) {
  cv::Mat image(height, width, CV_8UC3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at<cv::Vec3b>(y, x) =
          cv::Vec3b(static_cast<uint8_t>(shade), static_cast<uint8_t>(y * 255 / height),
                    static_cast<uint8_t>(x * 255 / width));
    }
  }
  return image;
}

inline void write_picture(const std::filesystem::path& file, const cv::Mat& image) {
  std::filesystem::create_directories(file.parent_path());
  REQUIRE(cv::imwrite(file.string(), image));
}

/// Two classes, cats (3 files) and dogs (2), JPEG and PNG, in several sizes.
inline void write_pictures(const std::filesystem::path& root) {
  write_picture(root / "dogs" / "b.png", picture(50, 40, 200));
  write_picture(root / "dogs" / "a.JPG", picture(40, 64, 220));
  write_picture(root / "cats" / "3.jpeg", picture(48, 48, 60));
  write_picture(root / "cats" / "1.jpg", picture(64, 48, 20));
  write_picture(root / "cats" / "2.png", picture(20, 10, 40));
}

}  // namespace pipewright::testing
