#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

TEST(S3XmlTest, ReadsElementsTextAndEntities) {
  const auto root = parse_xml(
      "<?xml version=\"1.0\"?>\n<a xmlns='x'><k>1 &lt; 2 &amp; &#233;&#x1F600;</k><e/>"
      "</a>\n",
      "s3://b");
  ASSERT_OK(root);
  EXPECT_EQ(root->name, "a");
  EXPECT_EQ(root->text_of("k"), "1 < 2 & \xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_NE(root->find("e"), nullptr);
  EXPECT_EQ(root->find("f"), nullptr);
  EXPECT_EQ(root->text_of("f"), "");
}

TEST(S3XmlTest, WhatIsEscapedReadsBack) {
  const std::string text = "a<b>&\"c\"'d";
  const auto root = parse_xml("<k>" + escape_xml(text) + "</k>", "s3://b");
  ASSERT_OK(root);
  EXPECT_EQ(root->text, text);
}

TEST(S3XmlTest, RefusesWhatNoServerSends) {
  for (const std::string text : {"",
                                 " ",
                                 "<",
                                 "<a",
                                 "<a>",
                                 "<a></b>",
                                 "<a/><b/>",
                                 "<a b></a>",
                                 "<a b=c></a>",
                                 "<a b=\"c></a>",
                                 "<a>&what;</a>",
                                 "<a>&#0;</a>",
                                 "<a>&#xd800;</a>",
                                 "<a>&#99999999999;</a>",
                                 "<a>&#65</a>",
                                 "<!DOCTYPE a><a/>",
                                 "<a><![CDATA[x]]></a>",
                                 "<?xml <a/>",
                                 "<a/>x",
                                 "{\"a\": 1}"}) {
    EXPECT_ERROR(parse_xml(text, "s3://b"), ErrorCode::kUnavailable);
  }
}

TEST(S3XmlTest, RefusesDepthAndNumberWithoutUsingThem) {
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += "<a>";
  EXPECT_ERROR(parse_xml(deep, "s3://b"), ErrorCode::kUnavailable);
  std::string many = "<a>";
  for (size_t i = 0; i < kMaxXmlElements; ++i) many += "<b/>";
  EXPECT_ERROR(parse_xml(many + "</a>", "s3://b"), ErrorCode::kUnavailable);
}

TEST(S3XmlTest, ReadsTimesAndRefusesSenselessOnes) {
  const auto time = parse_xml_time("2013-05-24T01:02:03.500Z", "s3://b");
  ASSERT_OK(time);
  EXPECT_EQ(*time, WallTime(std::chrono::seconds(1369357323)));
  for (const std::string text :
       {"", "2013", "2013-13-24T01:02:03Z", "2013-02-30T01:02:03Z",
        "9999-05-24T01:02:03Z", "2013-05-24T24:02:03Z", "2013-05-24T01:02:03",
        "2013-05-24 01:02:03Z"}) {
    EXPECT_ERROR(parse_xml_time(text, "s3://b"), ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace holdfast
