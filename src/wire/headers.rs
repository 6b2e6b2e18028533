//! TODO: wire/headers
