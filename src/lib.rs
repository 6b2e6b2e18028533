//! mcpproxy: a zero-copy streaming proxy between AI agents and their MCP servers.
//!
//! A call moves one way, top to bottom:
//!
//! ```text
//! Bytes → Request{id, params: Span} → Call{tool, args: Span, intent}
//!  → Permit{principal, access, warnings} | Pending | Denial  only a Permit opens the upstream door
//!  → Upstream::call(Permit, args) → chunks
//!  → Inspector: Hold | Forward, then Verdict
//!  → Splice{our envelope, original slices} → body
//!  → Record → activity                            every outcome leaves by this one exit
//! ```
//!
//! The floors, lowest first; a file imports its own folder and lower floors only:
//!
//! 1. bytes and the protocol, pure: [`json`], [`wire`], [`mcp`], [`nearest`], [`hidden_text`]; what the system gives: [`io`](mod@io), [`os`]
//! 2. domain, pure: [`tool`], [`intent`], [`policy`], [`schema`], [`output`], [`secrets`]
//! 3. state: [`catalog`], [`activity`], [`approvals`], [`telemetry`], [`identity`], [`results`], [`fleet`]
//! 4. upstream I/O: [`upstream`]; [`embeddings`]
//! 5. [`proxy`]
//! 6. faces: [`downstream`], [`api`], [`page`]
//! 7. assembly: [`config`], [`server`]
//! 8. [`cli`]
//!
//! How it is used is the [`guide`]. What all of it must do, and in which words, is the [`reference`](mod@reference): ids in
//! comments (FR-017, CAP-3, ACT-5) are rows of its [`requirements`](reference::requirements).
#![doc = include_str!("architecture.md")]

pub mod activity;
pub mod api;
pub mod approvals;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod downstream;
pub mod embeddings;
pub mod fleet;
pub mod guide;
pub mod hidden_text;
pub mod identity;
pub mod intent;
pub mod io;
pub mod json;
pub mod mcp;
pub mod nearest;
pub mod os;
pub mod output;
pub mod page;
pub mod policy;
pub mod proxy;
pub mod reference;
pub mod results;
pub mod schema;
pub mod secrets;
pub mod server;
pub mod telemetry;
pub mod tool;
pub mod upstream;
pub mod wire;
