// The words that prompts are made of.
#ifndef BENCH_QUALITY_PROMPT_WORDS_H_
#define BENCH_QUALITY_PROMPT_WORDS_H_

#include <array>

namespace blockmgr {

inline constexpr std::array kAdjectives = {
    "amber",  "ancient", "bitter",  "brave",  "bright", "calm",   "clever",
    "cold",   "crimson", "curious", "eager",  "early",  "fierce", "gentle",
    "golden", "happy",   "hidden",  "honest", "humble", "icy",    "jolly",
    "lively", "loud",    "lucky",   "modest", "narrow", "noble",  "polite",
    "proud",  "quiet",   "rapid",   "silent", "silver", "sturdy", "sweet",
    "tidy",   "velvet",  "violet",  "wild",   "young"};

inline constexpr std::array kNouns = {
    "anchor", "apple",   "basket", "bridge", "candle", "castle",  "cloud",
    "copper", "desert",  "dragon", "engine", "falcon", "feather", "forest",
    "garden", "guitar",  "hammer", "harbor", "island", "jacket",  "kettle",
    "ladder", "lantern", "lemon",  "meadow", "mirror", "needle",  "orchid",
    "pebble", "pencil",  "piano",  "ribbon", "river",  "saddle",  "shadow",
    "temple", "tunnel",  "valley", "violin", "window"};

inline constexpr std::array kPeople = {
    "Maria",  "Peter",  "Anna",   "Thomas", "Laura", "Daniel",
    "Sophie", "Martin", "Helen",  "George", "Julia", "Robert",
    "Clara",  "Simon",  "Emma",   "Victor", "Alice", "Oscar",
    "Nina",   "Henry",  "Sarah",  "Lucas",  "Irene", "Walter",
    "Diana",  "Frank",  "Olivia", "Edward", "Paula", "Arthur"};

inline constexpr std::array kCities = {
    "Oslo",     "Paris",  "Madrid", "Vienna",    "Dublin",   "Lisbon",
    "Athens",   "Berlin", "Warsaw", "Prague",    "Rome",     "London",
    "Helsinki", "Moscow", "Tokyo",  "Cairo",     "Delhi",    "Toronto",
    "Chicago",  "Boston", "Denver", "Seattle",   "Sydney",   "Melbourne",
    "Nairobi",  "Lima",   "Bogota", "Stockholm", "Brussels", "Budapest"};

inline constexpr std::array kJobs = {
    "baker",   "teacher", "nurse",    "carpenter", "lawyer",
    "pilot",   "farmer",  "musician", "painter",   "plumber",
    "dentist", "driver",  "cook",     "tailor",    "librarian"};

inline constexpr std::array kVariables = {"BQ", "CX", "DK", "FW", "GZ", "HJ",
                                          "KM", "LP", "MR", "NT", "PV", "QS",
                                          "RB", "SD", "TF", "VH"};

}  // namespace blockmgr

#endif  // BENCH_QUALITY_PROMPT_WORDS_H_
