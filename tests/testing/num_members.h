// Counts the members of a struct, so that a test notices a new one.
#ifndef TESTS_TESTING_NUM_MEMBERS_H_
#define TESTS_TESTING_NUM_MEMBERS_H_

#include <cstddef>

namespace blockmgr {

namespace num_members_internal {
struct AnyValue {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
}  // namespace num_members_internal

// Returns the number of members of an aggregate: the largest number of values
// of any type that can initialize it.
template <typename Aggregate, typename... Values>
consteval size_t NumMembers(Values... values) {
  if constexpr (requires {
                  Aggregate{values..., num_members_internal::AnyValue{}};
                }) {
    return NumMembers<Aggregate>(values..., num_members_internal::AnyValue{});
  } else {
    return sizeof...(values);
  }
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_NUM_MEMBERS_H_
