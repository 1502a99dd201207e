//! Small experiments whose outcome is known.
