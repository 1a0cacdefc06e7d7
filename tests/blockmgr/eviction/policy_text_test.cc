// The text form: ParsePolicy and FormatPolicy.
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

// A text, and what it changes of a policy.
struct GoodText {
  const char* text;
  void (*change)(EvictionPolicy& policy);
};

const GoodText kGoodTexts[] = {
    {" snapkv ( window = 64 , pool=avg,kernel=5,order=kvpress,group=max) ",
     [](EvictionPolicy& p) {
       p.scorer.window = 64;
       p.scorer.pool = PoolKind::kAvg;
       p.scorer.kernel = 5;
       p.scorer.order = PoolOrder::kKvPress;
       p.scorer.group = GroupReduce::kMax;
     }},
    {"h2o(norm=count,recent=9,obs_window=256)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kH2o;
       p.scorer.norm = H2oNorm::kCount;
       p.scorer.recent = 9;
       p.scorer.obs_window = 256;
     }},
    {"tova()", [](EvictionPolicy& p) { p.scorer.kind = ScorerKind::kTova; }},
    {"keydiff(anchor=median,metric=euclidean)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kKeyDiff;
       p.scorer.anchor = KeyDiffAnchor::kMedian;
       p.scorer.metric = KeyDiffMetric::kEuclidean;
     }},
    {"keydiff(metric=cosine,anchor=pairwise)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kKeyDiff;
       p.scorer.anchor = KeyDiffAnchor::kPairwise;
     }},
    {"expected_attention(n_future=64,n_sink=0,cov=false,vnorm=false,eps=0)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kExpectedAttention;
       p.scorer.n_future = 64;
       p.scorer.n_sink = 0;
       p.scorer.cov = false;
       p.scorer.vnorm = false;
       p.scorer.eps = 0.0;
     }},
    {"expected_attention( stats = Llama-3.1_8b )",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kExpectedAttention;
       p.scorer.stats = "Llama-3.1_8b";
     }},
    {"streaming(sinks=2)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kStreaming;
       p.scorer.sinks = 2;
     }},
    {"knorm", [](EvictionPolicy& p) { p.scorer.kind = ScorerKind::kKnorm; }},
    {"random(seed=7)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kRandom;
       p.scorer.seed = 7;
     }},
    {"external | external",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kExternal;
       p.budget.kind = BudgetKind::kExternal;
     }},
    {"dropkv(window=16, kernel=5)",
     [](EvictionPolicy& p) {
       p.scorer.kind = ScorerKind::kDropKv;
       p.scorer.window = 16;
       p.scorer.kernel = 5;
     }},
    {"snapkv|duo(profile=heads)",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kDuo;
       p.budget.profile = "heads";
     }},
    {"snapkv|protect(recent=10%, sinks=4)",
     [](EvictionPolicy& p) { p.protect = {.sinks = 4, .recent_percent = 10}; }},
    {"snapkv|pyramid(beta=14.5,formula=kvpress)",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kPyramid;
       p.budget.beta = 14.5;
       p.budget.formula = PyramidFormula::kKvPress;
     }},
    {"snapkv|adakv(alpha=0.5,mode=floor)",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kAdaKv;
       p.budget.alpha = 0.5;
       p.budget.mode = AdaKvMode::kFloor;
     }},
    {"snapkv|ada_pyramid(formula=factory,beta=2,alpha=1)",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kAdaPyramid;
       p.budget.alpha = 1.0;
       p.budget.beta = 2.0;
       p.budget.formula = PyramidFormula::kFactory;
     }},
    {"snapkv|headkv(profile=Llama-3.1_8b,share=1.01,temp=2)",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kHeadKv;
       p.budget.profile = "Llama-3.1_8b";
       p.budget.share = 1.01;
       p.budget.temp = 2.0;
     }},
    {"snapkv|lukv(profile= x )",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kLuKv;
       p.budget.profile = "x";
     }},
    {"snapkv|global",
     [](EvictionPolicy& p) { p.budget.kind = BudgetKind::kGlobal; }},
    {"snapkv|critical(first=0.25,eps=1e-3,norm=l2,gqa_product=true)",
     [](EvictionPolicy& p) {
       p.selector.kind = SelectorKind::kCritical;
       p.selector.first = 0.25;
       p.selector.eps = 1e-3;
       p.selector.norm = ValueNorm::kL2;
       p.selector.gqa_product = true;
     }},
    {"snapkv | round(token)|protect(sinks=4, recent=0) ",
     [](EvictionPolicy& p) {
       p.protect = {.sinks = 4, .recent = 0};
       p.rounding = Rounding::kToken;
     }},
    {"snapkv | adakv | round( token )",
     [](EvictionPolicy& p) {
       p.budget.kind = BudgetKind::kAdaKv;
       p.rounding = Rounding::kToken;
     }},
    {"snapkv | uniform | topk | round(page) | protect()",
     [](EvictionPolicy&) {}},
    {"snapkv", [](EvictionPolicy&) {}},
};

TEST(PolicyTextTest, ParsesEveryStageAndKey) {
  for (const GoodText& good : kGoodTexts) {
    SCOPED_TRACE(good.text);
    EvictionPolicy expected;
    good.change(expected);
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy(good.text));
    EXPECT_EQ(policy, expected);
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy again,
                         ParsePolicy(FormatPolicy(policy)));
    EXPECT_EQ(again, expected) << FormatPolicy(policy);
  }
}

TEST(PolicyTextTest, FormatsCanonically) {
  const std::pair<const char*, const char*> forms[] = {
      {"snapkv", "snapkv | uniform | topk"},
      {"snapkv(kernel=7,window=16)|adakv(alpha=0.30)|protect(recent=-1,sinks=2)"
       "|round(page)",
       "snapkv(window=16) | adakv(alpha=0.3) | topk | protect(sinks=2)"},
      {"tova|global|critical(norm=l2,first=0.5)|round(page)",
       "tova | global | critical(norm=l2)"},
      {"random|lukv(profile=a.b)|round(token)|protect(recent=3)",
       "random | lukv(profile=a.b) | topk | protect(recent=3) | round(token)"},
      {"random|critical|round(token)",
       "random | uniform | critical | round(token)"},
      {"expected_attention(eps=2e-2,cov=false)|ada_pyramid(beta=1e9)",
       "expected_attention(cov=false) | ada_pyramid(beta=1e+09) | topk"},
  };
  for (const auto& [text, canonical] : forms) {
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy(text));
    EXPECT_EQ(FormatPolicy(policy), canonical);
  }
}

struct BadText {
  const char* text;
  const char* where;  // stage and key, or what is wrong
  const char* expected;
  const char* got;
};

void ExpectErrors(std::span<const BadText> bad_texts) {
  for (const BadText& bad : bad_texts) {
    EXPECT_THAT(ParsePolicy(bad.text).status(),
                IsInvalid(bad.where, bad.expected, bad.got))
        << bad.text;
  }
}

constexpr char kScorers[] =
    "expected one of snapkv, h2o, tova, keydiff, expected_attention, "
    "streaming, knorm, random, external, dropkv";
constexpr char kLaterStages[] =
    "expected a budget (uniform, pyramid, adakv, ada_pyramid, headkv, lukv, "
    "global, external, duo), a selector (topk, critical), protect or round";
constexpr char kOrder[] =
    "expected scorer | budget | selector | options, each once";

const BadText kBadStructures[] = {
    {"", "expected a stage", "snapkv(window=32)", "got ''"},
    {"h20", "unknown scorer", kScorers, "'h20'"},
    {"adakv", "unknown scorer", kScorers, "'adakv'"},
    {"SNAPKV", "unknown scorer", kScorers, "'SNAPKV'"},
    {"snapkv | magic", "unknown stage", kLaterStages, "'magic'"},
    {"snapkv | topk | adakv", "out of order", kOrder, "'adakv'"},
    {"snapkv | uniform | adakv", "out of order", kOrder, "'adakv'"},
    {"snapkv | topk | critical", "out of order", kOrder, "'critical'"},
    {"snapkv | round(page) | topk", "out of order", kOrder, "'topk'"},
    {"snapkv | round(page) | protect | round(page)", "out of order", kOrder,
     "'round'"},
    {"snapkv | streaming", "out of order", "one scorer", "'streaming'"},
    {"snapkv(windw=3)", "snapkv: unknown key",
     "one of window, pool, kernel, order, group", "'windw'"},
    {"h2o(window=3)", "h2o: unknown key", "one of norm, recent, obs_window",
     "'window'"},
    {"tova(window=3)", "tova: unknown key", "no keys", "'window'"},
    {"knorm(eps=3)", "knorm: unknown key", "no keys", "'eps'"},
    {"random(sinks=3)", "random: unknown key", "one of seed", "'sinks'"},
    {"external(window=3)", "external: unknown key", "no keys", "'window'"},
    {"snapkv | uniform(alpha=1)", "uniform: unknown key", "no keys", "'alpha'"},
    {"snapkv | global(alpha=1)", "global: unknown key", "no keys", "'alpha'"},
    {"snapkv | pyramid(alpha=1)", "pyramid: unknown key",
     "one of beta, formula", "'alpha'"},
    {"snapkv | ada_pyramid(mode=floor)", "ada_pyramid: unknown key",
     "one of alpha, beta, formula", "'mode'"},
    {"snapkv | lukv(profile=x,temp=1)", "lukv: unknown key", "one of profile",
     "'temp'"},
    {"snapkv | topk(first=1)", "topk: unknown key", "no keys", "'first'"},
    {"snapkv(window=1,window=2)", "snapkv", "twice", "window"},
    {"snapkv(window)", "snapkv", "key=value", "'window'"},
    {"snapkv(=3)", "snapkv", "key=value", "'=3'"},
    {"snapkv(window=3,)", "snapkv", "key=value", "''"},
    {"snapkv(window=3", "snapkv", "')'", "snapkv(window=3"},
    {"snapkv(window=3) x", "snapkv", "')'", "snapkv(window=3) x"},
    {"snapkv|round", "round", "page, token", "''"},
    {"snapkv|round(half)", "round", "page, token", "'half'"},
    {"snapkv|round(page,token)", "round", "page, token", "'page,token'"},
    {"snapkv|round(page=1)", "round", "one word", "'page=1'"},
    {"snapkv|round(token)|parity(kvpress)", "expected no parity(..)",
     "blockmgr-evict", "'parity(kvpress)'"},
    {"snapkv | parity", "expected no parity(..)", "blockmgr-evict", "'parity'"},
    {"snapkv||topk", "expected a stage", "snapkv(window=32)", "got ''"},
    {"snapkv | topk trailing", "unknown stage", kLaterStages,
     "'topk trailing'"},
};

TEST(PolicyTextTest, ErrorsOfStructureNameWhatWasExpectedAndGot) {
  ExpectErrors(kBadStructures);
}

const BadText kBadValues[] = {
    {"snapkv(window=x)", "snapkv: window", "a 32-bit integer", "'x'"},
    {"snapkv(window=4294967296)", "snapkv: window", "32-bit", "4294967296"},
    {"snapkv(window=0)", "snapkv: window", "expected at least 1, got 0", ""},
    {"snapkv(pool=sum)", "snapkv: pool", "one of max, avg", "'sum'"},
    {"snapkv(kernel=4)", "snapkv: kernel", "an odd number in [1, 1023]",
     "got 4"},
    {"dropkv(kernel=4)", "dropkv: kernel", "an odd number in [1, 1023]",
     "got 4"},
    {"dropkv(pool=max)", "dropkv: unknown key", "one of window, kernel",
     "'pool'"},
    {"snapkv|duo", "duo: profile", "the name of a budget table", "got none"},
    {"snapkv|protect(recent=101%)", "protect: recent_percent",
     "a number in [0, 100]", "101"},
    {"snapkv|protect(recent=x%)", "protect: recent_percent", "a 32-bit integer",
     "'x'"},
    {"snapkv|protect(recent=3,recent_percent=10)", "protect: recent_percent",
     "expected 0 with recent", "got 10"},
    {"snapkv(kernel=0)", "snapkv: kernel", "a number in [1, 1023]", "got 0"},
    {"snapkv(kernel=1024)", "snapkv: kernel", "[1, 1023]", "got 1024"},
    {"snapkv(order=x)", "snapkv: order", "one of adakv, kvpress", "'x'"},
    {"snapkv(group=x)", "snapkv: group", "one of mean, max", "'x'"},
    {"h2o(norm=l1)", "h2o: norm", "one of none, count", "'l1'"},
    {"h2o(recent=-1)", "h2o: recent", "expected at least 0, got -1", ""},
    {"h2o(obs_window=-1)", "h2o: obs_window", "at least 0", "got -1"},
    {"keydiff(anchor=mean)", "keydiff: anchor",
     "one of normalized, raw, median, pairwise", "'mean'"},
    {"keydiff(metric=l2)", "keydiff: metric", "one of cosine, dot, euclidean",
     "'l2'"},
    {"expected_attention(n_future=0)", "expected_attention: n_future",
     "a number in [1, 1048576]", "got 0"},
    {"expected_attention(n_future=1048577)", "expected_attention: n_future",
     "a number in [1, 1048576]", "got 1048577"},
    {"expected_attention(n_sink=-1)", "expected_attention: n_sink",
     "at least 0", "got -1"},
    {"expected_attention(cov=maybe)", "expected_attention: cov",
     "true or false", "'maybe'"},
    {"expected_attention(vnorm=)", "expected_attention: vnorm", "true or false",
     "''"},
    {"expected_attention(eps=-1e-9)", "expected_attention: eps",
     "a number in [0, 1e+09]", "got -1e-09"},
    {"expected_attention(stats=)", "expected_attention: stats",
     "a name of 1 to 64", "got ''"},
    {"expected_attention(stats=../x)", "expected_attention: stats", "letters",
     "'../x'"},
    {"keydiff(stats=x)", "keydiff: unknown key", "'stats'", ""},
    {"streaming(sinks=-1)", "streaming: sinks", "at least 0", "got -1"},
    {"random(seed=-1)", "random: seed", "at least 0", "got -1"},
    {"snapkv|adakv(alpha=1.5)", "adakv: alpha",
     "expected a number in [0, 1], got 1.5", ""},
    {"snapkv|adakv(alpha=nan)", "adakv: alpha", "[0, 1]", "got nan"},
    {"snapkv|adakv(alpha=a)", "adakv: alpha", "a number", "'a'"},
    {"snapkv|adakv(mode=max)", "adakv: mode", "one of blend, floor", "'max'"},
    {"snapkv|ada_pyramid(alpha=-0.1)", "ada_pyramid: alpha", "[0, 1]",
     "got -0.1"},
    {"snapkv|pyramid(beta=0.99)", "pyramid: beta", "[1, 1e+09]", "got 0.99"},
    {"snapkv|pyramid(beta=inf)", "pyramid: beta", "[1, 1e+09]", "got inf"},
    {"snapkv|pyramid(formula=x)", "formula", "adakv, kvpress, factory", "'x'"},
    {"snapkv|headkv", "headkv: profile",
     "the name of a budget table, headkv(profile=NAME)", "got none"},
    {"snapkv|lukv(profile=)", "lukv: profile", "a name", "got ''"},
    {"snapkv|lukv(profile=../x)", "lukv: profile", "letters", "'../x'"},
    {"snapkv|lukv(profile=a b)", "lukv: profile", "letters", "'a b'"},
    {"snapkv|headkv(profile=x,share=0.5)", "headkv: share", "[1, 1e+09]",
     "got 0.5"},
    {"snapkv|headkv(profile=x,temp=-1)", "headkv: temp", "[0, 1000]", "got -1"},
    {"snapkv|critical(first=1.01)", "critical: first", "[0, 1]", "got 1.01"},
    {"snapkv|critical(eps=-1)", "critical: eps", "[0, 1e+09]", "got -1"},
    {"snapkv|critical(norm=linf)", "critical: norm", "one of l1, l2", "'linf'"},
    {"snapkv|critical(gqa_product=2)", "critical: gqa_product", "true or false",
     "'2'"},
    {"snapkv|protect(sinks=-1)", "protect: sinks", "at least 0", "got -1"},
    {"snapkv|protect(recent=-2)", "protect: recent", "at least -1", "-2"},
};

TEST(PolicyTextTest, ErrorsOfValuesNameStageKeyExpectedAndGot) {
  ExpectErrors(kBadValues);
}

TEST(PolicyTextTest, RejectsPartsThatDoNotGoTogether) {
  const BadText bad_texts[] = {
      {"keydiff(anchor=pairwise,metric=dot)", "keydiff: metric",
       "cosine with anchor=pairwise", "got dot"},
      {"keydiff(anchor=pairwise,metric=euclidean)", "keydiff: metric",
       "cosine with anchor=pairwise", "got euclidean"},
      {"h2o|critical(gqa_product=true)", "critical: gqa_product",
       "false with scorer h2o", "got true"},
      {"external|critical(gqa_product=true)", "critical: gqa_product",
       "false with scorer external", "got true"},
  };
  ExpectErrors(bad_texts);
  EXPECT_OK(ParsePolicy("tova|critical(gqa_product=true)").status());
  EXPECT_OK(ParsePolicy("h2o|critical(gqa_product=false)").status());
}

TEST(PolicyTextTest, AcceptsTheEndsOfEveryRange) {
  for (const char* text :
       {"snapkv(window=1,kernel=1)", "snapkv(window=2147483647,kernel=1023)",
        "h2o(recent=0,obs_window=2147483647)", "expected_attention(n_future=1)",
        "expected_attention(n_future=1048576,eps=1e9)", "random(seed=0)",
        "snapkv|adakv(alpha=0)", "snapkv|adakv(alpha=1)",
        "snapkv|pyramid(beta=1)", "snapkv|pyramid(beta=1e9)",
        "snapkv|headkv(profile=a,share=1,temp=0)",
        "snapkv|headkv(profile=a,share=1e9,temp=1000)",
        "snapkv|critical(first=0,eps=0)", "snapkv|critical(first=1,eps=1e9)",
        "snapkv|protect(recent=2147483647,sinks=2147483647)"}) {
    EXPECT_OK(ParsePolicy(text).status()) << text;
  }
  const std::string name(64, 'n');
  EXPECT_OK(
      ParsePolicy(absl::StrCat("tova|lukv(profile=", name, ")")).status());
  EXPECT_THAT(ParsePolicy(absl::StrCat("tova|lukv(profile=", name, "n)")),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PolicyTextTest, RejectsOverlongText) {
  EXPECT_THAT(ParsePolicy(absl::StrCat("snapkv", std::string(5000, ' '))),
              IsInvalid("5006"));
}

// A visitor that draws a value in its range for every field.
class FieldDrawer {
 public:
  explicit FieldDrawer(std::mt19937_64& random) : random_(random) {}

  void Int(absl::string_view key, int32_t& value, int32_t min, int32_t max) {
    const int64_t size = int64_t{max} - min + 1;
    switch (random_() % 4) {
      case 0:
        value = min;
        break;
      case 1:
        value = max;
        break;
      default:
        value = static_cast<int32_t>(
            min +
            static_cast<int64_t>(random_() % static_cast<uint64_t>(size)));
    }
    if (key == "kernel") value |= 1;
  }
  void Real(absl::string_view /*key*/, double& value, double min, double max) {
    const double share = std::ldexp(static_cast<double>(random_() >> 11), -53);
    switch (random_() % 4) {
      case 0:
        value = min;
        break;
      case 1:
        value = max;
        break;
      case 2:  // small ones have exponents
        value = min + (max - min) * std::pow(share, 20.0);
        break;
      default:
        value = min + (max - min) * share;
    }
  }
  void Bool(absl::string_view /*key*/, bool& value) {
    value = random_() % 2 != 0;
  }
  void Text(absl::string_view /*key*/, std::string& value) {
    constexpr absl::string_view kLetters = "aZ09_-.";
    value.clear();
    for (uint64_t left = 1 + random_() % 64; left > 0; --left) {
      value += kLetters[random_() % kLetters.size()];
    }
  }
  template <typename E>
  void Enum(absl::string_view /*key*/, E& value) {
    value = static_cast<E>(random_() % EnumNames<E>().size());
  }

 private:
  std::mt19937_64& random_;
};

EvictionPolicy RandomPolicy(std::mt19937_64& random) {
  EvictionPolicy policy;
  FieldDrawer draw(random);
  draw.Enum("scorer", policy.scorer.kind);
  draw.Enum("budget", policy.budget.kind);
  draw.Enum("selector", policy.selector.kind);
  VisitScorer(policy.scorer, draw);
  VisitBudget(policy.budget, draw);
  VisitSelector(policy.selector, draw);
  if (random() % 2 == 0) VisitProtection(policy.protect, draw);
  if (policy.protect.recent_percent > 0) policy.protect.recent = -1;
  draw.Enum("round", policy.rounding);
  if (policy.scorer.anchor == KeyDiffAnchor::kPairwise) {
    policy.scorer.metric = KeyDiffMetric::kCosine;
  }
  if (policy.scorer.kind != ScorerKind::kSnapKv &&
      policy.scorer.kind != ScorerKind::kTova) {
    policy.selector.gqa_product = false;
  }
  return policy;
}

TEST(PolicyTextTest, ReadsBackEveryPolicyItWrites) {
  for (uint64_t seed = 0; seed < 30'000; ++seed) {
    std::mt19937_64 random(seed);
    const EvictionPolicy policy = RandomPolicy(random);
    const std::string text = FormatPolicy(policy);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", text));
    ASSERT_OK(policy.Validate());
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy again, ParsePolicy(text));
    ASSERT_EQ(again, policy);
    ASSERT_EQ(FormatPolicy(again), text);
  }
}

// Letters changed, removed and doubled, and pieces of other policies put in.
std::string Mutate(std::mt19937_64& random, std::string text) {
  constexpr absl::string_view kAlphabet =
      "()|,= -+._0123456789abcdefghiklmnoprstuvwxy\n";
  for (uint64_t edits = random() % 4; edits > 0 && !text.empty(); --edits) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text.erase(at, 1 + random() % 4);
        break;
      case 1:
        text[at] = kAlphabet[random() % kAlphabet.size()];
        break;
      case 2:
        text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
        break;
      default: {
        const std::string other = FormatPolicy(RandomPolicy(random));
        text.replace(at, random() % 20, other, random() % other.size(), 20);
      }
    }
  }
  return text;
}

TEST(PolicyTextTest, ReadsBackOrRejectsMutatedTexts) {
  for (uint64_t seed = 0; seed < 60'000; ++seed) {
    std::mt19937_64 random(seed);
    const std::string text = Mutate(random, FormatPolicy(RandomPolicy(random)));
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", text));
    const auto policy = ParsePolicy(text);
    if (!policy.ok()) {
      ASSERT_THAT(policy.status(), IsInvalid("policy: "));
      continue;
    }
    ASSERT_OK(policy->Validate());
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy again,
                         ParsePolicy(FormatPolicy(*policy)));
    ASSERT_EQ(again, *policy);
  }
}

}  // namespace
}  // namespace blockmgr
