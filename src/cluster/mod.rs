//! Child processes of this binary.
