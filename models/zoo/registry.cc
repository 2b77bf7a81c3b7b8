#include "models/zoo/registry.h"

#include "graph/error.h"
#include "graph/nearest.h"
#include "models/zoo/zoo.h"

namespace pipewright {

const std::vector<ModelRow>& model_rows() {
  static const std::vector<ModelRow> rows = {
      {"mlp", build_mlp, "layers=8,width=1024,classes=10,channels=1,image=32",
       "equal linear layers with ReLU, and a linear head"},
      {"convnet", build_convnet, "width=16,classes=10,channels=1,image=28",
       "six convolutions with batch norm, for small images such as Fashion-MNIST"},
      {"gpt", build_gpt, "layers=4,width=128,heads=4,tokens=64,vocabulary=256,dropout=0",
       "decoder of GPT-2's kind, predicts the next token"},
      {"alexnet", build_alexnet, "classes=1000,channels=3,image=224,hidden=4096,dropout=0.5",
       "torchvision's alexnet"},
      {"vgg11", build_vgg11, "classes=1000,channels=3,image=224,hidden=4096,dropout=0.5,small=no",
       "torchvision's vgg11"},
      {"vgg13", build_vgg13, "classes=1000,channels=3,image=224,hidden=4096,dropout=0.5,small=no",
       "torchvision's vgg13"},
      {"vgg16", build_vgg16, "classes=1000,channels=3,image=224,hidden=4096,dropout=0.5,small=no",
       "torchvision's vgg16"},
      {"vgg19", build_vgg19, "classes=1000,channels=3,image=224,hidden=4096,dropout=0.5,small=no",
       "torchvision's vgg19"},
      {"resnet18", build_resnet18, "classes=1000,channels=3,image=224,small=no", "torchvision's resnet18"},
      {"resnet34", build_resnet34, "classes=1000,channels=3,image=224,small=no", "torchvision's resnet34"},
      {"resnet50", build_resnet50, "classes=1000,channels=3,image=224,small=no", "torchvision's resnet50"},
      {"resnet101", build_resnet101, "classes=1000,channels=3,image=224,small=no", "torchvision's resnet101"},
      {"resnet152", build_resnet152, "classes=1000,channels=3,image=224,small=no", "torchvision's resnet152"},
      {"resnext50_32x4d", build_resnext50_32x4d, "classes=1000,channels=3,image=224",
       "torchvision's resnext50_32x4d"},
      {"squeezenet1_0", build_squeezenet1_0, "classes=1000,channels=3,image=224,dropout=0.5",
       "torchvision's squeezenet1_0"},
      {"mobilenet_v2", build_mobilenet_v2, "classes=1000,channels=3,image=224,dropout=0.2,small=no",
       "torchvision's mobilenet_v2"},
      {"densenet121", build_densenet121, "classes=1000,channels=3,image=224", "torchvision's densenet121"},
      {"inception_v3", build_inception_v3, "classes=1000,channels=3,image=299,auxiliary=yes,dropout=0.5",
       "torchvision's inception_v3, with its auxiliary classifier"},
      {"vit", build_vit, "patch=7,classes=10,channels=1,image=28,layers=8,width=64,heads=4,dropout=0",
       "vision transformer of any size; by default for Fashion-MNIST"},
      {"vit_ti_16", build_vit_ti_16,
       "classes=1000,channels=3,image=224,layers=12,width=192,heads=3,dropout=0",
       "timm's vit_tiny_patch16_224"},
      {"vit_s_16", build_vit_s_16, "classes=1000,channels=3,image=224,layers=12,width=384,heads=6,dropout=0",
       "timm's vit_small_patch16_224"},
      {"vit_b_16", build_vit_b_16, "classes=1000,channels=3,image=224,layers=12,width=768,heads=12,dropout=0",
       "torchvision's vit_b_16"},
      {"vit_b_32", build_vit_b_32, "classes=1000,channels=3,image=224,layers=12,width=768,heads=12,dropout=0",
       "torchvision's vit_b_32"},
      {"vit_l_16", build_vit_l_16,
       "classes=1000,channels=3,image=224,layers=24,width=1024,heads=16,dropout=0", "torchvision's vit_l_16"},
      {"vit_l_32", build_vit_l_32,
       "classes=1000,channels=3,image=224,layers=24,width=1024,heads=16,dropout=0", "torchvision's vit_l_32"},
      {"bert", build_bert,
       "layers=12,width=768,heads=12,tokens=128,positions=512,vocabulary=30522,dropout=0.1,head=tied,"
       "next_sentence=no",
       "BERT-base, names the masked tokens"},
      {"bert-classifier", build_bert_classifier,
       "classes=2,layers=12,width=768,heads=12,tokens=128,positions=512,vocabulary=30522,dropout=0.1",
       "BERT-base that classifies texts"},
      {"bert-span", build_bert_span,
       "layers=12,width=768,heads=12,tokens=384,positions=512,vocabulary=30522,dropout=0.1",
       "BERT-base that finds the answer to a question in a text"},
      {"gnmt", build_gnmt,
       "layers=8,width=1024,source=50,target=50,vocabulary=32320,dropout=0.2,smoothing=0.1,embedding="
       "separate",
       "GNMT-8 (layers=16: GNMT-16), translates"},
  };
  return rows;
}

Model build_model(const std::string& spec, int64_t batch_size) {
  ModelOptions options(parse_spec(spec, "model"));
  const std::string& name = options.spec().name;
  std::vector<std::string> names;
  for (const ModelRow& row : model_rows()) {
    names.push_back(row.name);
    if (name != row.name) continue;
    Model model = row.build(options, batch_size);
    options.finish();
    model.graph.name = spec;
    model.graph_for = [spec, build = row.build](int64_t samples) {
      ModelOptions same(parse_spec(spec, "model"));
      return build(same, samples).graph;
    };
    return model;
  }
  options.fail("", "unknown model '" + name + "'" + suggestion(name, names),
               "Next: pipewright-profiler models lists all, with their options");
}

}  // namespace pipewright
