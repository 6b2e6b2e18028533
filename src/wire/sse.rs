//! TODO: wire/sse
