//! Intent: what the agent says it is about to do.
//!
//! [`CallArguments::parse`] reads what a call tool was given, [`Stated`] is the intent in whichever form it
//! came, and [`Stated::check`] makes an [`Intent`] of it, which agrees with the call tool: a face can refuse a
//! bad intent before the tool is looked up. Whether the call may go out is asked of
//! [`policy`](crate::policy). Pure.

pub mod arguments;
pub mod operation;
pub mod settings;
pub mod stated;

pub use arguments::{ArgumentError, CallArguments};
pub use operation::Operation;
pub use settings::{Requirement, Settings};
pub use stated::{Intent, IntentError, Stated};

pub use crate::tool::Sensitivity;

/// The answer to the tool that this product does not have (FR-004).
pub const NO_CALL_TOOL: &str = "Tool 'call_tool' not found. Use call_tool_read, call_tool_write, \
     or call_tool_destructive with matching intent.operation_type. See retrieve_tools for \
     annotations and recommendations.";
