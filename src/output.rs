//! TODO: output
