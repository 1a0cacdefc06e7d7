// A project's own header that has the name of one of blockmgr's.
#ifndef TESTS_INSTALL_COMPONENT_SCHEDULER_SCHEDULER_H_
#define TESTS_INSTALL_COMPONENT_SCHEDULER_SCHEDULER_H_

inline int OwnHeader() { return 8; }

#endif  // TESTS_INSTALL_COMPONENT_SCHEDULER_SCHEDULER_H_
