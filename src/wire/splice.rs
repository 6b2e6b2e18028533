//! TODO: wire/splice
