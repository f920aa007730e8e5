#include "runtime/formats/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "runtime/formats/json_metadata.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

namespace fs = std::filesystem;
using ::manyhead::testing::SafetensorsFile;
using ::manyhead::testing::TempDir;
using ::testing::HasSubstr;

std::string Tensor(const std::string& name) {
  return "{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
}

std::string Shard(const std::string& name, char fill) {
  return SafetensorsFile(Tensor(name), std::string(8, fill));
}

std::string Index(const std::string& map) { return "{\"metadata\":{},\"weight_map\":" + map + "}"; }

std::string MessageOf(const TempDir& folder) {
  const Result<HfFolder> opened = HfFolder::Open(folder.path());
  return opened.ok() ? "no error" : opened.status().message();
}

TEST(HfFolder, OpensOneFile) {
  const TempDir folder;
  folder.Write("config.json", R"({"hidden_size":8,"nested":{"factor":2.5}})");
  folder.Write("model.safetensors", Shard("a", '\1'));
  folder.Write("tokenizer.json", "{}");
  const Result<std::unique_ptr<const Checkpoint>> file = Checkpoint::Open(folder.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->format(), CheckpointFormat::kHuggingFace);
  EXPECT_EQ(**(*file)->config().GetInt("hidden_size"), 8);
  EXPECT_EQ(**(*file)->config().GetFloat("nested.factor"), 2.5);
  EXPECT_EQ((*file)->tokenizer_files()->tokenizer, "{}");
  EXPECT_EQ((*file)->tokenizer_files()->generation_config, "");
  ASSERT_NE((*file)->FindTensor("a"), nullptr);
  EXPECT_EQ((*file)->FindTensor("b"), nullptr);
}

TEST(HfFolder, OpensTheFilesOfAnIndexAndLinks) {
  const TempDir folder, blobs;
  folder.Write("config.json", "{}");
  blobs.Write("blob", Shard("a", '\1'));
  // A cache of downloads keeps files this way.
  fs::create_symlink(blobs.File("blob"), folder.File("x-1.safetensors"));
  folder.Write("x-2.safetensors", Shard("b", '\2'));
  folder.Write("model.safetensors.index.json",
               Index(R"({"a":"x-1.safetensors","b":"x-2.safetensors"})"));
  const Result<HfFolder> file = HfFolder::Open(folder.path());
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->FindTensor("b")->data[0], std::byte{2});
  file->Prefetch();
  file->ReleasePages({file->FindTensor("a")->data, 8});
  EXPECT_EQ(file->FindTensor("a")->data[7], std::byte{1});
}

TEST(HfFolder, RefusesWhatAnIndexMayNotName) {
  for (const std::string name :
       {"../x.safetensors", "/tmp/x.safetensors", "sub/x.safetensors", ".safetensors",
        "..safetensors", "x.bin", "", "a\\\\b.safetensors", "a\\u0000b.safetensors"}) {
    const TempDir folder;
    folder.Write("config.json", "{}");
    folder.Write("model.safetensors.index.json", Index("{\"a\":\"" + name + "\"}"));
    EXPECT_THAT(MessageOf(folder), HasSubstr("expected the name of a .safetensors file")) << name;
  }
  const TempDir folder;
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors.index.json", Index(R"({"a":7})"));
  EXPECT_THAT(MessageOf(folder), HasSubstr("weight_map has 7 for 'a'"));
}

TEST(HfFolder, RefusesAnIndexThatItsFilesContradict) {
  const TempDir folder;
  folder.Write("config.json", "{}");
  folder.Write("x.safetensors", Shard("a", '\1'));
  folder.Write("y.safetensors", Shard("b", '\1'));
  const auto message = [&](const std::string& map) {
    folder.Write("model.safetensors.index.json", Index(map));
    return MessageOf(folder);
  };
  EXPECT_EQ(message(R"({"a":"x.safetensors","b":"y.safetensors"})"), "no error");
  EXPECT_THAT(message(R"({"b":"x.safetensors"})"),
              HasSubstr("has tensor 'a', for which model.safetensors.index.json names no file"));
  EXPECT_THAT(message(R"({"a":"y.safetensors","b":"x.safetensors"})"),
              HasSubstr("x.safetensors has tensor 'a', for which"));
  EXPECT_THAT(message(R"({"a":"x.safetensors","c":"x.safetensors"})"),
              HasSubstr("lists tensor 'c' in x.safetensors, which does not have it"));
  EXPECT_THAT(message(R"({"a":"none.safetensors"})"), HasSubstr("none.safetensors"));
  EXPECT_THAT(message("{}"), HasSubstr("expected an object with a weight_map"));
}

TEST(HfFolder, RefusesFoldersAndFilesOfOtherKinds) {
  const TempDir folder;
  EXPECT_THAT(MessageOf(folder), HasSubstr("is a folder without config.json"));
  folder.Write("config.json", "[1]");
  EXPECT_THAT(MessageOf(folder), HasSubstr("config.json: holds [1]; expected an object"));
  folder.Write("config.json", R"({"a":1,"a":2})");
  EXPECT_THAT(MessageOf(folder), HasSubstr("config.json: the text has the key \"a\" twice"));
  folder.Write("config.json", "{\"a\":" + std::string(70, '[') + std::string(70, ']') + "}");
  EXPECT_THAT(MessageOf(folder), HasSubstr("nested more than 64 deep"));
  folder.Write("config.json", "{}" + std::string((16 << 20) - 1, ' '));
  EXPECT_THAT(MessageOf(folder), HasSubstr("bytes; expected at most 16777216"));
  folder.Write("config.json", "{}");
  EXPECT_THAT(MessageOf(folder), HasSubstr("has neither model.safetensors nor"));
  fs::create_directory(folder.File("model.safetensors"));
  EXPECT_THAT(MessageOf(folder), HasSubstr("model.safetensors"));
  fs::remove(folder.File("model.safetensors"));
  // Nobody writes to it: opening would wait forever.
  ASSERT_EQ(mkfifo(folder.File("model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf(folder), HasSubstr("model.safetensors"));
  fs::remove(folder.File("model.safetensors"));
  fs::create_symlink("model.safetensors", folder.File("model.safetensors"));
  EXPECT_THAT(MessageOf(folder), HasSubstr("model.safetensors"));
}

TEST(JsonMetadata, ReadsValuesByKind) {
  const Result<JsonMetadata> json = JsonMetadata::Parse(
      R"({"s":"x","i":-3,"f":0.5,"b":true,"n":null,"l":[1,2],"t":["p","q"],"o":{"in":7},)"
      R"("big":18446744073709551615})",
      "config.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(**json->GetString("s"), "x");
  EXPECT_EQ(**json->GetInt("i"), -3);
  EXPECT_EQ(**json->GetFloat("i"), -3);
  EXPECT_EQ(**json->GetFloat("f"), 0.5);
  EXPECT_TRUE(**json->GetBool("b"));
  EXPECT_FALSE(json->GetInt("n")->has_value());
  EXPECT_EQ(json->Count("n"), 0);
  EXPECT_EQ(json->Count("l"), 2);
  EXPECT_EQ((**json->GetInts("l"))[1], 2);
  EXPECT_EQ((**json->GetInts("i")).size(), 1U);
  EXPECT_EQ((**json->GetStrings("t"))[1], "q");
  EXPECT_EQ(**json->GetInt("o.in"), 7);
  EXPECT_FALSE(json->GetInt("s.in")->has_value());
  EXPECT_EQ(json->GetInt("f").status().message(), "config.json: f = 0.5; expected a whole number");
  EXPECT_EQ(json->GetInt("big").status().message(),
            "config.json: big = 18446744073709551615; expected a whole number");
  EXPECT_EQ(json->GetStrings("l").status().message(),
            "config.json: l = [1,2]; expected a list of strings");
  EXPECT_EQ(json->entries().size(), 9U);
  EXPECT_EQ(json->entries()[7].value, R"({"in":7})");
}

}  // namespace
}  // namespace manyhead
