// The bytes of small files have digests, so they stay as they are: what earlier code has
// written is read, and written again, byte by byte. The texts are from
// tests/fixtures/runs/before_folding.tar.xz.
#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run_file_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kManifest = R"({"holdfast":"manifest","version":1,"step":5,"run":"072902bd9dad84551a74a9f47c70fd68",
"epoch":1,"sequence":3,"attempt":"de1dcfcae8c13adc","world":1,"parallel":"1 ranks","parent":"",
"created_ns":1795034003518803632,"software":{"holdfast":"0.1.0","python":"3.11.7","torch":"2.13.0+cpu"},
"metrics":{},
"files":[
{"name":"rank-0000.packed","bytes":970,"digest":"crc32c:55720935"},
{"name":"step-00000001.de018aa972950621.rank-0000.packed","bytes":1046,"digest":"crc32c:4c60c988"},
{"name":"rank-0000.index.json","bytes":2292,"digest":"xxh3:a5a90053be3af67ce2f9164e2afa2e04"},
{"name":"rank-0000.objects.json","bytes":25802,"digest":"xxh3:cbe52908a461e6191dde202a6bbf44e8"},
{"name":"objects.json","bytes":773,"digest":"xxh3:d9172bc8cd7d62cc5fb0de7ccaed00ad"}],
"digest":"29922fd1cc1b30d77a4388b66b6148b2"}
)";

constexpr std::string_view kOwner = R"({"holdfast":"owner","version":2,"host":"alpha","boot":"00000000-0000-4000-8000-000000000001","pid":5113,"started":330951,"pid_space":4026531836,"job":"","restart":0,
"epoch":1,"token":"98a37d0f6721caaa","since_ns":1795034002925568464,"renewed_ns":1795034003496921638,"lease_until_ns":1795034123496921638,"released":false,
"fence":[],
"digest":"b6eeb74f8646aaa77cf577c04ede3a6f"}
)";

constexpr std::string_view kRun = R"({"holdfast":"run","version":2,"run":"072902bd9dad84551a74a9f47c70fd68",
"digest":"c62402c8e499d53a8da92cf21900d6d3"}
)";

constexpr std::string_view kIndex = R"({"holdfast":"shard index","version":1,
"files":[
["rank-0000.packed",970,[[4096,"18655aac"],[708,"837162da"]],[[279,"0fe8b31c",1],[691,"895d8094",4]]],
["step-00000001.de018aa972950621.rank-0000.packed",1046,[[4096,"fbcbe412"],[772,"7418490f"]],[[291,"ea4a815e",1],[755,"05176fd1",4]]]],
"tensors":[
["model.0.weight","F32",[8,6],"parameter","",[],0],
["model.0.bias","F32",[8],"parameter","",[],0],
["model.3.weight","F32",[2,8],"parameter","",[],0],
["model.3.bias","F32",[2],"parameter","",[],0],
["optimizer.0.weight.step","F32",[],"counter","model.0.weight",[],0],
["optimizer.0.weight.exp_avg","F32",[8,6],"slot","model.0.weight",[],0],
["optimizer.0.weight.exp_avg_sq","F32",[8,6],"slot","model.0.weight",[],0],
["optimizer.0.bias.step","F32",[],"counter","model.0.bias",[],0],
["optimizer.0.bias.exp_avg","F32",[8],"slot","model.0.bias",[],0],
["optimizer.0.bias.exp_avg_sq","F32",[8],"slot","model.0.bias",[],0],
["optimizer.3.bias.step","F32",[],"counter","model.3.bias",[],0],
["optimizer.3.bias.exp_avg","F32",[2],"slot","model.3.bias",[],0],
["optimizer.3.bias.exp_avg_sq","F32",[2],"slot","model.3.bias",[],0]],
"pieces":[
[0,0,4096,[0,8,0,6],"905504e36883a47c9e2cc801d4a0cba6","ba81dd32a523bf761902872ba65bfba8"],
[1,0,4288,[0,8],"bdef82a6d1da6880cc347ad9b1a52272","1899641bd562a4bda2b01adf9e4dfc50"],
[2,1,4320,[0,2,0,8],"0ceeaa2fa28a23da714e986872bac8e4","388f6dd64e29b2f6382b8e221539a462"],
[3,0,4320,[0,2],"887c1cd0948aa86b3beb99d7b0d56dd1","b24254cc6ffe46470e2f04addc90ca01"],
[4,0,4328,[],"ff7e8c9e09400000eff56afe61c00000","9e0e639e4f3202054c17f0c3016bcf4f"],
[5,0,4332,[0,8,0,6],"5260997bb6938d9d582f8499e85b199f","ed7719c5d956624a41d1027cd63886b1"],
[6,0,4524,[0,8,0,6],"bfb0c1cb49dbff265a5a8f78de8cba08","fd99d5cbe76c8969d9e4904bebec7fb9"],
[7,0,4716,[],"ff7e8c9e09400000eff56afe61c00000","9e0e639e4f3202054c17f0c3016bcf4f"],
[8,0,4720,[0,8],"2881195fbd2056c8336b99e57d7e89da","977b386f18aed18b72666466c0651232"],
[9,0,4752,[0,8],"5633de3364aa56f191e3ed05bdf15c41","08d60c8ebfb15b2fb6295268e50ff6b3"],
[10,0,4784,[],"ff7e8c9e09400000eff56afe61c00000","9e0e639e4f3202054c17f0c3016bcf4f"],
[11,0,4788,[0,2],"5d7c932f70c325dee80e2a3857c7308a","cdf359960492b32b75be414372af977c"],
[12,0,4796,[0,2],"7a575af9089a1e08a491c7b5ec416df8","7910c833e60d44a70b245b5ed2019953"]]}
)";

TEST(OlderDocumentsTest, EachIsWrittenAgainByteByByte) {
  const auto again = [](std::string_view text, auto decode, auto encode) {
    const auto read = decode(bytes_of(text), "older");
    ASSERT_OK(read);
    EXPECT_EQ(text_of(encode(*read)), text);
  };
  again(kManifest, decode_manifest, encode_manifest);
  again(kOwner, decode_owner, encode_owner);
  again(kRun, decode_run_file, encode_run_file);
  again(kIndex, decode_shard_index, encode_shard_index);
}

}  // namespace
}  // namespace holdfast
