//! mcpproxy: a zero-copy streaming proxy between AI agents and their MCP servers.
//!
//! A call moves one way, top to bottom:
//!
//! ```text
//! Bytes → Request{id, params: Span} → Call{tool, args: Span, intent}
//!  → Permit{principal, access, warnings} | Pending | Denial  only a Permit reaches an upstream
//!  → CallGuard::call(Permit, args) → chunks
//!  → Inspector: Hold | Forward, then Verdict
//!  → Splice{our envelope, original slices} → body
//!  → Record → activity                            every outcome passes through this single exit
//! ```
//!
//! This package is the binary. Everything else is a crate of the workspace, one per layer; each depends only on those before it:
//!
//! 1. `mcpproxy_json`, `mcpproxy_protocol`: bytes and the protocol, pure
//! 2. `mcpproxy_runtime`: operating system and network
//! 3. `mcpproxy_schema`, `mcpproxy_policy`: the domain, pure
//! 4. `mcpproxy_activity`, `mcpproxy_catalog`, `mcpproxy_fleet`: state
//! 5. `mcpproxy_upstream`: connections to MCP servers
//! 6. `mcpproxy_gateway`: calls and downstream MCP
//! 7. `mcpproxy_config`: the config file
//! 8. `mcpproxy_admin`: REST and the web page
//! 9. `mcpproxy_server`: the assembled proxy, its threads and listeners
//! 10. `mcpproxy_cli`: the command line and the guide
//!
//! The guide in `src/guide` explains usage, the [`reference`](mod@reference) defines behavior and texts: ids in comments
//! (FR-017, CAP-3, ACT-5) are rows of its [`requirements`](reference::requirements).
#![doc = include_str!("architecture.md")]

pub mod reference;
