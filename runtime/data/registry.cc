#include "graph/error.h"
#include "graph/nearest.h"
#include "runtime/data/sets.h"

namespace pipewright {

const std::vector<DatasetRow>& dataset_rows() {
  static const std::vector<DatasetRow> rows = {
      {"fashion-mnist", open_fashion_mnist, "root=DIR, image=28, channels=1, samples=ALL",
       "60,000 + 10,000 grey pictures of clothes, 28 x 28, in 10 classes"},
      {"mnist", open_mnist, "root=DIR, image=28, channels=1, samples=ALL, synthetic=no|yes, seed=0",
       "60,000 + 10,000 grey handwritten digits, 28 x 28; MNIST's files or a folder of images"},
      {"cifar10", open_cifar10, "root=DIR, samples=ALL, synthetic=no|yes, seed=0",
       "50,000 + 10,000 pictures, 32 x 32, in 10 classes; CIFAR-10's binary files or a folder of images"},
      {"imagenet", open_imagenet, "root=DIR, image=224, channels=3, samples=ALL, synthetic=no|yes, seed=0",
       "1,281,167 + 50,000 pictures in 1000 classes; a folder of images"},
      {"highres", open_highres, "root=DIR, image=512, channels=3, samples=ALL, synthetic=no|yes, seed=0",
       "50,000 + 10,000 pictures, 512 x 512, in 1000 classes; a folder of images"},
      {"image-folder", open_image_folder,
       "root=DIR, image=224, channels=3, crop=resized|padded|centre, flip=yes|no, resize=256, "
       "corrupt=fail|skip, max_pixels=128000000",
       "JPEG and PNG files, one folder a class"},
      {"synthetic-images", open_synthetic_images,
       "classes=10, image=28, channels=1, samples=10000, noise=1, seed=0",
       "a smooth random picture for each class, plus noise; needs no files"},
      {"synthetic-text", open_synthetic_text, "vocabulary=256, tokens=64, samples=10000, seed=0",
       "tokens of a random Markov chain, to predict the next; needs no files"},
      {"text", open_text, "file=FILE, tokens=64, format=bytes|uint16|uint32, vocabulary=256, held=0.1",
       "any text, a token a byte, or a file of tokens; to predict the next"},
      {"masked-text", open_masked_text,
       "file=FILE, tokens=128, format=bytes|uint16|uint32, vocabulary=257, masked=0.15, mask=LAST, held=0.1",
       "the same with some tokens masked, to say what they were"},
      {"wiki-shards", open_wiki_shards, "root=DIR, vocabulary=30522",
       "HDF5 files as BERT is trained with them: masked pairs of texts, and whether one follows the other"},
      {"translation", open_translation,
       "file=PAIRS.tsv, source=50, target=50, longer_than=0, vocabulary=8000, held=0.02, cache=FILE",
       "pairs of sentences, a tab between them, to translate"},
      {"sentences", open_sentences,
       "root=DIR, file=FILE.tsv, vocabulary=vocab.txt, tokens=128, classes=2, lower=yes|no",
       "sentences with a class each, as in SST-2, in BERT's word pieces"},
      {"questions", open_questions,
       "file=train-v1.1.json, evaluation=dev-v1.1.json, vocabulary=vocab.txt, tokens=384, stride=128, "
       "question=64, answer=30, lower=yes|no",
       "SQuAD 1.1: questions answered by a span of a text, in BERT's word pieces"},
      {"tensors", open_tensor_file, "file=FILE.safetensors, samples=ALL, shuffle=no|yes",
       "your own tensors, one for each input of the model, in the order of the file"},
  };
  return rows;
}

std::unique_ptr<Dataset> open_dataset(const std::string& spec, const std::string& split) {
  if (split != kTrainSplit && split != kEvaluationSplit) {
    throw InputError("data '" + spec + "': got split '" + split + "', expected '" + kTrainSplit + "' or '" +
                     kEvaluationSplit + "'");
  }
  SpecOptions options(parse_spec(spec, "data"));
  std::vector<std::string> names;
  for (const DatasetRow& row : dataset_rows()) {
    if (options.spec().name == row.name) return row.open(options, split);
    names.emplace_back(row.name);
  }
  throw InputError("data '" + spec + "': unknown data set '" + options.spec().name + "'" +
                   suggestion(options.spec().name, names));
}

}  // namespace pipewright
