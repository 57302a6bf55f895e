#include <gtest/gtest.h>

#ifdef HOLDFAST_HAS_S3

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
  const std::string text = "a<b>&\"c\"'d\r\n]]>";
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
                                 "<a><?b c?></a>",
                                 "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
                                 "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>",
                                 "<a>\x01</a>",
                                 "<a>\xff</a>",
                                 "<?xml <a/>",
                                 "<a/>x",
                                 "{\"a\": 1}"}) {
    EXPECT_ERROR(parse_xml(text, "s3://b"), ErrorCode::kUnavailable);
  }
}

// A server that works long on a request sends spaces to keep the connection open.
TEST(S3XmlTest, SkipsSpaceAheadOfTheAnswerAndComments) {
  const auto root = parse_xml(
      " \r\n <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<a><!-- b --><c>d</c></a>",
      "s3://b");
  ASSERT_OK(root);
  EXPECT_EQ(root->text_of("c"), "d");
}

TEST(S3XmlTest, SaysWhatIsWrongAndAtWhichByte) {
  EXPECT_EQ(message_of(parse_xml("<a><b></a>", "s3://b")),
            "s3://b: answer is no XML of an S3 server: mismatched tag at byte 8 of 10");
  EXPECT_EQ(
      message_of(parse_xml("<!DOCTYPE a><a/>", "s3://b")),
      "s3://b: answer is no XML of an S3 server: a document type at byte 11 of 16");
}

TEST(S3XmlTest, RefusesSizeDepthAndNumberWithoutUsingThem) {
  EXPECT_ERROR(parse_xml("<a>" + std::string(kMaxXmlBytes, ' ') + "</a>", "s3://b"),
               ErrorCode::kUnavailable);
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

#endif
