//! TODO: downstream/stdio
