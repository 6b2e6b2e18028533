//! Which build this is.

/// The version of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built of; `unknown` where the build did not know it, as in debug builds.
pub const COMMIT: &str = env!("MCPPROXY_COMMIT");

/// Both, for people.
pub const LONG_VERSION: &str = env!("MCPPROXY_LONG_VERSION");
