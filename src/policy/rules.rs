//! The operator's rules, in Cedar: who may do what with which tool, resource or prompt.
//!
//! [`RuleSet::load`] reads and checks the texts of `policy.files`; [`RuleSet::decide`] answers one request. This folder
//! alone knows Cedar, and of it takes the language (parser, validator, evaluation of one condition). Which rules a
//! request can meet is found by their scopes, here, and kept per principal, tool and action; plain conditions are answered
//! here, as Cedar does (`condition`); how what they say adds up is here as well. Files, the log and the swap of one set for the next are not.
//!
//! # What a rule can say
//!
//! * `principal`: `Agent::"anonymous"`, `"admin"`, `"token:NAME"`, `"jwt:SUBJECT"`, `"cert:NAME"`, in `Group::"NAME"`
//! * `action`: `read`, `write`, `destructive` (calls of tools), `list`, `read_resource` (also to subscribe, and to
//!   complete a template), `get_prompt` (also to complete one)
//! * `resource`: `Tool::"server:tool"`, `Resource::"server:URI"`, `Prompt::"server:name"`, in `Server::"server"`
//! * `context` of calls: `args`, `intent.{operation_type, data_sensitivity, reason}` (what was not stated is `"unknown"`
//!   and `""`), `capability.{side_effect, parallel_safe, approval, idempotent, open_world}`; of all but `list`:
//!   `session.{max_sensitivity, open_world_seen, calls}`; of all: `client`, `now`
//!
//! # How they add up
//!
//! A `forbid` that holds refuses, whatever else holds. Else a `permit` that holds permits. Else `policy.default` decides,
//! under the name [`DEFAULT_RULE`]. A rule whose condition errs refuses: it says so, and nothing passes on its account.
//!
//! # Arguments as records
//!
//! Strings, booleans, and whole numbers from -2^63 to 2^63-1 are themselves; an object is a record, an array whose elements
//! are of one kind a set. Not mappable: `null`, other numbers (also `1.0` and `1e3`), arrays of several kinds, what is
//! nested deeper than [`MAX_DEPTH`] or longer than [`MAX_STRING_BYTES`] or [`MAX_ELEMENTS`], and a value of another type
//! than the tool's input schema says. A rule that asks for what cannot be mapped refuses, and so does one that asks for
//! any argument where two keys of one object, at whatever depth, differ only by case: servers differ on which they read.

mod arguments;
mod cache;
mod check;
mod condition;
mod context;
mod entities;
mod explain;
mod input_types;
mod needs;
mod parsed;
mod plan;
mod problem;
mod request;
mod rule_set;
mod ruling;
mod split;
#[cfg(test)]
mod tests;

pub use arguments::{MAX_ARGUMENT_BYTES, MAX_DEPTH, MAX_ELEMENTS, MAX_STRING_BYTES, readable};
pub use check::KnownTools;
pub use explain::{Explained, RuleOutcome, Saw};
pub use plan::LooksAt;
pub use problem::{Basis, RuleProblem};
pub use request::{RuleAction, RuleRequest, RuleTarget, Subject};
pub use rule_set::{
    DEFAULT_RULE, ListedRule, MAX_FILE_BYTES, MAX_RULES, MAX_TOTAL_BYTES, NO_EXFILTRATION, Preset,
    RuleOptions, RuleSet, RuleText, RulesDefault, RulesMode,
};
pub use ruling::Ruling;
