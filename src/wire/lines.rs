//! TODO: wire/lines
