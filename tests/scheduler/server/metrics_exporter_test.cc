#include "scheduler/server/metrics_exporter.h"

#include <future>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <boost/asio.hpp>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The whole answer to GET `path` of HOST:PORT; empty: nobody is there.
std::string Get(const std::string& address, const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket(context);
  boost::asio::ip::tcp::resolver resolver(context);
  boost::system::error_code error;
  boost::asio::connect(socket, resolver.resolve(parts.at(0), parts.at(1)),
                       error);
  if (error) return "";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
  boost::asio::write(socket, boost::asio::buffer(request), error);
  std::string answer;
  boost::asio::read(socket, boost::asio::dynamic_buffer(answer), error);
  return answer;
}

// The samples of an exposition, by name and labels as they stand there.
std::map<std::string, double> Samples(const std::string& answer) {
  std::map<std::string, double> samples;
  const size_t body = answer.find("\r\n\r\n");
  EXPECT_NE(body, std::string::npos) << answer;
  if (body == std::string::npos) return samples;
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(answer.substr(body + 4), '\n'))) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    EXPECT_TRUE(space != std::string::npos &&
                absl::SimpleAtod(line.substr(space + 1), &value))
        << line;
    EXPECT_TRUE(samples.emplace(line.substr(0, space), value).second) << line;
  }
  return samples;
}

CoreStats DistinctStats() {
  CoreStats stats;
  SchedulerStats& s = stats.scheduler;
  uint64_t next = 100;
  const auto set = [&next](auto&... fields) {
    ((fields = static_cast<std::remove_reference_t<decltype(fields)>>(++next)),
     ...);
  };
  VisitSchedulerStats(s, [&](StatKind kind, absl::string_view name, auto& value,
                             const char* metric, const char*) {
    const bool is_state = kind == StatKind::kGauge && *metric == '\0';
    if (*metric != '\0' || is_state) set(value);
    EXPECT_TRUE(*metric != '\0' || is_state || kind == StatKind::kPeak ||
                name == "num_finished")
        << name;
  });
  set(stats.running_request_seconds);
  set(stats.requests.finished[0], stats.requests.finished[1],
      stats.requests.finished[2], stats.requests.finished[3],
      stats.requests.refused[8], stats.requests.refused[14]);
  for (const char* name : {"a", "*"}) {
    TenantUse& use = s.tenants.emplace_back(TenantUse{.name = name});
    set(use.num_requests, use.queued_tokens, use.reserved_blocks);
  }
  ++s.blocks.num_blocks;  // the null block is not one that can be allocated
  return stats;
}

TEST(MetricFamiliesTest, EveryValueIsThereOnce) {
  std::multiset<double> values;
  for (const prometheus::MetricFamily& family :
       ToMetricFamilies(DistinctStats())) {
    if (family.type == prometheus::MetricType::Histogram) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      values.insert(metric.gauge.value + metric.counter.value);
    }
  }
  values.erase(0);  // no engine is attached
  std::multiset<double> expected;
  for (int i = 0; i < 52; ++i) expected.insert(101 + i);
  EXPECT_EQ(values, expected);
}

TEST(MetricFamiliesTest, NamesFollowTheRules) {
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family :
       ToMetricFamilies(DistinctStats())) {
    SCOPED_TRACE(family.name);
    EXPECT_TRUE(names.insert(family.name).second);
    EXPECT_THAT(family.name, StartsWith("blockmgr_"));
    EXPECT_FALSE(family.help.empty());
    EXPECT_EQ(family.type == prometheus::MetricType::Counter,
              absl::EndsWith(family.name, "_total"));
    EXPECT_EQ(family.type == prometheus::MetricType::Histogram,
              absl::EndsWith(family.name, "_seconds"));
  }
}

TEST(MetricFamiliesTest, BucketsAreCumulative) {
  CoreStats stats;
  for (const double seconds : {0.0005, 0.002, 0.002, 7.0, 5000.0}) {
    stats.requests.first_token.Observe(seconds);
  }
  for (const prometheus::MetricFamily& family : ToMetricFamilies(stats)) {
    if (family.name != "blockmgr_request_first_token_seconds") continue;
    const auto& histogram = family.metric.at(0).histogram;
    EXPECT_EQ(histogram.sample_count, 5u);
    EXPECT_DOUBLE_EQ(histogram.sample_sum, 5007.0045);
    std::map<double, uint64_t> buckets;
    for (const auto& bucket : histogram.bucket) {
      buckets[bucket.upper_bound] = bucket.cumulative_count;
    }
    EXPECT_EQ(buckets.at(0.001), 1u);
    EXPECT_EQ(buckets.at(0.0025), 3u);
    EXPECT_EQ(buckets.at(5), 3u);
    EXPECT_EQ(buckets.at(10), 4u);
    EXPECT_EQ(buckets.at(1000), 4u);
    EXPECT_EQ(buckets.at(std::numeric_limits<double>::infinity()), 5u);
    return;
  }
  FAIL() << "no such family";
}

class MetricsServerTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.metrics_listen = "127.0.0.1:0";
    Start(options);
  }

  std::map<std::string, double> Scrape() const {
    return Samples(Get(server_->metrics_address(), "/metrics"));
  }
};

TEST_F(MetricsServerTest, ServesWhatTheDaemonCounts) {
  EXPECT_EQ(Scrape().at("blockmgr_engine_attached"), 0);
  const auto engine = StartEngine();
  engine->StartAnswers();
  {
    FakeFrontend frontend(address(), "a", /*opens=*/false);
    EXPECT_FALSE(frontend.Submit("too early", 1).ok());
    frontend.Open();
    for (int i = 0; i < 7; ++i) {
      ASSERT_TRUE(frontend.Submit(absl::StrCat("r", i), 3).ok());
    }
    for (int i = 0; i < 7; ++i) frontend.ReadRequest(absl::StrCat("r", i));
    const v1::GetStatsResponse stats = Stats();
    const std::map<std::string, double> samples = Scrape();
    const auto expect = [&samples](const std::string& name, double value) {
      ASSERT_TRUE(samples.contains(name)) << name;
      EXPECT_EQ(samples.at(name), value) << name;
    };
    expect("blockmgr_up", 1);
    expect("blockmgr_engine_attached", 1);
    expect("blockmgr_steps_total", static_cast<double>(stats.num_steps()));
    expect("blockmgr_requests_running", 0);
    expect("blockmgr_requests_finished_total{reason=\"length\"}", 7);
    expect("blockmgr_requests_finished_total{reason=\"failed\"}", 0);
    expect("blockmgr_submissions_refused_total{code=\"FAILED_PRECONDITION\"}",
           1);
    expect("blockmgr_pool_blocks", SmallLayout().num_blocks - 1);
    expect("blockmgr_metadata_bytes",
           static_cast<double>(stats.metadata_bytes()));
    for (const char* name : {"queue", "first_token", "output_token"}) {
      expect(absl::StrCat("blockmgr_request_", name, "_seconds_count"), 7);
    }
    expect("blockmgr_request_seconds_bucket{le=\"+Inf\"}", 7);
    expect("blockmgr_step_seconds_count",
           static_cast<double>(stats.num_steps()));
  }
}

TEST_F(MetricsServerTest, ServesNothingElse) {
  const std::string& address = server_->metrics_address();
  for (const char* path :
       {"/", "/CMakeCache.txt", "/../../../../../../etc/passwd", "//etc/passwd",
        "/metrics/../etc/passwd"}) {
    const std::string answer = Get(address, path);
    EXPECT_THAT(answer, HasSubstr(" 404 ")) << path;
    EXPECT_EQ(answer.find("root:"), std::string::npos);
  }
}

TEST_F(MetricsServerTest, HalfSentRequestsKeepNobodyOut) {
  const std::vector<std::string> parts =
      absl::StrSplit(server_->metrics_address(), ':');
  boost::asio::io_context context;
  boost::asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(parts.at(0), parts.at(1));
  std::vector<boost::asio::ip::tcp::socket> half;
  for (int i = 0; i < 200; ++i) {
    half.emplace_back(context);
    boost::asio::connect(half.back(), found);
    boost::asio::write(half.back(),
                       boost::asio::buffer(std::string("GET /metrics HT")));
  }
  std::string answer;
  for (int i = 0; i < 3 && answer.empty(); ++i) {
    answer = Get(server_->metrics_address(), "/metrics");
  }
  EXPECT_EQ(Samples(answer).at("blockmgr_up"), 1);
  // Each is ended by the server.
  for (boost::asio::ip::tcp::socket& socket : half) {
    std::string rest;
    boost::system::error_code error;
    boost::asio::read(socket, boost::asio::dynamic_buffer(rest), error);
    EXPECT_TRUE(error);
  }
}

TEST_F(MetricsServerTest, ManyScrapesAtOnceAreAllAnswered) {
  std::vector<double> up(30);
  std::vector<std::thread> scrapes;
  scrapes.reserve(up.size());
  for (double& answer : up) {
    scrapes.emplace_back([this, &answer] {
      for (int i = 0; i < 5; ++i) answer += Scrape().at("blockmgr_up");
    });
  }
  for (std::thread& scrape : scrapes) scrape.join();
  EXPECT_EQ(up, std::vector<double>(30, 5));
}

TEST_F(MetricsServerTest, StopsWithTheServer) {
  const std::string address = server_->metrics_address();
  EXPECT_THAT(Get(address, "/metrics"), HasSubstr(" 200 OK"));
  server_->Shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(Get(address, "/metrics"), "");
}

TEST_F(MetricsServerTest, RefusesAddressesThatAreNone) {
  const auto start = [this](const std::string& listen) {
    ServerOptions options;
    options.listen = "unix:" + folder_.path() + "/other.sock";
    options.metrics_listen = listen;
    return Server::Start(options, FakeScheduler::Make).status();
  };
  for (const char* listen : {"9464", "127.0.0.1:", "127.0.0.1:99999", ":9464",
                             "unix:/tmp/metrics.sock", "127.0.0.1:80s"}) {
    EXPECT_THAT(start(listen), IsInvalid("metrics_listen")) << listen;
  }
  EXPECT_THAT(start(server_->metrics_address()),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("metrics_listen: cannot listen on")));
}

TEST(MetricsOfAStuckCoreTest, SaysThatItIsDown) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  CoreThread core(CoreThreadOptions(), [released](const auto&, const auto&) {
    released.wait();
    return absl::StatusOr<std::unique_ptr<Scheduler>>(
        absl::UnavailableError("released"));
  });
  {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MetricsExporter> exporter,
                         MetricsExporter::Start("127.0.0.1:0", &core));
    const auto up = [&exporter] {
      return Samples(Get(exporter->address(), "/metrics")).at("blockmgr_up");
    };
    EXPECT_EQ(up(), 1);
    std::promise<void> refused;
    core.Post(
        AttachEngine{.layout = SmallLayout(),
                     .name = "slow",
                     .done = [&refused](const auto&) { refused.set_value(); }});
    EXPECT_EQ(up(), 0);
    release.set_value();
    refused.get_future().wait();
    EXPECT_EQ(up(), 1);
  }
}

}  // namespace
}  // namespace blockmgr
