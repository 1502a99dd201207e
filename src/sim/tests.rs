//! Scenarios from end to end.
