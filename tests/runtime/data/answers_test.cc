// Answers judged by hand, as SQuAD's evaluate-v1.1.py judges them.
#include "runtime/data/answers.h"

#include <catch2/catch.hpp>

namespace pipewright {
namespace {

TEST_CASE("answers: what is left of one when it is normalised") {
  CHECK(normalised_answer("The  Cat,\tand an Owl!") == "cat and owl");
  CHECK(normalised_answer("A") == "");
  CHECK(normalised_answer(" it's  the_end ") == "its theend");
  CHECK(normalised_answer("the-cat") == "thecat");  // the hyphen goes before the article is looked for
  CHECK(normalised_answer("ÉCOLE  \u00a0Straße") == "école straße");
  CHECK(normalised_answer("theatre banana") == "theatre banana");
  CHECK(normalised_answer("$3.5 (US)") == "35 us");
  CHECK(normalised_answer("l\u2019a b") == "l\u2019 b");  // not ASCII: it stays, and divides words
  CHECK(normalised_answer("").empty());
}

TEST_CASE("answers: exact match and F1, the best over the expected ones") {
  CHECK(judged("the Denver Broncos", {"Denver Broncos"}).exact == 1);
  CHECK(judged("the Denver Broncos", {"Denver Broncos"}).f1 == 1);
  CHECK(judged("Denver", {"Denver Broncos"}).exact == 0);
  CHECK(judged("Denver", {"Denver Broncos"}).f1 == Approx(2.0 / 3));
  // Three words of four are there, and three of five wanted: 2 * 3/4 * 3/5 / (3/4 + 3/5).
  CHECK(judged("b c c d", {"x b c c z"}).f1 == Approx(2.0 / 3));
  CHECK(judged("c c", {"c"}).f1 == Approx(2.0 / 3));  // the second c is one too many
  CHECK(judged("gold", {"silver", "gold medal", "Gold!"}).exact == 1);
  CHECK(judged("gold coin", {"silver", "gold medal", "a coin"}).f1 == Approx(2.0 / 3));
  CHECK(judged("silver", {"gold"}).f1 == 0);
  CHECK(judged("", {"gold"}).f1 == 0);
  CHECK(judged("the", {"a"}).exact == 1);  // both are nothing, of which no word is common
  CHECK(judged("the", {"a"}).f1 == 0);
}

}  // namespace
}  // namespace pipewright
