//! TODO: upstream/stdio
